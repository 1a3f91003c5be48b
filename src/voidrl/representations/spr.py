"""SPR: the learner's encoder also predicts its own future latents (Schwarzer et al. 2021; SR-SPR, BBF).

A transition model rolls the latent of s forward through the K actions that were taken. Each predicted latent,
projected, must point in the direction of the encoder's projection of the state that was really reached. The
loss is added to the learner's, so that both train the encoder. As in the public code, a transition's loss is
the mean over k = 1 … K, in which steps after the end count 0; k = 0, where nothing is predicted, is left out.

Differences from the paper: the projection may be a layer of its own, which works with every learner; the last
state before an end is a target too, which the public code masks; with momentum 0 targets come from the
encoder of this update, in the public code from that of the update before; with a trunk behind the
convolutions, it is left to other losses.

Alone, `spr` works on the learner's encoder. As a part of `combined` or `sgi` it works on theirs and
predicts the output of its trunk (`voidrl.representations.sgi.FeatureSPR`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl import dist
from voidrl.config import require
from voidrl.config.checks import Limit
from voidrl.errors import ConfigError
from voidrl.kernels.fusion import fusable
from voidrl.nets import Encoder, FullPrecisionLinear, Linear, polyak_update, target_copy
from voidrl.nets.encoder import CHANNELS
from voidrl.nets.layers import Conv, action_vectors, in_bf16, init_orthogonal, mlp, rescale, unit_vectors
from voidrl.nets.observations import input_shape
from voidrl.nets.spectral import full_precision
from voidrl.representations.base import AuxiliaryConfig, Representation, Views, require_targets
from voidrl.types import EnvSpec, Layout, Metrics

if TYPE_CHECKING:
    from voidrl.learners.base import Learner

PREDICTION_STEPS = 5  # K, as in the paper
HIDDEN_DIM = 512  # of the transition model for vectors


@dataclass(frozen=True)
class SPRConfig(AuxiliaryConfig):
    """Predict the latents of the next K states."""

    loss_weight: float = 5.0
    """Weight of this loss, where the learner's has 1."""
    batch_norm: bool = False
    """BatchNorm between the convolutions of the transition model (SPR; SR-SPR and BBF have none)."""
    projection: Literal["own", "head"] = "own"
    """A layer of its own, or the first layers of the critic's streams, as in SPR, SR-SPR and BBF."""
    momentum: Annotated[float, Limit(lambda value: 0 <= value < 1, "a number in [0, 1)")] = 0.0
    """Momentum of slow copies of encoder and projection, which give the targets; 0: the networks themselves,
    without gradients, as published with augmentation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.projection == "head":
            wanted = "0 with projection = 'head', whose slow copy is the learner's: use target = 'learner'"
            require(self.momentum == 0, "momentum", self.momentum, wanted)


class SPR(Representation):
    """The learner's encoder, trained by self-prediction as well."""

    Config = SPRConfig
    has_loss = True
    uses_learner_encoder = True
    resets_partly: ClassVar[tuple[str, ...]] = (*Representation.resets_partly, "transition")
    predicts_features: ClassVar[bool] = False
    """Whether latents of images are the encoder's features instead of its feature maps; with numbers, which
    are no part of feature maps, they always are."""
    projection_dim: ClassVar[int] = 256
    """Width of a projection of its own."""

    def __init__(self, spec: EnvSpec, config: SPRConfig, encoder: Encoder) -> None:
        super().__init__(spec, config, encoder)
        self.config: SPRConfig = config
        if not any(True for _ in encoder.parameters()):
            raise ConfigError(
                f"representation {config.name!r} cannot be used on {spec.describe()} with an encoder of "
                f"hidden_dim = 0 and feature_dim = 0: there is no encoder to train; set one, such as "
                f"feature_dim = 50"
            )
        # Heads read latents as they are in RL; a projection of its own reads them rescaled.
        self.rescales = encoder.rescales or config.projection == "own"
        self._features = encoder.pixels and self.predicts_features and len(encoder.trunk) > 0
        self._features |= encoder.mixed
        with torch.no_grad():
            shape = self.latent(torch.zeros(1, *input_shape(spec))).shape[1:]
        self.latent_shape = tuple(shape)
        if config.batch_norm and len(shape) != 3:
            raise ConfigError(
                f"representation.batch_norm = True cannot be used on {spec.describe()} with latents of shape "
                f"{tuple(shape)}: expected the feature maps of convolutions; use False"
            )
        actions = spec.num_actions or spec.action_dim
        self.transition = Transition(self.latent_shape, actions, config.batch_norm, self.rescales)
        if config.projection == "own":
            self.projection = Linear(shape.numel(), self.projection_dim).apply(init_orthogonal)
            self._make_predictor(self.projection_dim)
            if config.momentum:
                self.target_projection = target_copy(self.projection)
        if config.momentum and config.target == "own":
            self.target_encoder = target_copy(encoder)

    def _make_predictor(self, width: int) -> None:
        self.predictor = FullPrecisionLinear(width, width).apply(init_orthogonal)

    @property
    def reads_learner(self) -> bool:
        """True if the learner's critic is the projection, or its target network the target."""
        return self.config.projection == "head" or self.config.target == "learner"

    def size_heads(self, learner: Learner) -> None:
        """The learner's critic may be the projection, and its target network the target."""
        head = self.config.projection == "head"
        if head:
            if not hasattr(getattr(learner, "critic", None), "project"):
                raise ConfigError(
                    f"representation.projection = 'head' cannot be used with learner "
                    f"{learner.config.name!r}, whose critic has no method `project`: use 'own'"
                )
            self._make_predictor(int(learner.critic.projection_dim))  # type: ignore[arg-type]
        if self.config.target == "learner":
            require_targets(learner, "target_encoder", *(["target_critic"] if head else []))

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        """The error of the predictions along K steps."""
        return self.predict(*views.sequence(PREDICTION_STEPS), views.learner)

    @fusable
    def predict(
        self, obs: Tensor, action: Tensor, mask: Tensor, learner: Learner | None = None
    ) -> tuple[Tensor, Metrics]:
        """The (B,) losses of (K + 1, B, *obs_shape), (K, B, …) actions and the (K, B) mask of valid steps."""
        with torch.no_grad():
            reached = self.latent(obs[1:].flatten(0, 1), learner, target=True)  # (K · B, …)
            target = self.project(reached, learner, target=True)
        rolled = self.roll(self.latent(obs[0]), action)
        losses = self.errors(self.project(torch.cat(rolled[1:]), learner), target, mask)
        return losses, {"spr_loss": losses.detach().mean()}

    def roll(self, latent: Tensor, action: Tensor) -> list[Tensor]:
        """The (B, *shape) latent, and the K that are predicted after each of the (K, B, …) actions."""
        rolled = [latent]
        for taken in action:
            rolled.append(self.transition(rolled[-1], action_vectors(self.spec, taken)))
        return rolled

    def errors(self, predicted: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        """(B,): the mean error over K steps of (K · B, width) projections, with a (K, B) mask."""
        direction = unit_vectors(self.predictor(predicted))
        error = (direction - unit_vectors(target.float())).square().sum(-1).view_as(mask)  # 2 − 2 cos
        return (error * mask).mean(0)

    def _encoder(self, learner: Learner | None, *, target: bool) -> Encoder:
        encoder: nn.Module | None = self.encoder
        if target and self.config.target == "learner":
            encoder = learner.target_encoder  # type: ignore[assignment, union-attr]
        elif target and self.config.momentum:
            encoder = self.target_encoder
        assert isinstance(encoder, Encoder)
        return encoder

    def latent(self, obs: Tensor, learner: Learner | None = None, *, target: bool = False) -> Tensor:
        """(B, *obs_shape) → (B, *shape), by the encoder or the one that gives targets."""
        encoder = self._encoder(learner, target=target)
        latent = encoder(obs) if self._features else encoder.latent(obs)
        done = encoder.rescales and not self._features
        return rescale(latent) if self.rescales and not done else latent

    def project(self, latent: Tensor, learner: Learner | None = None, *, target: bool = False) -> Tensor:
        """(B, *shape) → (B, width)."""
        config = self.config
        if config.projection == "own":
            layer = self.target_projection if target and config.momentum else self.projection
            return layer(latent)  # type: ignore[no-any-return]
        assert learner is not None
        encoder, from_target = self._encoder(learner, target=target), target and config.target == "learner"
        features = latent if self._features or not encoder.pixels else encoder.trunk(latent)
        critic = learner.target_critic if from_target else learner.critic
        return critic.project(features.flatten(1))  # type: ignore[union-attr, operator, no-any-return]

    def after_update(self) -> None:
        """Move the copies, if there are any."""
        if self.config.momentum:
            tau = 1 - self.config.momentum
            polyak_update(self.target_projection, self.projection, tau)
            if self.config.target == "own":
                assert self.encoder is not None
                polyak_update(self.target_encoder, self.encoder, tau)


class Transition(nn.Module):
    """The latent after an action: two convolutions for (C, H, W), two linear layers for (d,)."""

    def __init__(self, shape: tuple[int, ...], actions: int, batch_norm: bool, rescales: bool) -> None:
        super().__init__()
        self.spatial, self.rescales = len(shape) == 3, rescales
        if self.spatial:
            channels = shape[0]
            first = Conv(channels + actions, channels, 3, padding=1)
            first.layout = Layout(multiple=CHANNELS)
            layers: list[nn.Module] = [first, nn.ReLU()]
            layers += [BatchStandardize(channels)] if batch_norm else []
            self.layers = nn.Sequential(*layers, Conv(channels, channels, 3, padding=1), nn.ReLU())
            self.layers.apply(init_orthogonal)
        else:
            self.layers = mlp([shape[0] + actions, HIDDEN_DIM, shape[0]])

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        """(B, *shape), (B, A) → (B, *shape)."""
        action = action.to(latent.dtype)
        joined = self._with_planes(latent, action) if self.spatial else torch.cat([latent, action], 1)
        after = self.layers(joined)
        return rescale(after) if self.rescales else after  # type: ignore[no-any-return]

    @staticmethod
    def _with_planes(latent: Tensor, action: Tensor) -> Tensor:
        """The action as constant planes behind the latent's, channels last, padded as bf16 wants it."""
        if in_bf16(latent):
            action = F.pad(action, (0, -(latent.shape[1] + action.shape[1]) % CHANNELS))
        rows = latent.permute(0, 2, 3, 1)  # (B, H, W, C)
        planes = action[:, None, None].expand(*rows.shape[:3], -1)
        return torch.cat([rows, planes], -1).permute(0, 3, 1, 2)


class BatchStandardize(nn.BatchNorm2d):
    """BatchNorm by the statistics of the batch, in float32; the model predicts in training only.

    The batch is that of all ranks.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → the same shape."""
        with full_precision(x):
            x = x.float()
            if not dist.current().is_distributed:
                return super().forward(x)
            own = torch.stack([x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)])  # (2, C)
            means, variances = dist.all_gather(own[None]).unbind(1)  # (ranks, C) each
            mean = means.mean(0)
            variance = variances.mean(0) + (means - mean).square().mean(0)
            scale = self.weight * (variance + self.eps).rsqrt()
            return (x - mean[:, None, None]) * scale[:, None, None] + self.bias[:, None, None]
