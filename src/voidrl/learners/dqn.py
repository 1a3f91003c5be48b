"""DQN for discrete actions: double, dueling, n-step, ε-greedy (DrQ's learner on Atari)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.config import Count, EncoderConfig, LearnerConfig, require
from voidrl.kernels.fusion import fusable
from voidrl.learners.base import Learner, linear_schedule
from voidrl.nets import DuelingQ, Encoder, target_copy
from voidrl.types import Batch, EnvSpec, Loss, Metrics


@dataclass(frozen=True)
class DQNConfig(LearnerConfig):
    """Q-learning with a target network."""

    encoder: EncoderConfig = field(default_factory=lambda: EncoderConfig(activation="relu", feature_dim=0))
    """The learner's own encoder; by default the convolutions alone, as in Atari networks."""
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
    epsilon_start: float = 1.0
    """Probability of a random action at the start."""
    epsilon_end: float = 0.05
    """Probability of a random action after the decay."""
    epsilon_decay_steps: Count = 2500
    """Environment steps of the decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epsilon_start", "epsilon_end"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "a probability in [0, 1]")
        require(self.epsilon_decay_steps >= 0, "epsilon_decay_steps", self.epsilon_decay_steps, "0 or more")


class DQN(Learner):
    """Acts by the highest Q value."""

    Config = DQNConfig
    actions = "discrete"

    def __init__(
        self, spec: EnvSpec, config: DQNConfig, encoder: Encoder, critic: nn.Module | None, skill_dim: int
    ) -> None:
        super().__init__(spec, config, encoder, critic, skill_dim)
        self.config: DQNConfig = config
        inputs = encoder.feature_dim + skill_dim
        if critic is None:
            self.critic = DuelingQ(
                inputs, spec.num_actions, config.hidden_dim, config.hidden_layers, config.dueling
            )
        self.target_encoder, self.target_critic = target_copy(encoder), target_copy(self.critic)
        self.epsilon: Tensor
        self.register_buffer("epsilon", torch.tensor(config.epsilon_start))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """One optimizer."""
        return {"critic": self.critic_parameters()}

    def act(self, obs: Tensor, skill: Tensor, *, deterministic: bool) -> Tensor:
        """Greedy if deterministic, else ε-greedy."""
        greedy: Tensor = self.critic(self.features(obs), skill).argmax(-1)  # (B,)
        if deterministic:
            return greedy
        anything = torch.randint_like(greedy, self.spec.num_actions)
        return torch.where(torch.rand(greedy.shape, device=greedy.device) < self.epsilon, anything, greedy)

    def losses(self, batch: Batch, reward: Tensor, index: int) -> Iterator[Loss]:
        """One loss."""
        yield Loss("critic", *self.critic_loss(batch, reward))

    @fusable
    def critic_loss(self, batch: Batch, reward: Tensor) -> tuple[Tensor, Metrics, Tensor]:
        """Huber loss of the n-step double-Q error; also the error of each transition."""
        with torch.no_grad():
            target_q = self.target_critic(self.target_encoder(batch.next_obs), batch.skill)  # (B, A)
            chooser = (
                self.critic(self.features(batch.next_obs), batch.skill) if self.config.double else target_q
            )
            value = target_q.gather(1, chooser.argmax(-1, keepdim=True)).squeeze(1)
            target = self.average_views(reward + batch.discount * value)  # (B,)
        q = self.critic(self.features(batch.obs), batch.skill).gather(1, batch.action[:, None]).squeeze(1)
        loss = (batch.weight * F.smooth_l1_loss(q, target, reduction="none")).mean()
        metrics = {"critic_loss": loss.detach(), "q_mean": q.detach().mean(), "q_target": target.mean()}
        return loss, metrics, (q - target).detach().abs()

    def set_progress(self, steps: float) -> None:
        """ε decays linearly."""
        c = self.config
        self.epsilon.fill_(linear_schedule(c.epsilon_start, c.epsilon_end, c.epsilon_decay_steps, steps))
