"""MEPOL's policy: discrete or continuous actions, learned on-policy under a trust region.

Pre-training maximizes the entropy of the states that a rollout reaches (Mutti, Pratissoli & Restelli 2020).
A state s' reached by step t of an episode has the weight w ∝ Π_{i ≤ t} π(a_i|s_i) / π_b(a_i|s_i), normalized
over all states of the rollout, where π_b is the policy that acted. From these weights, and k-NN balls that
are measured once per rollout, the entropy Ĥ of the new policy's states is estimated, and K̂L, how far they are
from the old one's (`voidrl.entropy.weighted_entropy`). Adam ascends Ĥ while K̂L ≤ `kl_limit`; the last policy
within it is kept.

With a task's reward there is nothing to estimate by neighbors: the same steps maximize the advantage under
importance weights, mean π/π_b · A with A by GAE(λ), while the mean KL(π_b, π), which is exact, is at most
0.01: TRPO's problem, solved as MEPOL's. The value function has a network of its own behind the policy's
encoder, which it does not train, so that it cannot move the policy.

Differences from the authors' code: continuous actions are a Gaussian squashed by tanh, not one that the
environment clips; episodes that end are cut, not ignored; see also `voidrl.methods.mepol`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.config import EncoderConfig, LearnerConfig, Positive, PositiveCount
from voidrl.entropy import Neighborhoods, weighted_entropy
from voidrl.learners.base import OnPolicyLearner, Surrogate
from voidrl.nets import Encoder, FullPrecisionLinear, join, mlp
from voidrl.nets.observations import action_mask
from voidrl.replay import Rollout
from voidrl.types import EnvSpec, Loss

FORBIDDEN = -1e9  # the logit of an action that is masked: finite, since 0 · ∞ is NaN in a KL divergence
MAX_ACTION = 1 - 1e-6  # tanh never reaches 1, but its rounding does
BACKTRACKS = 10  # halvings of the learning rate if not even the first step stays within the limit
LOG_STD = -0.5  # of continuous actions before tanh, at the start; it is learned, the same for all states
GAE_LAMBDA = 0.95  # with a task's reward
POLICY_KL_LIMIT = 0.01  # with a task's reward: the mean KL divergence of the policies, at most (TRPO)
VALUE_UPDATES = 60  # with a task's reward: steps of the value function per rollout
SMALL_START = 0.01  # of the last layer: at first all actions are equally likely, or their means 0


@dataclass(frozen=True)
class MEPOLConfig(LearnerConfig):
    """Gradient steps on whole rollouts under a trust region."""

    encoder: EncoderConfig = field(default_factory=lambda: EncoderConfig(activation="relu", feature_dim=0))
    """The policy's encoder; by default the convolutions, and vectors as they are."""
    learning_rate: float = 1e-5
    """Learning rate."""
    hidden_dim: int = 300
    """Width of the hidden layers of policy and value function."""
    rollout_steps: PositiveCount = 400
    """Steps of each environment in a rollout; times `env.num_envs`, the states whose entropy is estimated."""
    max_updates: PositiveCount = 30
    """Gradient steps per rollout, at most."""
    kl_limit: Positive = 15.0
    """δ, the largest K̂L between the states of the new policy and of the one that acted; the authors' 15
    hardly ever binds; they have 0.05 for Ant in the plane."""


