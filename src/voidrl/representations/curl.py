"""CURL: a contrastive loss on the learner's own encoder, in every phase (Laskin, Srinivas & Abbeel 2020).

A view of a state must find the other view of the same state among those of the batch. Queries come from the
learner's encoder, keys from a momentum copy of it; similarity is bilinear, q W k. The loss is added to the
learner's, so that both train the encoder.

As in the public Atari code, every transition of a batch has the mean contrastive loss of the batch: the
weights of a prioritized replay multiply it, and it is a part of the priorities.

Differences: the projection's weights are orthogonal at first, where the Atari code draws all of them from
[0, 1]; contrast and RL share one step of Adam, where the DMControl code makes two steps one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from voidrl import dist
from voidrl.config import OptionalSize
from voidrl.errors import ConfigError
from voidrl.kernels.fusion import fusable
from voidrl.nets import Encoder, info_nce, polyak_update, target_copy
from voidrl.nets.layers import FullPrecisionLayerNorm, FullPrecisionLinear, Linear, init_orthogonal
from voidrl.representations.base import AuxiliaryConfig, Representation, Views, require_targets
from voidrl.types import EnvSpec, Metrics

if TYPE_CHECKING:
    from voidrl.learners.base import Learner


MOMENTUM = 0.999  # of the copies of encoder and projection, as in the public Atari code
LOGIT_SCALE = 0.1  # of projections, as in the public Atari code; features themselves have 1, as on DMControl


@dataclass(frozen=True)
class CURLConfig(AuxiliaryConfig):
    """InfoNCE between two views, with a momentum encoder."""

    projection_dim: OptionalSize = 128
    """Width of queries and keys, half that of the projection's hidden layer; 0 compares the features
    themselves, as on DMControl."""


class CURL(Representation):
    """The learner's encoder, trained by contrast as well."""

    Config = CURLConfig
    has_loss = True
    uses_learner_encoder = True
    raises_priority = True

    def __init__(self, spec: EnvSpec, config: CURLConfig, encoder: Encoder) -> None:
        super().__init__(spec, config, encoder)
        self.config: CURLConfig = config
        if not spec.pixels:
            raise ConfigError(
                f"representation 'curl' cannot be used on {spec.describe()}: it contrasts augmented images; "
                f"use spr, icm or identity"
            )
        self.projection: nn.Module = nn.Identity()
        if config.projection_dim:
            hidden = 2 * config.projection_dim
            norm = partial(FullPrecisionLayerNorm, elementwise_affine=False)
            layers = [Linear(self.dim, hidden), norm(hidden), nn.ReLU()]
            last = FullPrecisionLinear(hidden, config.projection_dim)
            self.projection = nn.Sequential(*layers, last, norm(config.projection_dim))
            self.projection.apply(init_orthogonal)
        width = config.projection_dim or self.dim
        self.bilinear = nn.Parameter(torch.rand(width, width))
        self.target_projection = target_copy(self.projection)
        if config.target == "own":
            self.target_encoder = target_copy(encoder)

    @property
    def reads_learner(self) -> bool:
        """True if the learner's target encoder makes the keys."""
        return self.config.target == "learner"

    def size_heads(self, learner: Learner) -> None:
        """Keys may come from the learner's target encoder."""
        if self.reads_learner:
            require_targets(learner, "target_encoder")

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        """InfoNCE between two fresh views, the mean for each transition."""
        anchor, positive = views.obs(times=2).chunk(2)
        return self.contrast(anchor, positive, views.learner)

    @fusable
    def contrast(
        self, anchor: Tensor, positive: Tensor, learner: Learner | None = None
    ) -> tuple[Tensor, Metrics]:
        """The (B,) losses of two views (B, *obs_shape) of the same states."""
        query = self.projection(self.encode(anchor))  # (B, width)
        with torch.no_grad():
            owner = self if learner is None else learner
            target_encoder: nn.Module = owner.target_encoder  # type: ignore[assignment]
            key = self.target_projection(target_encoder(positive))  # (B, width)
        scale = LOGIT_SCALE if self.config.projection_dim else 1.0
        losses, hits = info_nce(query, key, bilinear=self.bilinear, scale=scale)
        loss = dist.all_gather(losses).mean()  # the whole batch's, of each transition
        # A copy: next to `detach` of the same memory, torch.compile (2.11 to 2.13) gives a view no gradient.
        return loss.repeat(len(hits)), {"curl_loss": loss.detach(), "curl_accuracy": hits.mean()}

    def after_update(self) -> None:
        """Move the copies."""
        tau = 1 - MOMENTUM
        if self.config.target == "own":
            assert self.encoder is not None
            polyak_update(self.target_encoder, self.encoder, tau)
        polyak_update(self.target_projection, self.projection, tau)
