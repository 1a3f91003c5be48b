"""A frozen pre-trained encoder and a new one: the features of both, side by side.

After progressive networks (Rusu et al. 2016), without their lateral connections between hidden layers: the
columns meet in the heads, which read both. What was pre-trained cannot be forgotten, and the new column has
to learn only what the frozen one does not have.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from voidrl.config import EncoderConfig
from voidrl.nets.encoder import Encoder
from voidrl.nets.layers import join
from voidrl.types import EnvSpec, Layout


class ProgressiveEncoder(Encoder):
    """A new encoder that carries a frozen one; features are the frozen one's, then its own.

    Args:
        spec: What networks read.
        config: Of the new encoder.
        frozen: The pre-trained encoder, which is frozen here for good. Targets of this encoder share it.
    """

    def __init__(self, spec: EnvSpec, config: EncoderConfig, frozen: Encoder) -> None:
        super().__init__(spec, config)
        self.frozen = frozen.requires_grad_(False)
        frozen.is_constant = True
        self.feature_dim += frozen.feature_dim
        if frozen.layout != self.layout:
            self.layout = Layout()  # plain images, which both columns read

    def train(self, mode: bool = True) -> Self:
        """Keep the frozen column in eval mode, so that neither spectral norm nor BatchNorm moves."""
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, obs: Tensor) -> Tensor:
        """Observations of B states → (B, feature_dim), the frozen column's features first."""
        with torch.no_grad():
            known = self.frozen(obs)
        return join(known, super().forward(obs))