class Policy(NamedTuple):
    """The distribution of actions in B states: log-probabilities (B, A), or mean and log σ before tanh."""

    first: Tensor
    log_std: Tensor | None
    """(A,) for continuous actions; None for discrete ones."""

    def log_prob(self, action: Tensor) -> Tensor:
        """(B,) of actions taken; of continuous ones without tanh's Jacobian, which cancels in ratios."""
        if self.log_std is None:
            return self.first.gather(1, action[:, None])[:, 0]
        before = action.clamp(-MAX_ACTION, MAX_ACTION).atanh()
        noise = (before - self.first) * (-self.log_std).exp()
        return (-0.5 * noise.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(1)

    def kl(self, other: Policy) -> Tensor:
        """(B,): KL(self, other), exact; tanh does not change that of Gaussians."""
        if self.log_std is None or other.log_std is None:
            return (self.first.exp() * (self.first - other.first)).sum(1)
        ratio = (2 * (self.log_std - other.log_std)).exp()
        distance = ((self.first - other.first) * (-other.log_std).exp()).square()
        return (ratio + distance - 1 - ratio.log()).sum(1) / 2

    def detach(self) -> Policy:
        """A copy without gradients."""
        return Policy(self.first.detach(), None if self.log_std is None else self.log_std.detach().clone())


class MEPOL(OnPolicyLearner):
    """A categorical or tanh-Gaussian policy and, for tasks, a value function."""

    Config = MEPOLConfig
    actions = "both"
    plays_by_sampling = True  # it was trained to be random

    def __init__(
        self, spec: EnvSpec, config: MEPOLConfig, encoder: Encoder, critic: nn.Module | None, skill_dim: int
    ) -> None:
        super().__init__(spec, config, encoder, None, skill_dim)
        self.config: MEPOLConfig = config
        inputs = encoder.feature_dim + skill_dim
        hidden = [inputs, *[config.hidden_dim] * config.hidden_layers]
        # Never bf16, in which steps of a small learning rate would not change a probability.
        self.actor = mlp([*hidden, spec.num_actions or spec.action_dim], layer=FullPrecisionLinear)
        self.critic = mlp([*hidden, 1], layer=FullPrecisionLinear)
        self.log_std: nn.Parameter | None = None
        if not spec.discrete:
            self.log_std = nn.Parameter(torch.full((spec.action_dim,), LOG_STD))
        with torch.no_grad():
            for weight in self.actor[-1:].parameters():
                weight.mul_(SMALL_START)
        self.rollout_steps = config.rollout_steps
        self.policy_updates, self.backtracks = config.max_updates, BACKTRACKS

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Policy and value function."""
        shared = {id(p) for part in self.frozen_parts for p in part.parameters()}
        encoder = [p for p in self.encoder.parameters() if id(p) not in shared] * self.trains_encoder
        own = [*self.actor.parameters(), *([] if self.log_std is None else [self.log_std])]
        return {"policy": [*own, *encoder], "value": [*self.critic.parameters()]}

    @property
    def first_layers(self) -> list[nn.Module]:
        """Those of policy and value function."""
        return [next(self.actor.children()), next(self.critic.children())]

    # Acting

    def policy(self, obs: Tensor, skill: Tensor) -> Policy:
        """The distribution of actions."""
        output = self.actor(join(self.features(obs), skill)).float()
        if self.log_std is not None:
            return Policy(output, self.log_std.float())
        allowed = action_mask(obs, self.spec)
        logits = output if allowed is None else output.masked_fill(~allowed, FORBIDDEN)
        return Policy(logits.log_softmax(1), None)

    def act(self, obs: Tensor, skill: Tensor, *, deterministic: bool) -> Tensor:
        """A sample, or the most likely action."""
        policy = self.policy(obs, skill)
        if policy.log_std is None:
            if deterministic:
                return policy.first.argmax(1)
            gumbel = -torch.empty_like(policy.first).exponential_().log()
            return (policy.first + gumbel).argmax(1)
        if deterministic:
            return policy.first.tanh()
        return (policy.first + policy.log_std.exp() * torch.randn_like(policy.first)).tanh()

    # Learning

    def surrogate(self, rollout: Rollout, goal: Neighborhoods | Tensor) -> Callable[[], Surrogate]:
        """The entropy of the states reached, or the advantage of the actions taken."""
        batch = rollout.batch
        with torch.no_grad():  # π_b: what has acted is what the weights still are
            old = self.policy(batch.obs, batch.skill).detach()
            behavior = old.log_prob(batch.action)

        def entropy() -> Surrogate:
            log_ratio = self.policy(batch.obs, batch.skill).log_prob(batch.action) - behavior
            value, divergence = weighted_entropy(hoods, rollout.path_sums(log_ratio.double()))
            metrics = {"mepol_entropy": value.detach(), "mepol_kl": divergence.detach()}
            return Surrogate(value, divergence, self.config.kl_limit, metrics)

        def advantage() -> Surrogate:
            policy = self.policy(batch.obs, batch.skill)
            ratio = (policy.log_prob(batch.action) - behavior).exp()
            value, divergence = (ratio * normalized).mean(), old.kl(policy).mean()
            metrics = {"policy_gain": value.detach(), "policy_kl": divergence.detach()}
            return Surrogate(value, divergence, POLICY_KL_LIMIT, metrics)

        if isinstance(goal, Neighborhoods):
            hoods = goal
            return entropy
        gained = self.advantages(rollout, goal)[0]
        normalized = (gained - gained.mean()) / gained.std(correction=0).clamp(min=1e-8)
        return advantage

    @torch.no_grad()
    def advantages(self, rollout: Rollout, reward: Tensor) -> tuple[Tensor, Tensor]:
        """GAE(λ) of each step, and the return that its value should have predicted, (P,) each."""
        batch = rollout.batch
        value, after = (self.value(obs, batch.skill) for obs in (batch.obs, batch.next_obs))
        error = rollout.grid(reward + batch.discount * after - value)  # (R, N)
        trace = rollout.grid(self.config.discount * GAE_LAMBDA * (~rollout.ends).float())
        gained = torch.zeros_like(error)
        later = torch.zeros_like(error[0])
        for t in reversed(range(len(error))):
            later = error[t] + trace[t] * later
            gained[t] = later
        found = gained[rollout.real]
        return found, found + value

    def value(self, obs: Tensor, skill: Tensor) -> Tensor:
        """(B,), without gradients for the encoder."""
        with torch.no_grad():
            features = self.encoder(obs)
        found: Tensor = self.critic(join(features, skill)).float()
        return found[:, 0]

    def value_losses(self, rollout: Rollout, reward: Tensor) -> Iterator[Loss]:
        """The squared error of returns predicted from the features of the new policy."""
        batch, target = rollout.batch, self.advantages(rollout, reward)[1]
        with torch.no_grad():
            x = join(self.encoder(batch.obs), batch.skill)
        for _ in range(VALUE_UPDATES):
            value = self.critic(x).float()[:, 0]
            loss = F.mse_loss(value, target)
            metrics = {"value_loss": loss, "value_mean": value.mean(), "value_target": target.mean()}
            yield Loss("value", loss, {name: each.detach() for name, each in metrics.items()})
