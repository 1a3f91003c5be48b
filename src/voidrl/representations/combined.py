"""Several losses on one f: a weighted sum of those of other representations.

Contrast tells states apart, self-prediction (`spr`) follows what happens next, inverse dynamics (`inverse`)
keeps what the agent controls: none of them alone does all three. Each part is the representation of that name
with the shared encoder and heads of its own; all read the same transitions, each in fresh views. A loss with
weight 0 is not built.

Parts with a loss for each transition (`spr`, `atc`, `sgi`) keep it; where others have one for the batch, each
transition has that loss of its batch.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from voidrl import ranks
from voidrl.config import EncoderConfig, RepresentationConfig, require, require_positive
from voidrl.nets import Encoder
from voidrl.representations.atc import ATC
from voidrl.representations.base import Representation, Views
from voidrl.representations.icm import ICM
from voidrl.representations.sgi import SGI
from voidrl.representations.simclr import SimCLR
from voidrl.representations.spr import SPR
from voidrl.types import EnvSpec, Metrics

LossName = Literal["simclr", "atc", "spr", "icm", "inverse", "sgi"]
PARTS: dict[str, tuple[type[Representation], dict[str, Any]]] = {
    "simclr": (SimCLR, {}),
    "atc": (ATC, {}),
    "spr": (SPR, {}),
    "icm": (ICM, {}),
    "inverse": (ICM, {"forward_weight": 0.0}),
    "sgi": (SGI, {}),
}
"""The representation of each loss, and the fields in which it differs from its defaults."""


@dataclass(frozen=True)
class CombinedConfig(RepresentationConfig):
    """A weighted sum of losses. Fields of parts that are not here have their defaults."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """The encoder f, which all losses train."""
    losses: tuple[LossName, ...] = ("simclr", "spr", "inverse")
    """Which: `simclr`, `atc`, `spr`, `icm` (forward and inverse dynamics), `inverse` (inverse dynamics alone)
    and `sgi` (three losses of its own)."""
    loss_weights: tuple[float, ...] = ()
    """The weight of each loss, in the order of `losses`; () for 1 each. A loss with weight 0 is left out."""
    prediction_steps: int = 5
    """K, the steps that `spr` and `sgi` predict ahead."""
    latents: Literal["stack", "features"] = "features"
    """Where they predict: in the feature maps of the convolutions, or in z, which they then train too. The
    same with feature_dim = hidden_dim = 0."""
    momentum: float = 0.99
    """Momentum of the target encoders of `spr`, `sgi` and `atc`. Without RL, predictions of an encoder's own
    output need a slow target; 0, as published for SPR next to RL, uses the encoder itself."""
    delta_steps: int = 3
    """Steps between the two states of a pair of `atc`."""
    temperature: float = 0.1
    """τ of `simclr`."""
    hidden_dim: int = 512
    """Hidden width of the parts' networks, except for the projection of `simclr`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names, weights = self.losses, self.loss_weights
        once = bool(names) and len(set(names)) == len(names)
        require(once, "losses", names, f"some of {', '.join(PARTS)}, each once")
        same = len(weights) in (0, len(names))
        require(same, "loss_weights", weights, f"one weight for each of the {len(names)} losses, or ()")
        for weight in weights:
            require(0 <= weight < math.inf, "loss_weights", weight, "numbers from 0 on")
        require(not weights or any(weights), "loss_weights", weights, "at least one above 0")
        require_positive(self, "prediction_steps", "delta_steps", "temperature", "hidden_dim")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "a number in [0, 1)")

    @property
    def weight_of(self) -> dict[str, float]:
        """The losses with a weight above 0."""
        weights = self.loss_weights or (1.0,) * len(self.losses)
        return {name: weight for name, weight in zip(self.losses, weights, strict=True) if weight}

    def part(self, loss: str) -> RepresentationConfig:
        """The config of a part: what is set here, else what the part has by default."""
        cls, fixed = PARTS[loss]
        common = {f.name for f in dataclasses.fields(RepresentationConfig)}
        theirs = {f.name for f in dataclasses.fields(cls.Config)} - common
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name in theirs}
        return cls.Config(name=loss, encoder=self.encoder, **given | fixed)


class Combined(Representation):
    """f is trained by several losses at once."""

    Config = CombinedConfig
    has_loss = True

    def __init__(self, spec: EnvSpec, config: CombinedConfig, encoder: Encoder | None) -> None:
        super().__init__(spec, config, encoder)
        self.config: CombinedConfig = config
        self.parts = nn.ModuleDict(
            {name: PARTS[name][0](spec, config.part(name), encoder) for name in config.weight_of}
        )

    def part(self, name: str) -> Representation:
        """The representation that computes a loss."""
        part = self.parts[name]
        assert isinstance(part, Representation)
        return part

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        """The weighted sum: a scalar, or (B,) if a part has a loss for each transition."""
        total: Tensor | None = None
        metrics: Metrics = {}
        for name, weight in self.config.weight_of.items():
            value, logged = self.part(name).loss(views)
            if value.ndim == 0 and ranks.current().is_distributed:  # the whole batch's, of each transition
                value = ranks.all_gather(value[None]).mean()
            total = weight * value if total is None else total + weight * value
            # Parts may measure the same: `spr` and `sgi` both have an error of predictions.
            metrics |= {f"{name}_{key}" if key in metrics else key: value for key, value in logged.items()}
        assert total is not None
        return total, metrics

    def after_step(self) -> None:
        """Move the parts' momentum encoders."""
        for name in self.parts:
            self.part(name).after_step()
