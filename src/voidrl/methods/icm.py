"""ICM: the error with which the representation predicts the next state (Pathak et al. 2017).

The forward model belongs to the representation `icm`, whose loss trains it together with f; this method reads
it and trains nothing. The reward is log(1 + ‖ẑ′ − z′‖), as in URLB; the paper's is η/2 · ‖ẑ′ − z′‖².
"""

from __future__ import annotations

from torch import Tensor

from voidrl.config import MethodConfig
from voidrl.errors import ConfigError
from voidrl.methods.base import About, Latents, Method
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec


class ICMReward(Method):
    """Rewards transitions that the forward model predicts badly."""

    about = About("knowledge", 2017, "Pathak et al., arXiv:1705.05363")

    def __init__(self, spec: EnvSpec, config: MethodConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
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
        """The forward error, as a logarithm."""
        predict = latents.representation.prediction_error  # type: ignore[union-attr]
        return predict(latents.z, batch.action, latents.z_next).log1p()  # type: ignore[operator, no-any-return]
