"""A random encoder that never learns: the paper's ablation "fixed encoder"."""

from __future__ import annotations

from voidrl.config import RepresentationConfig
from voidrl.nets import Encoder
from voidrl.representations.base import Representation
from voidrl.types import EnvSpec


class Fixed(Representation):
    """An encoder that is initialized at random and frozen."""

    @classmethod
    def make_encoder(cls, spec: EnvSpec, config: RepresentationConfig) -> Encoder | None:
        """A frozen encoder."""
        return Encoder(spec, config.encoder).requires_grad_(False)
