"""SPR: the learner's encoder also predicts its own future latents (Schwarzer et al. 2021).

A transition model rolls the latent of s forward through the K actions that were taken. Each predicted latent,
projected, must point in the direction of the encoder's projection of the state that was really reached. The
loss is added to the learner's, so that both train the encoder.

Differences from the paper: the projection is a layer of its own, where SPR uses the first layers of the Q
heads; the transition model has no BatchNorm, as in Dopamine's version; latents are rescaled to [0, 1] for the
model only, where SPR's Q heads read them rescaled too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.config import RepresentationConfig, require, require_positive
from voidrl.errors import ConfigError
from voidrl.kernels.fusion import fusable
from voidrl.nets import (
    Conv,
    Encoder,
    FullPrecisionLinear,
    Linear,
    action_vectors,
    init_orthogonal,
    mlp,
    polyak_update,
    rescale,
    target_copy,
)
from voidrl.representations.base import Representation, Views
from voidrl.types import EnvSpec, Metrics


@dataclass(frozen=True)
class SPRConfig(RepresentationConfig):
    """Predict the latents of the next K states."""

    learning_rate: float = 1e-4
    """Learning rate of transition model, projection and predictor; the encoder has the learner's."""
    batch_size: int = 0
    """Sequences in one update; 0 starts them at the learner's own transitions."""
    auxiliary: bool = True
    """Keep training the encoder by this loss during fine-tuning and when training from scratch."""
    loss_weight: float = 5.0
    """Weight of this loss next to the learner's."""
    prediction_steps: int = 5
    """K."""
    hidden_dim: int = 512
    """Hidden width of the transition model for vectors."""
    projection_dim: int = 256
    """Width of the projection."""
    momentum: float = 0.0
    """Momentum of the target encoder; 0, as published with augmentation, uses the encoder itself, without
    gradients (0.99 without augmentation)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "prediction_steps", "hidden_dim", "projection_dim")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "a number in [0, 1)")


class SPR(Representation):
    """The learner's encoder, trained by self-prediction as well."""

    Config = SPRConfig
    has_loss = True
    uses_learner_encoder = True

    def __init__(self, spec: EnvSpec, config: SPRConfig, encoder: Encoder) -> None:
        super().__init__(spec, config, encoder)
        self.config: SPRConfig = config
        if not any(True for _ in encoder.parameters()):
            raise ConfigError(
                f"representation 'spr' cannot be used on {spec.describe()} with learner.encoder.hidden_dim = "
                f"0 and feature_dim = 0: there is no encoder to train; set one, such as feature_dim = 50"
            )
        actions = spec.num_actions or spec.action_dim
        with torch.no_grad():
            shape = self._trained_part(encoder)(torch.zeros(1, *spec.obs_shape)).shape[1:]
        self.transition = Transition(tuple(shape), actions, config.hidden_dim)
        self.projection = Linear(shape.numel(), config.projection_dim)
        self.predictor = FullPrecisionLinear(config.projection_dim, config.projection_dim)
        self.projection.apply(init_orthogonal)
        self.predictor.apply(init_orthogonal)
        if config.momentum:
            self.target_encoder = target_copy(encoder)
            self.target_projection = target_copy(self.projection)

    def _trained_part(self, encoder: nn.Module) -> nn.Module:
        """Convolutions, whose latents have a place for everything; for vectors the whole encoder."""
        part = encoder.stack if self.spec.pixels else encoder
        assert isinstance(part, nn.Module)
        return part

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        """The error of the predictions along K steps."""
        return self.predict(*views.sequence(self.config.prediction_steps))

    @fusable
    def predict(self, obs: Tensor, action: Tensor, mask: Tensor) -> tuple[Tensor, Metrics]:
        """The loss over (K + 1, B, *obs_shape), (K, B, …) actions and the (K, B) mask of valid steps."""
        assert self.encoder is not None
        momentum = bool(self.config.momentum)
        with torch.no_grad():
            encoder = self.target_encoder if momentum else self.encoder
            projection = self.target_projection if momentum else self.projection
            reached = rescale(self._trained_part(encoder)(obs[1:].flatten(0, 1)))
            target = F.normalize(projection(reached.flatten(1)).float(), dim=-1)
            target = target.unflatten(0, mask.shape)  # (K, B, projection_dim)
        latent = rescale(self._trained_part(self.encoder)(obs[0]))
        errors = []
        for k in range(len(mask)):
            latent = self.transition(latent, action_vectors(self.spec, action[k]))
            predicted = self.predictor(self.projection(latent.flatten(1)))
            cosine = (F.normalize(predicted.float(), dim=-1) * target[k]).sum(-1)  # (B,)
            errors.append((2 - 2 * cosine) * mask[k])
        loss = torch.stack(errors).mean()
        return loss, {"spr_loss": loss.detach()}

    def after_step(self) -> None:
        """Move the target encoder, if there is one."""
        if self.config.momentum:
            assert self.encoder is not None
            polyak_update(self.target_encoder, self.encoder, 1 - self.config.momentum)
            polyak_update(self.target_projection, self.projection, 1 - self.config.momentum)


class Transition(nn.Module):
    """The latent after an action: two convolutions for (C, H, W), two linear layers for (d,)."""

    def __init__(self, shape: tuple[int, ...], actions: int, hidden_dim: int) -> None:
        super().__init__()
        self.spatial = len(shape) == 3
        if self.spatial:
            channels = shape[0]
            layers = [Conv(channels + actions, channels, 3, padding=1), nn.ReLU()]
            self.layers = nn.Sequential(*layers, Conv(channels, channels, 3, padding=1), nn.ReLU())
            self.layers.apply(init_orthogonal)
        else:
            self.layers = mlp([shape[0] + actions, hidden_dim, shape[0]])

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        """(B, *shape), (B, A) → (B, *shape)."""
        if self.spatial:  # the action as constant planes
            action = action[:, :, None, None].expand(-1, -1, *latent.shape[2:])
        return rescale(self.layers(torch.cat([latent, action.to(latent.dtype)], 1)))
