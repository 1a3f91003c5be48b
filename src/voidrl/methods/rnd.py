"""RND: the error of a network that predicts a fixed random one (Burda et al. 2018).

A predictor is trained to match a random target network on the states that are visited; where it has seen
little, its error is large. Observations are standardized by running statistics of the states visited and
clipped, as in the paper; the error is divided by its running standard deviation.

Differences from the paper: the error itself is normalized, not the discounted sum of errors; all stacked
frames are read, not only the last; one value function and episodic returns, since the learner has one; behind
the convolutions the target has one hidden layer and the predictor two, where its code has none and two.
Differences from URLB's code: from states the predictor is a layer deeper (three hidden layers; there both
networks have two); s' is scored, where it scores s; the observations are standardized by running statistics
instead of a BatchNorm whose output depends on the batch; from pixels the networks have convolutions of their
own instead of the learner's encoder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from voidrl.config import EncoderConfig, MethodConfig, Size
from voidrl.entropy import RunningMoments
from voidrl.kernels.fusion import fusable
from voidrl.methods.base import About, Latents, Method
from voidrl.nets import Encoder, TF32Linear, init_orthogonal, mlp
from voidrl.nets.augment import center_crop
from voidrl.nets.encoder import ConvStack, stack_for
from voidrl.nets.observations import input_shape, pack_input, unpack, visible, visible_numbers
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss, Metrics

CLIP = 5.0  # standard deviations of the observations, as in the paper


@dataclass(frozen=True)
class RNDConfig(MethodConfig):
    """r = ‖p(s') − g(s')‖² / std, with p trained and g random."""

    rep_dim: Size = 512
    """Width of the outputs that are compared."""
    hidden_dim: Size = 1024
    """Width of the hidden layers."""


class RND(Method):
    """Rewards states on which the predictor still errs."""

    Config = RNDConfig
    config: RNDConfig
    about = About("knowledge", 2018, "Burda et al., arXiv:1810.12894")
    reads_latents = False

    def __init__(self, spec: EnvSpec, config: RNDConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.target = self._network().requires_grad_(False)
        self.predictor = self._network(extra_layers=1)
        shape = input_shape(spec) if spec.pixels else (visible_numbers(spec),)
        self.observations = RunningMoments(shape, floor=1e-2 if spec.pixels else 1e-6)
        self.errors = RunningMoments()

    def _network(self, extra_layers: int = 0) -> nn.Sequential:
        hidden, spec = self.config.hidden_dim, self.spec
        if not spec.pixels:
            # Not bf16, which would put a floor under the error.
            sizes = [visible_numbers(spec), hidden, hidden, *[hidden] * extra_layers, self.config.rep_dim]
            return mlp(sizes, layer=TF32Linear)
        config = EncoderConfig(stack_for(spec.obs_shape), feature_dim=0, activation="relu")
        tiny = config.stack == "tiny"  # of standardized values it must not take the logarithm
        stack = ConvStack(spec.obs_shape[0], config).apply(init_orthogonal) if tiny else None
        encoder = Encoder(spec, config, stack=stack)
        heads = mlp([encoder.feature_dim, *[hidden] * (1 + extra_layers), self.config.rep_dim])
        return nn.Sequential(encoder, *heads)

    def observe(self, obs: Tensor, skill: Tensor, env: Tensor, representation: Representation) -> None:
        """Collect the statistics of the observations."""
        self.observations.update(self._numbers(obs))

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """The predictor's squared error on the states visited."""
        loss = self.error(batch.next_obs).mean()
        yield Loss("method", loss, {"rnd_loss": loss.detach()})

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The error, on a consistent scale."""
        error = self.error(batch.next_obs)
        self.errors.update(error[:, None])
        return self.errors.scale(error)

    @fusable
    def error(self, obs: Tensor) -> Tensor:
        """(B,): mean squared difference between predictor and target."""
        x = self.observations.standardize(self._numbers(obs)).clamp(-CLIP, CLIP)
        with torch.no_grad():
            target = self.target(x).float()
        return (self.predictor(x).float() - target).square().mean(1)  # type: ignore[no-any-return]

    def _numbers(self, obs: Tensor) -> Tensor:
        """Inputs of the networks before they are standardized: images of [0, 1], numbers as they are."""
        spec = self.spec
        if not spec.pixels:
            return visible(obs, spec)
        images, numbers = unpack(obs, spec) if spec.num_values else (obs, None)
        images = center_crop(images, spec.frame_shape[1:]).float() / 255
        return images if numbers is None else pack_input(images, numbers)

    def metrics(self) -> Metrics:
        """The scale of the error shows how much is still unknown."""
        return {"rnd_error_std": self.errors.std[0]}
