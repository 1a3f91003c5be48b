"""APS: skills in the space of successor features, with the entropy of that space (Liu & Abbeel 2021).

VISR's feature and APT's entropy in one reward. A skill w is drawn from the unit sphere and conditions the
policy. A feature φ of the state is trained to point along the skill that reached it, with the loss −φ̂(s')·w
and φ̂ = φ/‖φ‖. The reward is φ̂(s')·w plus the particle reward of `apt` on φ(s'), there without normalization
to unit length. For a task, w is the least-squares solution of r = φ̂(s')·w over the warm-up of fine-tuning,
normalized to the sphere.

The critic is Q(s, a, w) = ψ(s, a, w)·w with successor features ψ. With continuous actions it is trained by
scalar TD, as in URLB's code. With discrete actions the cumulants are (φ̂(s'), entropy term), and ψ has one
component more than w, all trained by TD as in `visr`. A skill is then (w, e): the network reads w, and e
weighs the entropy term, 1 while pre-training and 0 for a task.

Differences from URLB's code: it exchanges the arguments of least squares, which makes w ∝ Σ r φ̂; it
regresses on s and on a φ that is freshly initialized, since fine-tuning never loads the trained one; and it
labels the transition at a change of skill with the wrong one. Here the saved φ(s') is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.methods.apt import APT, APTConfig, ParticleConfig
from voidrl.methods.base import About, Latents, whole_minibatch
from voidrl.methods.visr import VISR, VISRConfig
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss, Metrics


@dataclass(frozen=True)
class APSConfig(ParticleConfig, VISRConfig):
    """r = φ̂(s')·w + log(1 + mean over k neighbors of ‖φ − φ_j‖ / m), m the running mean of the distances."""

    learning_rate: float = 1e-4
    """Learning rate of φ."""
    skill_dim: int = 10
    """Width of w and φ."""


class APS(VISR):
    """Rewards states in the direction of the skill that lie far from others."""

    Config = APSConfig
    config: APSConfig
    about = About("competence", 2021, "Liu & Abbeel, arXiv:2108.13956", skills="continuous")
    gpi_skills = 0  # acts by the policy of the skill itself

    def __init__(self, spec: EnvSpec, config: APSConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        if spec.discrete:  # (w, e)
            self.skill_dim = self.reward_dim = config.skill_dim + 1
        k, include_self, momentum = config.k, config.include_self, config.mean_momentum
        particles = APTConfig(
            k=k, include_self=include_self, mean_momentum=momentum, normalize="distance_mean"
        )
        self.entropy = APT(spec, particles, representation)

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """The negative log-likelihood of w under a von Mises–Fisher density around φ̂(s'), −φ̂(s')·w."""
        alignment, concentration = self.alignment(latents.z_next, self.direction(batch.skill))
        loss = -alignment
        yield Loss("method", loss, {"aps_loss": loss.detach(), "aps_concentration": concentration})

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """Both terms, side by side or added."""
        phi, direction = self.phi(latents.z_next)
        entropy = self.entropy.knn_reward(phi, whole_minibatch(phi), own_first=True)
        if self.reward_dim:
            return torch.cat([direction, entropy[:, None]], 1)
        return (direction * batch.skill).sum(1) + entropy

    def metrics(self) -> Metrics:
        """The running mean of the distances shows how the space of φ grows."""
        return {"aps_distance_mean": self.entropy.mean.mean}

    def sample_skill(self, episode_steps: Tensor) -> Tensor:
        """Uniform on the unit sphere, with e = 1 behind it where there is an e."""
        w = super().sample_skill(episode_steps)
        return F.pad(w, (0, self.skill_dim - self.config.skill_dim), value=1.0)
