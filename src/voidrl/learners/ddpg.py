"""DDPG as in DrQ-v2, for continuous actions (Yarats et al. 2021); the learner of URLB.

Differences from DrQ-v2: there, actor and critic each have a trunk (FC → LayerNorm → tanh) behind the
convolutions. Here the default is one trunk, inside the encoder, trained by the critic's loss; with
`trunk_dim` each has its own, as in DrQ-v2. On vectors, which DrQ-v2 does not cover, trunks are those of URLB:
the critic's trunk reads the action as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from voidrl.config import Count, LearnerConfig, OptionalSize
from voidrl.config.checks import NotNegative
from voidrl.kernels.fusion import fusable
from voidrl.learners.base import ActorCritic, frozen, linear_schedule
from voidrl.nets import Encoder, TwinQ, join, mlp, target_copy
from voidrl.nets.heads import TrunkQ
from voidrl.nets.layers import trunk
from voidrl.types import Batch, EnvSpec, Loss, Metrics

NOISE_CLIP = 0.3  # of the noise inside the losses


@dataclass(frozen=True)
class DDPGConfig(LearnerConfig):
    """A deterministic policy with scheduled noise."""

    n_step: int = 3
    """Steps whose rewards are summed before the value is bootstrapped."""
    trunk_dim: OptionalSize = 0
    """Width of a trunk FC → LayerNorm → tanh of actor and critic each, trained by their own loss, usual with
    an encoder of `feature_dim` 0; 0 for none."""
    stddev_start: NotNegative = 1.0
    """Standard deviation of the exploration noise at the start."""
    stddev_end: NotNegative = 0.1
    """Standard deviation of the exploration noise after the decay."""
    stddev_decay_steps: Count = 100_000
    """Environment steps of the decay."""


class DDPG(ActorCritic):
    """Deterministic policy, twin critics. The encoder learns from the critics' loss and has no target."""

    Config = DDPGConfig

    def __init__(
        self, spec: EnvSpec, config: DDPGConfig, encoder: Encoder, critic: nn.Module | None, skill_dim: int
    ) -> None:
        super().__init__(spec, config, encoder, critic, skill_dim)
        self.config: DDPGConfig = config
        inputs, actions, width = encoder.feature_dim + skill_dim, spec.action_dim, config.trunk_dim
        heads, hidden = (config.hidden_dim, config.hidden_layers), [config.hidden_dim] * config.hidden_layers
        if critic is None and width:
            self.critic = TrunkQ(inputs, actions, width, *heads, action_first=not spec.pixels)
        elif critic is None:
            self.critic = TwinQ(inputs + actions, *heads)
        policy = mlp([width or inputs, *hidden, actions], full_precision=False)
        self.actor = nn.Sequential(*trunk(inputs, width), *policy) if width else policy
        self.target_critic = target_copy(self.critic)
        self.stddev: Tensor
        self.register_buffer("stddev", torch.tensor(config.stddev_start))

    @property
    def critic_heads(self) -> tuple[str, ...]:
        """The critic behind its trunk, if it has one."""
        return ("critic.heads",) if isinstance(self.critic, TrunkQ) else ("critic",)

    @property
    def first_layers(self) -> list[nn.Module]:
        """Those of critic and actor; a trunk counts as one layer."""
        return [*super().first_layers, self.actor[: 3 if self.config.trunk_dim else 1]]

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Critic and actor."""
        return {"critic": self.critic_parameters(), "actor": [*self.actor.parameters()]}

    def policy(self, features: Tensor, skill: Tensor) -> Tensor:
        """(B, A) in [−1, 1]."""
        action: Tensor = self.actor(join(features, skill))
        return action.float().tanh()

    def act(self, obs: Tensor, skill: Tensor, *, deterministic: bool) -> Tensor:
        """The policy, with noise unless deterministic."""
        action = self.policy(self.features(obs), skill)
        return action if deterministic else (action + self.stddev * torch.randn_like(action)).clamp(-1, 1)

    def noisy(self, action: Tensor) -> Tensor:
        """Clipped noise on top of an action; the clamp to [−1, 1] lets gradients through."""
        clip = NOISE_CLIP
        noise = (self.stddev * torch.randn_like(action)).clamp(-clip, clip)
        inside = (action + noise).clamp(-1, 1)
        return action + (inside - action).detach()

    def losses(self, batch: Batch, reward: Tensor, index: int) -> Iterator[Loss]:
        """Critics first, then the actor."""
        loss, metrics, error, features = self.critic_loss(batch, reward)
        yield Loss("critic", loss, metrics, error)
        if self.trains_actor:
            with frozen(self.critic):
                loss, metrics = self.actor_loss(features, batch.skill[: len(features)])
            yield Loss("actor", loss, metrics)

    @fusable
    def critic_loss(self, batch: Batch, reward: Tensor) -> tuple[Tensor, Metrics, Tensor, Tensor]:
        """`regress` on n-step targets."""
        with torch.no_grad():
            features = self.features(batch.next_obs)
            action = self.noisy(self.policy(features, batch.skill))
            target_q = self.target_critic(features, batch.skill, action)  # (2, B)
            target = self.average_views(self.bounds.clamp(reward + batch.discount * target_q.amin(0)))  # (B,)
        return self.regress(batch, target)

    @fusable
    def actor_loss(self, features: Tensor, skill: Tensor) -> tuple[Tensor, Metrics]:
        """The negative value of the policy's actions."""
        action = self.noisy(self.policy(features, skill))
        loss = -self.critic(features, skill, action).amin(0).mean()
        return loss, {"actor_loss": loss.detach()}

    def set_progress(self, steps: float) -> None:
        """The noise decays linearly."""
        c = self.config
        self.stddev.fill_(linear_schedule(c.stddev_start, c.stddev_end, c.stddev_decay_steps, steps))
