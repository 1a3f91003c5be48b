"""ATC: a state must find the state a few steps later among those of the batch (Stooke et al. 2021).

The code of an augmented s, changed by a residual MLP and a matrix W, must be most similar to the code of the
augmented state `delta_steps` later, which comes from a momentum copy of the encoder. A pair across the end of
an episode is left out of the loss; as in the public code, its second state stays among the candidates of the
other pairs.

Differences from the paper: the code ends in LayerNorm and tanh, where ATC's is linear; the pairs of a batch
are drawn one by one, where ATC draws 32 runs of 16 on Atari; the learning rate rises but does not decay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor, nn

from voidrl import dist
from voidrl.config import Count, EncoderConfig, RepresentationConfig
from voidrl.config.checks import between
from voidrl.kernels.fusion import fusable
from voidrl.nets import Encoder, info_nce, mlp, polyak_update, target_copy
from voidrl.nets.spectral import full_precision
from voidrl.representations.base import Representation, Views
from voidrl.types import EnvSpec, Metrics

MOMENTUM = 0.99  # of the encoder of the later state, as in the public code
HIDDEN_DIM = 512  # of the residual MLP, as in the public code


@dataclass(frozen=True)
class ATCConfig(RepresentationConfig):
    """InfoNCE between a state and a later one, with a momentum encoder."""

    encoder: EncoderConfig = field(default_factory=lambda: EncoderConfig(feature_dim=256, activation="relu"))
    """The encoder, whose output is the code (Atari 256, DMControl 128)."""
    max_grad_norm: float = 10.0
    """The gradients of the encoder and its heads are clipped to this norm; 0 turns clipping off."""
    warmup_updates: Count = 1000
    """Updates over which the learning rate rises from 0."""
    delta_steps: Annotated[int, between(1, 1000)] = 3
    """Steps between the two states of a pair (Atari 3, DMControl 1)."""


class ATC(Representation):
    """An encoder trained by contrast over time."""

    Config = ATCConfig
    has_loss = True

    def __init__(self, spec: EnvSpec, config: ATCConfig, encoder: Encoder) -> None:
        super().__init__(spec, config, encoder)
        self.config: ATCConfig = config
        self.anchor = mlp([self.dim, HIDDEN_DIM, self.dim])
        self.bilinear = nn.Parameter(torch.empty(self.dim, self.dim))
        nn.init.uniform_(self.bilinear, -(self.dim**-0.5), self.dim**-0.5)
        self.target_encoder = target_copy(encoder)

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        """InfoNCE between fresh views of s and of the state `delta_steps` later."""
        return self.contrast(*views.later(self.config.delta_steps))

    @fusable
    def contrast(self, obs: Tensor, later: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
        """The (B,) losses of pairs (B, *obs_shape), whose mean is that over the pairs of the (B,) mask."""
        code = self.encode(obs)  # (B, dim)
        with torch.no_grad(), full_precision(later, unless=self.spec.pixels):
            positive = self.target_encoder(later)  # (B, dim)
        anchor = code + self.anchor(code)
        losses, hits = info_nce(anchor, positive, bilinear=self.bilinear)
        # The mean is taken over the pairs of all ranks; it is 0 without a valid one.
        share = mask / dist.average(mask.mean()).clamp(min=1 / (len(mask) * dist.current().size))
        loss = losses * share
        metrics = {"atc_loss": loss.detach().mean(), "atc_accuracy": (hits * share).mean()}
        return loss, {**metrics, "atc_valid": mask.mean(), "z_std": code.detach().std(0).mean()}

    def after_update(self) -> None:
        """Move the momentum encoder."""
        assert self.encoder is not None
        polyak_update(self.target_encoder, self.encoder, 1 - MOMENTUM)
