"""Several losses on one encoder: the weighted sum of the losses of other representations.

Contrast tells states apart, self-prediction (`spr`) follows what happens next, inverse dynamics (`inverse`)
keeps what the agent controls: none of them does all three. Each part is the representation of that name
with the shared encoder and heads of its own; all read the same transitions, each in fresh views. A loss with
weight 0 is not built.

Parts with a loss for each transition (`spr`, `atc`, `sgi`) keep it; where others have one for the batch, each
transition has that loss of its batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from voidrl import dist
from voidrl.config import EncoderConfig, RepresentationConfig, require
from voidrl.nets import Encoder
from voidrl.representations.atc import ATC
from voidrl.representations.base import Representation, Views
from voidrl.representations.icm import ICM
from voidrl.representations.sgi import SGI, FeatureSPR
from voidrl.representations.simclr import SimCLR
from voidrl.types import EnvSpec, Metrics

LossName = Literal["simclr", "atc", "spr", "icm", "inverse", "sgi"]
PARTS: dict[str, tuple[type[Representation], dict[str, Any]]] = {
    "simclr": (SimCLR, {}),
    "atc": (ATC, {}),
    # Without RL, predictions of an encoder's own output need a slow target.
    "spr": (FeatureSPR, {"momentum": 0.99}),
    "icm": (ICM, {"hidden_dim": 512}),
    "inverse": (ICM, {"hidden_dim": 512, "forward_weight": 0.0}),
    "sgi": (SGI, {}),
}
"""The representation of each loss, and the fields in which it differs from the defaults."""


@dataclass(frozen=True)
class CombinedConfig(RepresentationConfig):
    """A weighted sum of losses."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """The encoder, which all losses train."""
    losses: tuple[LossName, ...] = ("simclr", "spr", "inverse")
    """Names: `simclr`, `atc`, `spr`, `icm` (forward and inverse dynamics), `inverse` (inverse dynamics only)
    and `sgi` (three losses of its own)."""
    loss_weights: tuple[float, ...] = ()
    """The weight of each loss, in the order of `losses`; () for 1 each. A loss with weight 0 is left out."""

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

    @property
    def weight_of(self) -> dict[str, float]:
        """The losses with a weight above 0."""
        weights = self.loss_weights or (1.0,) * len(self.losses)
        return {name: weight for name, weight in zip(self.losses, weights, strict=True) if weight}

    def part(self, loss: str) -> RepresentationConfig:
        """The config of a part."""
        cls, changes = PARTS[loss]
        return cls.Config(name=loss, encoder=self.encoder, **changes)


class Combined(Representation):
    """An encoder trained by several losses at once."""

    Config = CombinedConfig
    has_loss = True

    def __init__(self, spec: EnvSpec, config: CombinedConfig, encoder: Encoder | None) -> None:
        super().__init__(spec, config, encoder)
        self.config: CombinedConfig = config
        self.parts = nn.ModuleDict(
            {name: PARTS[name][0](spec, config.part(name), encoder) for name in config.weight_of}
        )

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        """The weighted sum: a scalar, or (B,) if a part has a loss for each transition."""
        total: Tensor | None = None
        metrics: Metrics = {}
        for name, weight in self.config.weight_of.items():
            value, logged = self.parts[name].loss(views)  # type: ignore[operator]
            if value.ndim == 0 and dist.current().is_distributed:  # the whole batch's, of each transition
                value = dist.all_gather(value[None]).mean()
            total = weight * value if total is None else total + weight * value
            # Parts may measure the same: `spr` and `sgi` both have an error of predictions.
            metrics |= {f"{name}_{key}" if key in metrics else key: value for key, value in logged.items()}
        assert total is not None
        return total, metrics

    def after_update(self) -> None:
        """Move the parts' momentum encoders."""
        for part in self.parts.values():
            part.after_update()  # type: ignore[operator]
