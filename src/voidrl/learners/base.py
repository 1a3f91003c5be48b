"""The contract of a learner: it acts, and turns (batch, reward) into losses.

The reward is an argument: a learner cannot tell an intrinsic reward from a task's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from voidrl.config import LearnerConfig
from voidrl.entropy import Neighborhoods
from voidrl.kernels.fusion import fusable
from voidrl.nets import Encoder, polyak_update
from voidrl.nets.bounds import ValueBounds
from voidrl.replay import Rollout
from voidrl.types import Batch, EnvSpec, Loss, Metrics


class Learner(nn.Module):
    """Encoder, critic and, for continuous actions, a policy."""

    Config: ClassVar[type[LearnerConfig]] = LearnerConfig
    actions: ClassVar[Literal["discrete", "continuous", "both"]]
    takes_vector_rewards: ClassVar[bool] = False
    """Whether `losses` takes rewards of (B, dim), for critics on successor features."""
    plays_by_sampling: ClassVar[bool] = False
    """Whether evaluations sample the policy, a distribution whose most likely actions may be no policy."""
    has_bounded_values: ClassVar[bool] = False
    """Whether values are limited to a support, such as C51's."""
    has_priorities: ClassVar[bool] = False
    """Whether losses have a priority for each transition, which a prioritized replay needs."""
    resets_partly: ClassVar[tuple[str, ...]] = ("encoder", "target_encoder")
    """Children that a reset shrinks and perturbs; the others are reinitialized."""
    critic: nn.Module
    warmup_steps: int = 0
    """Steps before the first update on a task's reward, set by the agent; 0 in pre-training."""
    rollout_steps: int = 0
    """Steps of each environment after which an on-policy learner is updated with all of them, in order
    (`OnPolicyLearner`); 0 for learners that sample the replay."""

    def __init__(
        self, spec: EnvSpec, config: LearnerConfig, encoder: Encoder, critic: nn.Module | None, skill_dim: int
    ) -> None:
        """`critic` is the method's, if it makes one; otherwise the learner makes its own."""
        super().__init__()
        self.spec, self.config, self.encoder, self.skill_dim = spec, config, encoder, skill_dim
        if critic is not None:
            self.critic = critic
        self.trains_encoder = True
        self.trains_actor = True
        """Whether losses of the policy are due; not while a new critic learns to judge a kept one."""
        self.bounds = ValueBounds(config)
        self.frozen_parts: tuple[nn.Module, ...] = ()
        """Parts of the encoder that other losses train, such as a shared stack."""

    def train(self, mode: bool = True) -> Self:
        """Keep what the learner does not train in eval mode, so that spectral norm does not iterate there."""
        super().train(mode)
        self.encoder.train(mode and self.trains_encoder)
        for part in self.frozen_parts:
            part.eval()
        return self

    @property
    def critic_heads(self) -> tuple[str, ...]:
        """Modules that `finetune.heads = "actor"` reinitializes together with their targets."""
        return ("critic",)

    @property
    def first_layers(self) -> list[nn.Module]:
        """The layers of critic and actor that read the features; empty if the critic does not define them."""
        return list(getattr(getattr(self, "critic", None), "first_layers", ()))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters of each optimizer by name; `critic` has those of the encoder that it trains."""
        raise NotImplementedError

    def act(self, obs: Tensor, skill: Tensor, *, deterministic: bool) -> Tensor:
        """(B, *obs_shape) → (B,) discrete actions or (B, action_dim) in [−1, 1]."""
        raise NotImplementedError

    def q(self, obs: Tensor, skill: Tensor, action: Tensor) -> Tensor | None:
        """(B,): the critic's values of these actions; None for a learner that cannot tell."""
        return None

    def rescale_values(self, scale: Tensor, shift: Tensor) -> bool:
        """Replace every Q by scale · Q + shift, targets included, in place; False where that is impossible.

        `scale`, above 0, and `shift` are (1,). The policy is unchanged.
        """
        critics = [getattr(self, name) for name in ("critic", "target_critic") if hasattr(self, name)]
        if self.has_bounded_values or not critics or not all(hasattr(c, "rescale_output") for c in critics):
            return False
        for critic in critics:
            critic.rescale_output(scale, shift)
        return True

    def restart_exploration(self, return_scale: float) -> None:
        """Begin a task whose returns differ by about `return_scale`: rescale exploration to that range."""

    def losses(self, batch: Batch, reward: Tensor, index: int) -> Iterator[Loss]:
        """Yield each loss in turn; the caller minimizes it before it asks for the next.

        `reward` is (B,), or (B, dim) for learners that take vector rewards.

        What happens every k updates is decided by `index % k`, never by a counter in the learner, so that
        each variant of the update can be captured; every such k must be in `update_periods`.
        """
        raise NotImplementedError

    def after_update(self, index: int) -> None:
        """Update the targets, if they are due."""
        if index % self.config.target_every_updates == 0:
            self.move_targets()

    @fusable
    def move_targets(self) -> None:
        """Polyak-average each `target_x` towards its x: critic, encoder and whatever else has a target."""
        own_tau = {"target_encoder": self.config.target_encoder_tau}
        for name, target in self.named_children():
            if name.startswith("target_"):
                online = self.get_submodule(name.removeprefix("target_"))
                polyak_update(target, online, own_tau.get(name) or self.config.target_tau)

    @property
    def update_periods(self) -> tuple[int, ...]:
        """The periods, in updates, of everything that is not done in each update: targets, actor."""
        return self.config.target_every_updates, getattr(self.config, "actor_every_updates", 1)

    @property
    def period(self) -> int:
        """Number of updates after which the variants repeat."""
        return math.lcm(*self.update_periods)

    def variant(self, update: int) -> int:
        """The smallest index at which the same work is due as at this update."""
        due = [update % every == 0 for every in self.update_periods]
        return next(i for i in range(self.period) if [i % every == 0 for every in self.update_periods] == due)

    def set_progress(self, steps: float) -> None:
        """Move schedules (exploration noise) to where they are after `steps` environment steps."""

    def features(self, obs: Tensor) -> Tensor:
        """Encoded observations, with gradients only if this learner trains the encoder."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trains_encoder):
            features: Tensor = self.encoder(obs)
        return features

    def average_views(self, target: Tensor) -> Tensor:
        """(V · B, …) → the same shape, each replaced by the mean over its V views."""
        views = self.config.views
        if views == 1:
            return target
        mean: Tensor = target.unflatten(0, (views, -1)).mean(0)
        return mean.repeat(views, *[1] * (mean.ndim - 1))

    def critic_parameters(self) -> list[nn.Parameter]:
        """The critic's, and those of the encoder that this learner trains."""
        kept = {id(p) for part in self.frozen_parts for p in part.parameters()}
        encoder = self.encoder.parameters() if self.trains_encoder else ()
        return [*self.critic.parameters(), *(p for p in encoder if id(p) not in kept)]


