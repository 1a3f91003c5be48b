"""CIC: diverse states in a space that tells skills apart (Laskin et al. 2022).

A skill w is drawn uniformly from [0, 1]^d and conditions the policy. φ embeds states. A contrastive loss
finds the transition (φ(s), φ(s')) of each skill among those of the minibatch, which shapes φ. The reward is
APT's particle entropy on φ(s') and does not depend on w. In fine-tuning the warm-up tries the constant skills
from (0, …, 0) to (1, …, 1) and keeps the one with the highest mean reward.

Differences from the authors' code:
- the loss is a cross-entropy; the code subtracts e^{1/T} from the denominator, as if every pair were perfect,
  and clamps the difference, which ends gradients in small batches;
- distances are divided by their standard deviation; the code takes their variance;
- 5e-4 is not subtracted from the scaled distances, whose mean is about 1;
- every transition has its own skill; the code labels the one at a change with the skill before;
- fine-tuning tries skills, as in the paper; the code takes 0.5 everywhere;
- from pixels the loss can train the encoder; the code never trains it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.config import Size, SkillConfig
from voidrl.config.checks import Limit
from voidrl.entropy import RunningMoments, knn_distances
from voidrl.kernels.fusion import fusable
from voidrl.methods._skills import SkillDim
from voidrl.methods.base import About, Latents, Method, whole_minibatch
from voidrl.nets import info_nce, join, mlp, unit_vectors
from voidrl.nets.spectral import full_precision
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss, Metrics

TEMPERATURE = 0.5  # T, as in the authors' code
TRIALS = 11  # constant skills that fine-tuning tries, evenly spaced


@dataclass(frozen=True)
class CICConfig(SkillConfig):
    """r = log(1 + mean over k neighbors of ‖φ(s') − φ_j‖ / σ), with φ trained to tell skills apart."""

    skill_every_steps: int = 50
    """Environment steps for which a skill is kept; 0 keeps it for a whole episode."""
    skill_dim: SkillDim = 64
    """Width of the skill."""
    rep_dim: Size = 64
    """Width of φ, and of the two vectors that are compared."""
    hidden_dim: Size = 1024
    """Width of the two hidden layers of each network."""
    k: Annotated[Size, Limit(lambda k: k >= 2, "2 or more, since a state is its own first neighbor")] = 16
    """Neighbors, the first of which is the state itself, as in the authors' code."""
    include_self: ClassVar[bool] = True


class CIC(Method):
    """Rewards states that lie far from others in a space that tells skills apart."""

    Config = CICConfig
    config: CICConfig
    image_representation = "learner"
    can_train_encoder = True
    about = About("competence", 2022, "Laskin et al., arXiv:2202.00161", skills="continuous")
    prefix: ClassVar[str] = "cic"
    """Prefix of the metrics' names."""

    def __init__(self, spec: EnvSpec, config: CICConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.skill_dim = config.skill_dim
        hidden = [config.hidden_dim] * 2
        self.phi = mlp([representation.dim, *hidden, config.rep_dim])
        self.skill_query = mlp([config.skill_dim, *hidden, config.rep_dim])
        self.transition_key = mlp([2 * config.rep_dim, *hidden, config.rep_dim])
        self.distances = RunningMoments()

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """The contrastive loss between skills and transitions."""
        loss, accuracy = self.contrast(latents.z, latents.z_next, batch.skill)
        metrics = {f"{self.prefix}_loss": loss.detach(), f"{self.prefix}_accuracy": accuracy}
        yield Loss("method", loss, metrics)

    @fusable
    def contrast(self, z: Tensor, z_next: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and accuracy of finding the transition of each skill: (B, dim), (B, dim), (B, skill_dim)."""
        h, h_next = self.phi(z), self.phi(z_next)  # (B, rep_dim)
        query = unit_vectors(self.skill_query(skill))
        key = unit_vectors(self.transition_key(join(h, h_next)))
        losses, hits = info_nce(query, key, scale=1 / TEMPERATURE)
        return losses.mean(), hits.mean()

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The particle entropy of φ(s'), whatever the skill."""
        distances = self.neighbor_distances(latents.z_next)  # (B, k)
        self.distances.update(distances.reshape(-1, 1))  # on its own: fused, Triton fails on small batches
        return (distances / self.distances.std).mean(1).log1p()

    @fusable
    def neighbor_distances(self, z_next: Tensor) -> Tensor:
        """(B, dim) → (B, k): how far apart the states lie in the space of φ."""
        # From vectors in float32: bf16 would make neighbors equal.
        with full_precision(z_next, unless=self.spec.pixels):
            h = self.phi(z_next)  # (B, rep_dim)
        return F.pad(knn_distances(h, whole_minibatch(h), self.config.k - 1, exclude_self=True), (1, 0))

    def metrics(self) -> Metrics:
        """The mean distance shows how the space of φ shrinks or grows."""
        return {f"{self.prefix}_distance": self.distances.mean[0]}

    # Skills

    def sample_skill(self, episode_steps: Tensor) -> Tensor:
        """Uniform vectors."""
        return torch.rand(len(episode_steps), self.skill_dim, device=episode_steps.device)

    def trial_skills(self) -> Tensor:
        """Vectors of equal values, from 0 to 1."""
        values = torch.linspace(0.0, 1.0, TRIALS)
        return values[:, None].repeat(1, self.skill_dim)  # (TRIALS, skill_dim)
