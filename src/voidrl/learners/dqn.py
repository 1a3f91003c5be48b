"""DQN for discrete actions: double, dueling, n-step, ε-greedy or noisy (DrQ's learner on Atari).

A critic with a method `td_loss` computes the loss itself: those on successor features (voidrl.nets.successor)
learn from vector rewards. It may also choose actions by values of its own, `acting_values`.

Where the environment masks actions, forbidden ones are neither taken, nor drawn at random, nor the best in s'
of a target.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.config import Count, EncoderConfig, LearnerConfig, Positive
from voidrl.config.checks import Limit, Share
from voidrl.kernels.fusion import fusable
from voidrl.learners.base import Learner, linear_schedule
from voidrl.nets import DuelingQ, Encoder, target_copy
from voidrl.nets.layers import scale_gradient
from voidrl.nets.noisy import redraw_noise, silence
from voidrl.nets.observations import action_mask, random_allowed
from voidrl.types import Batch, EnvSpec, Loss, Metrics


@dataclass(frozen=True)
class DQNConfig(LearnerConfig):
    """Q-learning with a target network."""

    encoder: EncoderConfig = field(default_factory=lambda: EncoderConfig(activation="relu", feature_dim=0))
    """The learner's own encoder; by default the convolutions, as in Atari networks."""
    hidden_dim: int = 512
    """Width of the heads."""
    hidden_layers: int = 1
    """Hidden layers of the heads."""
    adam_eps: float = 1.5e-4
    """Adam's ε."""
    max_grad_norm: float = 10.0
    """Gradients are clipped to this norm; 0 turns clipping off."""
    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network values it."""
    dueling: bool = True
    """Separate streams for the state's value and the actions' advantages."""
    shared_hidden: bool = False
    """One set of hidden layers for both streams, as in Dopamine and BBF, instead of one for each."""
    noisy_sigma: Annotated[float, Limit(lambda value: 0 <= value < 100, "0 (no noise) or up to 100")] = 0.0
    """σ₀ of noisy layers in the heads, which explore instead of or together with ε (Rainbow: 0.5, DER: 0.1);
    0 for plain layers."""
    act_with: Literal["online", "target"] = "online"
    """The network that chooses actions; BBF acts by the target network."""
    head_gradient_scale: Positive = 1.0
    """Multiplies the gradient that the heads pass to the encoder (SPR: 2^−½)."""
    epsilon_start: Share = 1.0
    """Probability of a random action at the start."""
    epsilon_end: Share = 0.05
    """Probability of a random action after the decay."""
    epsilon_hold_steps: Count | None = None
    """Environment steps before the decay begins; None: those of the warm-up, in pre-training 0."""
    epsilon_decay_steps: Count = 2500
    """Environment steps of the decay."""


class DQN(Learner):
    """Acts by the highest Q value."""

    Config = DQNConfig
    actions = "discrete"
    takes_vector_rewards = True
    has_priorities = True

    def __init__(
        self, spec: EnvSpec, config: DQNConfig, encoder: Encoder, critic: nn.Module | None, skill_dim: int
    ) -> None:
        super().__init__(spec, config, encoder, critic, skill_dim)
        self.config: DQNConfig = config
        sizes = encoder.feature_dim + skill_dim, spec.num_actions, config.hidden_dim, config.hidden_layers
        if critic is None:
            outputs, sigma = self.critic_outputs, config.noisy_sigma
            streams = {"dueling": config.dueling, "shared_hidden": config.shared_hidden}
            self.critic = DuelingQ(*sizes, outputs=outputs, noisy_sigma=sigma, **streams)
        self.target_encoder, self.target_critic = target_copy(encoder), target_copy(self.critic)
        self.epsilon: Tensor
        self.register_buffer("epsilon", torch.tensor(config.epsilon_start))

    @property
    def critic_outputs(self) -> int | None:
        """Number of the critic's outputs for each action; None for scalar values."""
        return None

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """One optimizer."""
        return {"critic": self.critic_parameters()}

    def values(self, output: Tensor) -> Tensor:
        """The critic's output as Q values, (B, A)."""
        return output

    def greedy(self, output: Tensor, allowed: Tensor | None = None) -> Tensor:
        """The best actions by the critic's output, (B,), among those of the (B, A) mask if there is one."""
        q = self.values(output)
        return (q if allowed is None else q.masked_fill(~allowed, -torch.inf)).argmax(-1)

    def act(self, obs: Tensor, skill: Tensor, *, deterministic: bool) -> Tensor:
        """Greedy if deterministic, else ε-greedy with new noise; one draw serves all environments."""
        by_target = self.config.act_with == "target"
        critic = self.target_critic if by_target else self.critic
        (silence if deterministic else redraw_noise)(critic)
        features = self.target_encoder(obs) if by_target else self.features(obs)
        allowed = action_mask(obs, self.spec)
        values = getattr(critic, "acting_values", critic)(features, skill)
        greedy = self.greedy(values, allowed)  # (B,)
        if deterministic:
            return greedy
        if allowed is None:
            anything = torch.randint_like(greedy, self.spec.num_actions)
        else:
            anything = random_allowed(allowed)
        return torch.where(torch.rand(greedy.shape, device=greedy.device) < self.epsilon, anything, greedy)

    def q(self, obs: Tensor, skill: Tensor, action: Tensor) -> Tensor:
        """The values of the actions taken, without noise."""
        silence(self.critic)
        return self.chosen(self.values(self.critic(self.features(obs), skill)), action).float()

    def losses(self, batch: Batch, reward: Tensor, index: int) -> Iterator[Loss]:
        """One loss, for which online and target network draw new noise."""
        redraw_noise(self.critic, self.target_critic)
        td_loss = getattr(self.critic, "td_loss", None)
        found = self.critic_loss(batch, reward) if td_loss is None else td_loss(self, batch, reward)
        yield Loss("critic", *found)

    def chosen(self, output: Tensor, action: Tensor) -> Tensor:
        """The entries of the critic's output, (B, A) or (B, A, n), for the (B,) actions: (B,) or (B, n)."""
        index = action.view(-1, *[1] * (output.ndim - 1)).expand(-1, 1, *output.shape[2:])
        return output.gather(1, index).squeeze(1)

    def next_output(self, batch: Batch) -> Tensor:
        """The target critic's output for the best action in s', (B,) or (B, n)."""
        output = self.target_critic(self.target_encoder(batch.next_obs), batch.skill)
        chooser = self.critic(self.features(batch.next_obs), batch.skill) if self.config.double else output
        return self.chosen(output, self.greedy(chooser, action_mask(batch.next_obs, self.spec)))

    def output(self, batch: Batch) -> Tensor:
        """The critic's output for the action taken in s, (B,) or (B, n), with gradients."""
        features = scale_gradient(self.features(batch.obs), self.config.head_gradient_scale)
        return self.chosen(self.critic(features, batch.skill), batch.action)

    @torch.no_grad()
    def target(self, batch: Batch, reward: Tensor) -> Tensor:
        """(B,): r + γⁿ Q(s', a'), in units of the reward."""
        target = reward + batch.discount * self.values(self.next_output(batch))
        return self.average_views(self.bounds.clamp(target))

    @fusable
    def critic_loss(self, batch: Batch, reward: Tensor) -> tuple[Tensor, Metrics, Tensor]:
        """Huber loss of the n-step double-Q error; also the error of each transition."""
        target = self.target(batch, reward)
        q = self.output(batch)
        loss = (batch.weight * F.smooth_l1_loss(q, target, reduction="none")).mean()
        metrics = {"critic_loss": loss.detach(), "q_mean": q.detach().mean(), "q_target": target.mean()}
        return loss, metrics, (q - target).detach().abs()

    def set_progress(self, steps: float) -> None:
        """ε decays linearly."""
        c = self.config
        hold = self.warmup_steps if c.epsilon_hold_steps is None else c.epsilon_hold_steps
        decayed = max(0.0, steps - hold)
        self.epsilon.fill_(linear_schedule(c.epsilon_start, c.epsilon_end, c.epsilon_decay_steps, decayed))
