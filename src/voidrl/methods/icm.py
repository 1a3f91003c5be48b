"""ICM: the error with which the representation predicts the next state (Pathak et al. 2017).

The forward model belongs to the representation `icm`, whose loss trains it together with f; this method reads
it and trains nothing. The reward is log(1 + ‖ẑ′ − z′‖), as in URLB; with `form = "squared"` it is the paper's
η/2 · ‖ẑ′ − z′‖².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from voidrl.config import MethodConfig, require_positive
from voidrl.errors import ConfigError
from voidrl.methods.base import About, Latents, Method
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec


@dataclass(frozen=True)
class ICMRewardConfig(MethodConfig):
    """r = log(1 + ‖ẑ′ − z′‖), or η/2 · ‖ẑ′ − z′‖²."""

    form: Literal["log", "squared"] = "log"
    """`log` (URLB) or `squared` (the paper)."""
    eta: float = 0.01
    """η, the scale of the squared form."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "eta")


class ICMReward(Method):
    """Rewards transitions that the forward model predicts badly."""

    Config = ICMRewardConfig
    about = About(
        family="knowledge",
        year=2017,
        reward="error of a forward model in a space learned by inverse dynamics",
        paper="Pathak et al., arXiv:1705.05363",
    )
    splits_over_ranks = True

    def __init__(self, spec: EnvSpec, config: ICMRewardConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.config: ICMRewardConfig = config
        if not hasattr(representation, "prediction_error"):
            raise ConfigError(
                f"method 'icm' cannot be used with representation {representation.config.name!r}, which has "
                f"no prediction_error: use representation icm, or one of your own that has it"
            )
        if getattr(representation.config, "forward_weight", 1) == 0:
            raise ConfigError(
                "method 'icm' cannot be used with representation.forward_weight = 0, which leaves out the "
                "forward model whose error it rewards: expected a number above 0"
            )

    @classmethod
    def default_representation(cls, spec: EnvSpec) -> str:
        """The one with the forward model."""
        return "icm"

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The forward error, as a logarithm or squared."""
        error: Tensor = self.representation.prediction_error(latents.z, batch.action, latents.z_next)  # type: ignore[operator]
        return error.log1p() if self.config.form == "log" else self.config.eta / 2 * error.square()
