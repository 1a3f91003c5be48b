"""The contract of a learner: it acts, and turns (batch, reward) into losses.

The reward arrives as an argument: a learner cannot tell an intrinsic reward from a task's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from voidrl.config import LearnerConfig
from voidrl.fusion import fusable
from voidrl.nets import Encoder, follow
from voidrl.types import Batch, EnvSpec, Metrics


class Loss(NamedTuple):
    """A loss, the optimizer that minimizes it, and what to log."""

    optimizer: str
    value: Tensor
    metrics: Metrics


class Learner(nn.Module):
    """Encoder, critic and, for continuous actions, a policy."""

    Config: ClassVar[type[LearnerConfig]] = LearnerConfig
    actions: ClassVar[Literal["discrete", "continuous"]]
    critic: nn.Module

    def __init__(
        self, spec: EnvSpec, config: LearnerConfig, encoder: Encoder, critic: nn.Module | None, skill_dim: int
    ) -> None:
        """`critic` is the method's, where it makes one; else the learner makes its own."""
        super().__init__()
        self.spec, self.config, self.encoder, self.skill_dim = spec, config, encoder, skill_dim
        if critic is not None:
            self.critic = critic
        self.trains_encoder = True

    def train(self, mode: bool = True) -> Self:
        """As ever, except that an encoder which is not ours to train is not ours to normalize either."""
        super().train(mode)
        self.encoder.train(mode and self.trains_encoder)
        return self

    @property
    def critic_heads(self) -> tuple[str, ...]:
        """Modules that `finetune.heads = "actor"` starts afresh, and their targets: the critic as a whole."""
        return ("critic",)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters of each optimizer by name; `critic` has the encoder's, if it is ours to train."""
        raise NotImplementedError

    def act(self, obs: Tensor, skill: Tensor, *, deterministic: bool) -> Tensor:
        """(B, *obs_shape) → (B,) action numbers or (B, action_dim) in [−1, 1]."""
        raise NotImplementedError

    def losses(self, batch: Batch, reward: Tensor, index: int) -> Iterator[Loss]:
        """Yield each loss in turn; the caller has minimized it before it asks for the next.

        What happens every k updates is decided by `index % k` and not by a counter of the learner's own, so
        that each kind of update can be captured; every such k must be among the learner's `rhythms`.
        """
        raise NotImplementedError

    def after_step(self, index: int) -> None:
        """What follows each update: the targets, where it is their turn."""
        if index % self.config.target_every_updates == 0:
            self.move_targets()

    @fusable
    def move_targets(self) -> None:
        """Every `target_x` follows its x: critic, encoder or what else the learner has."""
        for name, target in self.named_children():
            if name.startswith("target_"):
                online = self.get_submodule(name.removeprefix("target_"))
                follow(target, online, self.config.target_tau)

    @property
    def rhythms(self) -> tuple[int, ...]:
        """Every how many updates something is due: the targets, the actor; with rhythms of its own, more."""
        return self.config.target_every_updates, getattr(self.config, "actor_every_updates", 1)

    @property
    def period(self) -> int:
        """Number of updates before their kinds repeat."""
        return math.lcm(*self.rhythms)

    def kind(self, update: int) -> int:
        """The smallest index at which the same is due as at this update: a period of 8000 has two kinds."""
        due = [update % every == 0 for every in self.rhythms]
        return next(i for i in range(self.period) if [i % every == 0 for every in self.rhythms] == due)

    def set_progress(self, steps: float) -> None:
        """Move schedules (exploration noise) to where they stand after `steps` environment steps."""

    def features(self, obs: Tensor) -> Tensor:
        """Encoded observations, with gradients only if this learner trains the encoder."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trains_encoder):
            features: Tensor = self.encoder(obs)
        return features

    def critic_parameters(self) -> list[nn.Parameter]:
        """The critic's own, and the encoder's if it is ours to train."""
        return [*self.critic.parameters(), *(self.encoder.parameters() if self.trains_encoder else ())]


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """A loss made in here passes gradients through the module and computes none for its weights."""
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