class ActorCritic(Learner):
    """A policy of continuous actions with twin critics; the encoder learns only from the critics' loss."""

    actions = "continuous"
    has_priorities = True
    actor: nn.Sequential

    def q(self, obs: Tensor, skill: Tensor, action: Tensor) -> Tensor:
        """The mean of both critics."""
        values: Tensor = self.critic(self.features(obs), skill, action)
        return values.float().mean(0)

    def regress(self, batch: Batch, target: Tensor) -> tuple[Tensor, Metrics, Tensor, Tensor]:
        """The squared error of both critics; also each transition's error, and f(s) for the actor."""
        features = self.features(batch.obs)
        q = self.critic(features, batch.skill, batch.action)  # (2, B)
        error = q - target
        loss = (batch.weight * error.square()).mean(1).sum()
        metrics = {"critic_loss": loss.detach(), "q_mean": q.detach().mean(), "q_target": target.mean()}
        seen = features.detach().chunk(self.config.views)[0]  # the actor learns from the first view
        return loss, metrics, error.detach().abs().mean(0), seen


class Surrogate(NamedTuple):
    """The objective of an on-policy learner under a trust region, for the current policy."""

    value: Tensor
    divergence: Tensor  # from the policy that acted
    limit: float  # the largest divergence
    metrics: Metrics


class OnPolicyLearner(Learner):
    """Learns from what its own policy has just done, and from each step once.

    It acts by its policy from the first step on. When each environment has taken `rollout_steps`, the policy
    takes gradient steps on all of them while it is not too far from the one that acted; the last policy
    within the limit acts in the next rollout. Nothing changes its networks during a rollout, so that the
    probabilities of actions need not be stored.
    """

    policy_updates: int
    """Gradient steps per rollout, at most."""
    backtracks: int
    """Halvings of the learning rate where not even the first step stays within the limit."""

    def surrogate(self, rollout: Rollout, goal: Neighborhoods | Tensor) -> Callable[[], Surrogate]:
        """The objective, measured again at every call.

        `goal` are the neighborhoods of the states reached, whose entropy is maximized, or (P,) rewards.
        """
        raise NotImplementedError

    def value_losses(self, rollout: Rollout, reward: Tensor) -> Iterator[Loss]:
        """Yield losses of the value function, one for each step that it takes after the policy's."""
        raise NotImplementedError


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Inside, gradients pass through the module and none are computed for its weights."""
    weights = [p for p in module.parameters() if p.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


def linear_schedule(start: float, end: float, steps: int, now: float) -> float:
    """From start to end in `steps`, then constant."""
    return end if now >= steps else start + (end - start) * now / steps
