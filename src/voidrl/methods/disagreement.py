"""Disagreement: the variance of the predictions of several forward models (Pathak et al. 2019).

Five networks predict f(s') from f(s) and the action. Where they have seen much they agree, even on
transitions that are random, since all of them predict the mean; their variance is the reward. At every update
each model skips a random fifth of the minibatch, so that the models differ in their data as well as in their
initialization. The reward is divided by its running standard deviation: raw variances are tiny and shrink by
orders of magnitude.

Differences from the paper: the reward itself is normalized, not its discounted sum; the models have one
hidden layer instead of residual blocks; the policy is trained by RL alone, not by the reward's gradient.
Differences from URLB's code: there all models learn from the whole minibatch, they minimize the norm of the
error, not its square, and the reward is not divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from voidrl.config import MethodConfig, Size
from voidrl.entropy import RunningMoments
from voidrl.kernels.fusion import fusable
from voidrl.methods.base import About, Latents, Method
from voidrl.nets import join
from voidrl.nets.layers import EnsembleLinear, action_vectors
from voidrl.nets.spectral import full_precision
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss, Metrics

MODELS = 5  # forward models, as in the paper
DATA_FRACTION = 0.8  # of the minibatch, from which each model learns


@dataclass(frozen=True)
class DisagreementConfig(MethodConfig):
    """r = mean over dimensions of the variance over models, divided by its running standard deviation."""

    hidden_dim: Size = 512
    """Hidden units of each model."""


class Disagreement(Method):
    """Rewards transitions on which forward models disagree."""

    Config = DisagreementConfig
    config: DisagreementConfig
    about = About("knowledge", 2019, "Pathak et al., arXiv:1906.04161")
    image_representation = "fixed"  # random features, as in the paper

    def __init__(self, spec: EnvSpec, config: DisagreementConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        inputs = representation.dim + (spec.num_actions or spec.action_dim)
        self.models = nn.Sequential(
            EnsembleLinear(MODELS, inputs, config.hidden_dim, full_precision=False),
            nn.ReLU(),
            EnsembleLinear(MODELS, config.hidden_dim, representation.dim, full_precision=True),
        )
        self.variances = RunningMoments()

    def predict(self, z: Tensor, action: Tensor) -> Tensor:
        """(models, B, dim): the next latents that each model predicts from (B, dim) and the actions."""
        x = join(z, action_vectors(self.spec, action))  # (B, dim + A)
        # From vectors in float32: bf16 would put a floor under the variance.
        with full_precision(x, unless=self.spec.pixels):
            predicted: Tensor = self.models(x.expand(MODELS, *x.shape))
        return predicted.float()

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """The models' errors, each on its own part of the minibatch."""
        # (models, B): 0 for the transitions that a model skips; the rest has mean 1 over the draws.
        chance = torch.rand(MODELS, len(batch.reward), device=batch.reward.device)
        weight = (chance < DATA_FRACTION).float() / DATA_FRACTION
        loss, metrics = self.model_loss(latents.z, batch.action, latents.z_next, weight)
        yield Loss("method", loss, metrics)

    @fusable
    def model_loss(self, z: Tensor, action: Tensor, z_next: Tensor, weight: Tensor) -> tuple[Tensor, Metrics]:
        """The sum of the models' losses, so that each has its own gradient; mean error and variance."""
        predicted = self.predict(z, action)  # (models, B, dim)
        error = (predicted - z_next).square().mean(-1)  # (models, B)
        metrics = {
            "disagreement_loss": error.detach().mean(),
            "disagreement_variance": predicted.detach().var(0).mean(),
        }
        return (weight * error).mean(1).sum(), metrics

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The disagreement, on a consistent scale."""
        variance = self.variance(latents.z, batch.action)
        self.variances.update(variance[:, None])
        return self.variances.scale(variance)

    @fusable
    def variance(self, z: Tensor, action: Tensor) -> Tensor:
        """(B,): the unbiased variance over models, averaged over dimensions."""
        return self.predict(z, action).var(0).mean(-1)

    def metrics(self) -> Metrics:
        """The divisor of the reward."""
        return {"disagreement_std": self.variances.std[0]}
