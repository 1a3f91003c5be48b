"""No encoder: distances are taken between the observations themselves. Vectors only."""

from __future__ import annotations

from torch import Tensor

from voidrl.config import RepresentationConfig
from voidrl.errors import ConfigError
from voidrl.nets import Encoder
from voidrl.nets.observations import visible
from voidrl.representations.base import Representation
from voidrl.types import EnvSpec


class Identity(Representation):
    """f(s) = s."""

    has_encoder = False

    @classmethod
    def make_encoder(cls, spec: EnvSpec, config: RepresentationConfig) -> Encoder | None:
        """None; pixels are refused, since distances between images say little about states."""
        if spec.pixels:
            raise ConfigError(
                f"representation 'identity' cannot be used on {spec.describe()}: it takes vectors; "
                f"use simclr, fixed or learner"
            )
        return None

    def encode(self, obs: Tensor) -> Tensor:
        """The observation itself, without masks of actions."""
        return visible(obs, self.spec)
