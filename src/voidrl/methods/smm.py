"""SMM: skills that together cover the states evenly, and each its own part (Lee et al. 2019).

State marginal matching with a mixture of K skills and a uniform target. A skill w is rewarded for states that
it visits rarely and from which it can be inferred: r = −log ρ(s'|w) + log q(w|s') + log K. The density ρ is a
variational autoencoder (VAE) of the states in the replay given the skill, and −log ρ its loss on s',
‖z' − ẑ'‖² + β KL; q is a classifier. In fine-tuning the warm-up tries every skill with the policy and keeps
the one with the highest mean reward.

Differences from the authors' and URLB's code: both add the cross-entropy −log q, which rewards skills that
cannot be told apart; they train the VAE on the mean of the squared errors
and reward their sum, without the KL; their VAE also reconstructs the skill, here it is given; URLB scores s.
The VAE sees z' standardized by its running mean and deviation, so that β and the reward do not depend on the
units of the environment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from voidrl.config import Positive, Size
from voidrl.config.checks import NotNegative
from voidrl.entropy import RunningMoments
from voidrl.kernels.fusion import fusable
from voidrl.methods._skills import DiscreteSkillConfig, DiscreteSkillMethod, skill_loss
from voidrl.methods.base import About, Latents
from voidrl.nets import join, mlp
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss

CLIP = 5.0  # standard deviations; bounds the reward of a coordinate that had been constant
MAX_LOG_VARIANCE = 10.0
VAE_HIDDEN_DIM = 150  # of the two hidden layers of its encoder and decoder, as in the authors' code
BETA = 0.5  # weight of the KL divergence, as in the authors' code


@dataclass(frozen=True)
class SMMConfig(DiscreteSkillConfig):
    """r = −log ρ(s'|w) + log q(w|s') + log K."""

    learning_rate: float = 1e-3
    """Learning rate of the classifier."""
    fewest = 1

    vae_learning_rate: Positive = 1e-2
    """Learning rate of the VAE."""
    num_skills: int = 4
    """K; with 1 the method is state marginal matching without skills."""
    hidden_dim: Size = 300
    """Width of the classifier's two hidden layers."""
    code_dim: Size = 128
    """Width of the VAE's code."""
    density_weight: NotNegative = 1.0
    """Weight of −log ρ(s'|w) in the reward."""


class ConditionalVAE(nn.Module):
    """A density of z given the skill: encoder of (z, w), decoder of (code, w)."""

    def __init__(self, dim: int, skill_dim: int, code_dim: int) -> None:
        super().__init__()
        hidden = [VAE_HIDDEN_DIM] * 2
        self.encoder = mlp([dim + skill_dim, *hidden, 2 * code_dim])
        self.decoder = mlp([code_dim + skill_dim, *hidden, dim])

    def forward(self, z: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """Squared error and KL divergence from the prior, (B,) each, for one sampled code."""
        mean, log_variance = self.encoder(join(z, skill)).chunk(2, 1)  # (B, code_dim) each
        log_variance = log_variance.clamp(-MAX_LOG_VARIANCE, MAX_LOG_VARIANCE)
        code = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        error = (self.decoder(join(code, skill)) - z).square().sum(1)
        kl = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
        return error, kl


class SMM(DiscreteSkillMethod):
    """Rewards states that the skill visits rarely and from which it can be inferred."""

    Config = SMMConfig
    config: SMMConfig
    about = About("competence", 2019, "Lee et al., arXiv:1906.05274", skills="discrete")

    def __init__(self, spec: EnvSpec, config: SMMConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        dim = representation.dim
        self.classifier = mlp([dim, config.hidden_dim, config.hidden_dim, config.num_skills])
        self.vae = ConditionalVAE(dim, config.num_skills, config.code_dim)
        self.moments = RunningMoments((dim,), floor=1e-6)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Classifier and VAE."""
        return {"method": [*self.classifier.parameters()], "vae": [*self.vae.parameters()]}

    def learning_rate(self, group: str) -> float:
        """The VAE has its own."""
        return self.config.vae_learning_rate if group == "vae" else self.config.learning_rate

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """The VAE's loss and the classifier's cross-entropy."""
        self.moments.update(latents.z_next)
        error, kl = (term.mean() for term in self.density(latents.z_next, batch.skill))
        loss = error + BETA * kl
        metrics = {"smm_vae_loss": loss, "smm_error": error, "smm_kl": kl}
        yield Loss("vae", loss, {name: value.detach() for name, value in metrics.items()})
        loss, accuracy = self.classify(latents.z_next, batch.skill)
        yield Loss("method", loss, {"smm_classifier_loss": loss.detach(), "smm_accuracy": accuracy})

    @fusable
    def density(self, z_next: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """Squared error of the VAE and its KL divergence, (B,) each."""
        error, kl = self.vae(self._standardized(z_next), skill)
        return error, kl

    @fusable
    def classify(self, z_next: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and accuracy over (B, dim) states and (B, K) one-hot skills."""
        return skill_loss(self.classifier(self._standardized(z_next)), skill)

    def _standardized(self, z: Tensor) -> Tensor:
        return self.moments.standardize(z).clamp(-CLIP, CLIP)

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """Rarity of the state and log-probability of the skill."""
        error, kl = self.density(latents.z_next, batch.skill)
        surprise = error + BETA * kl  # (B,), −log ρ(s'|w) up to a constant
        log_q: Tensor = self.classifier(self._standardized(latents.z_next)).log_softmax(1)  # (B, K)
        inferred = (log_q * batch.skill).sum(1)
        return self.config.density_weight * surprise + inferred + math.log(self.skill_dim)
