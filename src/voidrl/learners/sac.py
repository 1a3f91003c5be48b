"""SAC for continuous actions: DrQ's learner on DMControl (Haarnoja et al. 2018; Kostrikov et al. 2020).

With `views` = 2 it is DrQ's: targets and losses are averaged over two augmentations of each sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.config import Count, LearnerConfig, Positive, PositiveCount
from voidrl.config.checks import Limit
from voidrl.kernels.fusion import fusable
from voidrl.learners.base import ActorCritic, frozen
from voidrl.nets import Encoder, TwinQ, join, mlp, target_copy
from voidrl.types import Batch, EnvSpec, Loss, Metrics

LOG_STD_MAX = 2.0  # upper bound of the log standard deviation, as in DrQ
ENTROPY_MARGIN = 2.0  # nats per dimension below log_std_min that a tanh-Gaussian is granted
LEAST_TEMPERATURE = 1e-8  # its logarithm is a weight
LogStd = Annotated[float, Limit(lambda value: value < LOG_STD_MAX, f"less than {LOG_STD_MAX}")]


@dataclass(frozen=True)
class SACConfig(LearnerConfig):
    """Soft actor-critic with a learned or a fixed temperature."""

    learning_rate: float = 1e-3
    """Learning rate."""
    actor_every_updates: PositiveCount = 2
    """Updates per update of actor and temperature."""
    target_every_updates: Count = 2
    """Updates between two target updates."""
    log_std_min: LogStd = -10.0
    """Lower bound of the policy's log standard deviation."""
    initial_temperature: Positive = 0.1
    """α at the start."""
    learn_temperature: bool = True
    """Adjust α so that the policy's entropy settles at −1 nat per action dimension; False keeps it fixed."""


class SAC(ActorCritic):
    """A tanh-Gaussian policy with twin critics. The encoder learns only from the critics' loss."""

    Config = SACConfig

    def __init__(
        self, spec: EnvSpec, config: SACConfig, encoder: Encoder, critic: nn.Module | None, skill_dim: int
    ) -> None:
        super().__init__(spec, config, encoder, critic, skill_dim)
        self.config: SACConfig = config
        inputs, hidden = encoder.feature_dim + skill_dim, [config.hidden_dim] * config.hidden_layers
        if critic is None:
            self.critic = TwinQ(inputs + spec.action_dim, config.hidden_dim, config.hidden_layers)
        self.actor = mlp([inputs, *hidden, 2 * spec.action_dim], full_precision=False)
        log_alpha = torch.tensor(math.log(config.initial_temperature))
        self.log_alpha = nn.Parameter(log_alpha, requires_grad=config.learn_temperature)
        self.target_encoder, self.target_critic = target_copy(encoder), target_copy(self.critic)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Three optimizers, as in DrQ; two with a fixed temperature."""
        actor = [*self.actor.parameters()]
        return {"critic": self.critic_parameters(), "actor": actor, "temperature": [self.log_alpha]}

    @property
    def first_layers(self) -> list[nn.Module]:
        """Those of critic and actor."""
        return [*super().first_layers, self.actor[0]]

    def policy(self, features: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation before tanh, (B, A) each."""
        mean, log_std = self.actor(join(features, skill)).float().chunk(2, -1)
        low, high = self.config.log_std_min, LOG_STD_MAX
        return mean, (low + (high - low) * (log_std.tanh() + 1) / 2).exp()

    def sample(self, features: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """A reparameterized action (B, A) and its log-probability (B,)."""
        mean, std = self.policy(features, skill)
        noise = torch.randn_like(mean)
        before = mean + std * noise
        log_prob = (-0.5 * noise**2 - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
        # log |d tanh(u)/du| = 2 (log 2 − u − softplus(−2u)), which does not overflow
        log_prob = log_prob - (2 * (math.log(2) - before - F.softplus(-2 * before))).sum(-1)
        return before.tanh(), log_prob

    def act(self, obs: Tensor, skill: Tensor, *, deterministic: bool) -> Tensor:
        """The mean, or a sample."""
        features = self.features(obs)
        return self.policy(features, skill)[0].tanh() if deterministic else self.sample(features, skill)[0]

    @torch.no_grad()
    def restart_exploration(self, return_scale: float) -> None:
        """α in proportion to the task: `initial_temperature` for rewards that differ by about 1 per step."""
        alpha = self.config.initial_temperature * return_scale * (1 - self.config.discount)
        self.log_alpha.fill_(math.log(max(alpha, LEAST_TEMPERATURE)))

    def losses(self, batch: Batch, reward: Tensor, index: int) -> Iterator[Loss]:
        """Critics first, then on every second update actor and, if it is learned, temperature."""
        alpha = self.log_alpha.detach().exp()
        loss, metrics, error, features = self.critic_loss(batch, reward, alpha)
        yield Loss("critic", loss, metrics, error)
        if self.trains_actor and index % self.config.actor_every_updates == 0:
            with frozen(self.critic):
                loss, metrics = self.actor_loss(features, batch.skill[: len(features)], alpha)
            yield Loss("actor", loss, {**metrics, "temperature": alpha})
            if self.config.learn_temperature:
                loss = self.log_alpha.exp() * (metrics["policy_entropy"] + self.spec.action_dim)
                yield Loss("temperature", loss, {})

    def bounded(self, target: Tensor, alpha: Tensor) -> Tensor:
        """Targets within what rewards and the entropy bonus of every later step add up to.

        The entropy of an action in [−1, 1] is at most ln 2 per dimension. It has no lower limit but that of
        log_std; tanh makes it lower still, by little where the policy is not saturated.
        """
        bonus = alpha * self.spec.action_dim / (1 - self.config.largest_discount)
        lowest = max(0.0, -self.config.log_std_min) + ENTROPY_MARGIN
        return self.bounds.clamp(target, below=bonus * lowest, above=bonus * math.log(2))

    @fusable
    def critic_loss(
        self, batch: Batch, reward: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Metrics, Tensor, Tensor]:
        """`regress` on soft targets."""
        with torch.no_grad():
            action, log_prob = self.sample(self.features(batch.next_obs), batch.skill)
            target_q = self.target_critic(self.target_encoder(batch.next_obs), batch.skill, action)  # (2, B)
            target = reward + batch.discount * (target_q.amin(0) - alpha * log_prob)
            target = self.average_views(self.bounded(target, alpha))
        return self.regress(batch, target)

    @fusable
    def actor_loss(self, features: Tensor, skill: Tensor, alpha: Tensor) -> tuple[Tensor, Metrics]:
        """The negative soft value of the policy's actions."""
        action, log_prob = self.sample(features, skill)
        loss = (alpha * log_prob - self.critic(features, skill, action).amin(0)).mean()
        return loss, {"actor_loss": loss.detach(), "policy_entropy": -log_prob.detach().mean()}
