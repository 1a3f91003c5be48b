"""VISR: skills along features of the state, and successor features that serve them all (Hansen et al. 2020).

A skill w is drawn from the unit sphere and conditions the policy. A feature φ of the state, on the sphere as
well, is trained to point along the skill that reached it: the loss is 1 − φ(s')·w, which is the negative
log-likelihood of w under a von Mises–Fisher density around φ(s'), up to constants. The reward is φ(s')·w.

With discrete actions the reward is the vector φ(s') itself, and ψ(s, a, w) → φ(s') + γ ψ(s', a*, w) is
learned component by component, where a* is the best action for w by Q = ψ·w. The policy acts by generalized
policy improvement, with max_i ψ(s, a, w_i)·w over w itself and 10 other vectors. With continuous
actions there is no maximum over policies: Q = ψ·w is trained by its scalar TD error, as in `aps`. For a task,
w is the least-squares solution of r = φ(s')·w over the warm-up of fine-tuning, normalized to the sphere.

Differences from the authors' notebook, the only public code, which is for a grid world:

- The other vectors of GPI are drawn once, not redrawn at each step: without ε, actions are a function
  of state and skill.
- Fine-tuning goes on learning from the task's reward, by the scalar error of ψ·w for the task's w. The values
  of other vectors are not those of the task's reward, so GPI ends with the first such update. In the paper,
  the inferred w is acted on with GPI and nothing is trained.
- Transitions are replayed, with a target network, double Q-learning, n-step returns and a Huber loss; the
  notebook learns from fresh trajectories of 40 steps, without a target, by squared error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.config import LearnerConfig, Size, SkillConfig
from voidrl.config.checks import between
from voidrl.kernels.fusion import fusable
from voidrl.methods._skills import MAX_SKILLS
from voidrl.methods.base import About, Latents, Method
from voidrl.nets import mlp, successor_critic, unit_vectors
from voidrl.nets.spectral import full_precision
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss

RIDGE = 1e-6  # of the mean squared length of φ̂, which is 1: keeps the regression solvable if φ has collapsed


@dataclass(frozen=True)
class VISRConfig(SkillConfig):
    """r = φ(s')·w with φ and w on the unit sphere."""

    learning_rate: float = 1e-3
    """Learning rate of φ."""
    # On a line a unit vector is a sign, which has no gradient.
    skill_dim: Annotated[int, between(2, MAX_SKILLS, "components; apt does without skills")] = 5
    """Width of w and φ."""
    hidden_dim: Size = 256
    """Width of the two hidden layers of φ."""


class VISR(Method):
    """Rewards states whose feature points along the skill."""

    Config = VISRConfig
    config: VISRConfig
    about = About("competence", 2020, "Hansen et al., arXiv:1906.05030", skills="continuous")
    image_representation = "learner"
    can_train_encoder = True
    regresses_skill = True
    gpi_skills: ClassVar[int] = 10
    """Other skills whose policies are considered whenever a discrete action is chosen (the notebook's)."""
    skill_choice = "found by regressing the reward of the warm-up on the features of the states reached"

    def __init__(self, spec: EnvSpec, config: VISRConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.skill_dim = config.skill_dim
        self.reward_dim = self.skill_dim if spec.discrete else 0
        self.features = mlp([representation.dim, config.hidden_dim, config.hidden_dim, config.skill_dim])

    def direction(self, skill: Tensor) -> Tensor:
        """(B, skill_dim) → w, (B, dim): the part of a skill on the sphere, all of it unless a method adds."""
        return skill[:, : self.config.skill_dim]

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """1 − φ(s')·w."""
        alignment, concentration = self.alignment(latents.z_next, self.direction(batch.skill))
        loss = 1 - alignment
        yield Loss("method", loss, {"visr_loss": loss.detach(), "visr_concentration": concentration})

    @fusable
    def alignment(self, z_next: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """φ̂·w, averaged, and ‖mean φ̂‖: 1 if φ̂ is the same for all states."""
        direction = unit_vectors(self.features(z_next))  # (B, dim)
        along = (direction * w).sum(1).mean()
        return along, torch.linalg.vector_norm(direction.detach().mean(0))

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """φ̂(s'), or φ̂(s')·w where the learner wants scalars."""
        _, direction = self.phi(latents.z_next)
        return direction if self.reward_dim else (direction * batch.skill).sum(1)

    @fusable
    def phi(self, z_next: Tensor) -> tuple[Tensor, Tensor]:
        """φ and φ̂ = φ/‖φ‖, (B, dim) each."""
        # From vectors in float32: bf16 would make near states equal.
        with full_precision(z_next, unless=self.spec.pixels):
            phi: Tensor = self.features(z_next)
        return phi, unit_vectors(phi)

    # Skills

    def sample_skill(self, episode_steps: Tensor) -> Tensor:
        """Uniform on the unit sphere."""
        shape = len(episode_steps), self.config.skill_dim
        return F.normalize(torch.randn(*shape, device=episode_steps.device), dim=1)

    def select_skill(self, batch: Batch, latents: Latents) -> Tensor:
        """argmin_w Σ (φ̂(s')·w − r)², normalized to the sphere; what else a skill has is 0."""
        phi = unit_vectors(self.features(latents.z_next)).double()  # (n, dim)
        ridge = RIDGE * len(phi) * torch.eye(phi.shape[1], dtype=phi.dtype, device=phi.device)
        w: Tensor = torch.linalg.solve(phi.T @ phi + ridge, phi.T @ batch.reward.double())
        if not w.any():  # host read, once in a run: without reward w = 0, which would make every Q 0
            w = self.direction(super().select_skill(batch, latents)[None])[0]
            self.skill_choice = "one of those tried, since the warm-up earned no reward to regress on"
        else:
            w = F.normalize(w, dim=0).float()
        return F.pad(w, (0, self.skill_dim - len(w)))

    def make_critic(self, feature_dim: int, config: LearnerConfig) -> nn.Module:
        """ψ, conditioned on w alone."""
        widths = feature_dim, self.skill_dim, self.config.skill_dim
        return successor_critic(self.spec, config, *widths, gpi_skills=self.gpi_skills)
