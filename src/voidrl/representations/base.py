"""The contract of a representation: a space in which distances between states mean something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from voidrl.config import RepresentationConfig
from voidrl.nets import Encoder
from voidrl.types import Batch, EnvSpec, Metrics


@dataclass
class Views:
    """A sample of transitions, each read of which is a fresh augmentation."""

    batch: Batch
    """As stored."""
    augment: Callable[[Tensor], Tensor]

    def obs(self) -> Tensor:
        """A new view of s, (B, *obs_shape)."""
        return self.augment(self.batch.obs)

    def next_obs(self) -> Tensor:
        """A new view of s'."""
        return self.augment(self.batch.next_obs)


class Representation(nn.Module):
    """Holds f and, if it trains it, what is needed for that.

    `encode` is what methods see. `loss` is called once per update if `trains_encoder`; its gradient reaches f
    only if the agent's `encoder_owner` is the representation.
    """

    Config: ClassVar[type[RepresentationConfig]] = RepresentationConfig
    trains_encoder: ClassVar[bool] = False
    """Whether `loss` is there to be minimised."""
    takes_learner_encoder: ClassVar[bool] = False
    """Whether f is the learner's encoder rather than one of its own."""

    def __init__(self, spec: EnvSpec, config: RepresentationConfig, encoder: Encoder | None) -> None:
        super().__init__()
        self.spec, self.config, self.encoder = spec, config, encoder

    @classmethod
    def make_encoder(cls, spec: EnvSpec, config: RepresentationConfig) -> Encoder | None:
        """The network f; None where the observation is the representation."""
        return Encoder(spec.obs_shape, config.encoder)

    @property
    def dim(self) -> int:
        """Width of z."""
        return self.encoder.feature_dim if self.encoder is not None else self.spec.obs_shape[0]

    def encode(self, obs: Tensor) -> Tensor:
        """f(s): (B, *obs_shape) → (B, dim)."""
        assert self.encoder is not None
        z: Tensor = self.encoder(obs)
        return z

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        """What trains f, and what to log about it."""
        raise TypeError(f"{type(self).__name__} trains nothing")
