"""Forward and inverse dynamics: an encoder of what actions change (Pathak et al. 2017; URLB's APT).

Two networks on top of the encoder f: a forward model predicts f(s') from f(s) and the action, an inverse
model predicts the action from f(s) and f(s'). As in URLB, both errors are norms and not their squares, f(s')
receives gradients too, and one loss trains everything. In n-step transitions (`batch_size` 0) the action is
the first of the n; where an episode, or the data, ends early, s' is its last state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.config import EncoderConfig, RepresentationConfig, Size
from voidrl.config.checks import NotNegative
from voidrl.kernels.fusion import fusable
from voidrl.nets import Encoder, join, mlp
from voidrl.nets.layers import action_vectors
from voidrl.representations.base import Representation, Views
from voidrl.types import EnvSpec, Metrics


@dataclass(frozen=True)
class ICMConfig(RepresentationConfig):
    """Predict f(s') from the action, and the action from f(s')."""

    encoder: EncoderConfig = field(default_factory=lambda: EncoderConfig(feature_dim=512))
    """The encoder. In URLB, on vectors, it has no hidden layer: stack `mlp`, hidden_dim 0."""
    learning_rate: float = 1e-4
    """Learning rate of the encoder and both models."""
    hidden_dim: Size = 1024
    """Width of the hidden layer of both networks."""
    forward_weight: NotNegative = 1.0
    """Weight of the forward error, relative to the inverse error; the paper's is 0.25 (0.2 to 0.8), URLB's 1.
    It is lowest where the encoder is constant. 0 leaves out the forward model: the method `icm` then has no
    error to reward."""


class ICM(Representation):
    """An encoder trained by forward and inverse dynamics; the method `icm` rewards the forward error."""

    Config = ICMConfig
    has_loss = True

    def __init__(self, spec: EnvSpec, config: ICMConfig, encoder: Encoder | None) -> None:
        super().__init__(spec, config, encoder)
        self.config: ICMConfig = config
        actions = spec.num_actions or spec.action_dim
        # In bf16: its error is far below that of a prediction, and fp32 would take a third of an update.
        if config.forward_weight:
            self.forward_net = mlp([self.dim + actions, config.hidden_dim, self.dim], full_precision=False)
        self.inverse_net = mlp([2 * self.dim, config.hidden_dim, actions], full_precision=False)

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        """Both errors, of fresh views of s and s'."""
        return self.dynamics(views.transitions(), views.action)

    @fusable
    def dynamics(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Metrics]:
        """The loss over (2B, *obs_shape), of which i + B is what (B, A) or (B,) action i led to from i."""
        both = self.encode(obs).float()  # (2B, dim)
        z, z_next = both.chunk(2)
        predicted = self.inverse_net(join(z, z_next)).float()  # (B, A)
        loss = inverse = inverse_errors(self.spec, predicted, action).mean()
        metrics = {"icm_inverse": inverse.detach()}
        if self.config.forward_weight:
            forward = self.prediction_error(z, action, z_next).mean()
            loss = self.config.forward_weight * forward + inverse
            metrics = {"icm_forward": forward.detach(), **metrics}
        # Where all z are alike the forward error is 0, and no particle is far from another.
        return loss, {**metrics, "z_std": both.detach().std(0).mean()}

    def prediction_error(self, z: Tensor, action: Tensor, z_next: Tensor) -> Tensor:
        """(B,): the norm of the forward model's error, for latents (B, dim)."""
        predicted = self.forward_net(join(z, action_vectors(self.spec, action))).float()  # (B, dim)
        return torch.linalg.vector_norm(z_next - predicted, dim=-1)  # type: ignore[no-any-return]


def inverse_errors(spec: EnvSpec, predicted: Tensor, action: Tensor) -> Tensor:
    """(B,): cross-entropy of (B, A) logits for discrete actions, else the distance to the (B, A) action."""
    if spec.discrete:
        return F.cross_entropy(predicted, action, reduction="none")
    return torch.linalg.vector_norm(action - predicted.tanh(), dim=-1)  # type: ignore[no-any-return]
