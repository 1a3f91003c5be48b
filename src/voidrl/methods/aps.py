"""APS: skills in the space of successor features, with the entropy of that space (Liu & Abbeel 2021).

A skill w is drawn from the unit sphere and conditions the policy. A feature φ of the state is trained to
point along the skill that reached it, with the loss −φ̂(s')·w and φ̂ = φ/‖φ‖. The reward is φ̂(s')·w plus the
particle reward of `apt` on φ(s'), there without normalization to unit length. The critic is
Q(s, a, w) = ψ(s, a, w)·w with successor features ψ, trained by scalar TD. For a task, w is the least-squares
solution of r = φ̂(s')·w over the warm-up of fine-tuning, normalized to the sphere.

Differences from URLB's code: it exchanges the arguments of least squares, which makes w ∝ Σ r φ̂; it
regresses on s and on a φ that is freshly initialized, since fine-tuning never loads the trained one; and it
labels the transition at a change of skill with the wrong one. Here the saved φ(s') is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.config import Config as RunConfig
from voidrl.config import LearnerConfig, SkillConfig, require, require_positive
from voidrl.kernels.fusion import fusable
from voidrl.methods.apt import APT, APTConfig
from voidrl.methods.base import About, Latents, Method, require_neighbors
from voidrl.nets import DuelingQ, TrunkQ, TwinQ, mlp, unit_vectors
from voidrl.nets.spectral import full_precision
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss, Metrics

RIDGE = 1e-6  # of the mean squared length of φ̂, which is 1: keeps the regression solvable if φ has collapsed


@dataclass(frozen=True)
class APSConfig(SkillConfig):
    """r = φ̂(s')·w + log(1 + mean over k neighbors of ‖φ − φ_j‖ / m), m the running mean of the distances."""

    skill_dim: int = 10
    """Width of w and φ."""
    hidden_dim: int = 256
    """Width of the two hidden layers of φ."""
    k: int = 5
    """Neighbors in the space of φ."""
    include_self: bool = False
    """Count a state as its own neighbor, as URLB's code does."""
    mean_momentum: float | None = None
    """Momentum of the running mean m; None averages over everything seen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # On a line a unit vector is a sign, which has no gradient.
        require(self.skill_dim >= 2, "skill_dim", self.skill_dim, "2 or more; apt does without skills")
        require_positive(self, "hidden_dim", "k")
        require(self.k > self.include_self, "k", self.k, "2 or more with include_self")
        momentum = self.mean_momentum
        require(
            momentum is None or 0 <= momentum < 1, "mean_momentum", momentum, "None or a number in [0, 1)"
        )


class SuccessorTwinQ(TwinQ):
    """ψ(s, a, w)·w of two critics without a trunk."""

    def forward(self, features: Tensor, skill: Tensor, action: Tensor) -> Tensor:
        """(B, F), (B, S), (B, A) → (2, B)."""
        return (super().forward(features, skill, action) * skill).sum(-1)


class SuccessorTrunkQ(TrunkQ):
    """ψ(s, a, w)·w of two critics behind a trunk."""

    def forward(self, features: Tensor, skill: Tensor, action: Tensor) -> Tensor:
        """(B, F), (B, S), (B, A) → (2, B)."""
        return (super().forward(features, skill, action) * skill).sum(-1)


class SuccessorDuelingQ(DuelingQ):
    """ψ(s, a, w)·w of all discrete actions; the dueling streams are vectors."""

    def forward(self, features: Tensor, skill: Tensor) -> Tensor:
        """(B, F), (B, S) → (B, A)."""
        psi = super().forward(features, skill)  # (B, A, dim)
        return (psi * skill[:, None]).sum(-1)


class APS(Method):
    """Rewards states in the direction of the skill that lie far from others."""

    Config = APSConfig
    about = About(
        family="competence",
        year=2021,
        reward="feature of s' along the skill, plus k-NN entropy of the features",
        paper="Liu & Abbeel, arXiv:2108.13956",
        skills="continuous",
    )
    image_representation = "learner"
    can_train_encoder = True
    regresses_skill = True
    skill_choice = "found by regressing the reward of the warm-up on the features of the states reached"

    def __init__(self, spec: EnvSpec, config: APSConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.config: APSConfig = config
        self.skill_dim = config.skill_dim
        self.features = mlp([representation.dim, config.hidden_dim, config.hidden_dim, config.skill_dim])
        particles = APTConfig(
            k=config.k,
            include_self=config.include_self,
            normalize="distance_mean",
            mean_momentum=config.mean_momentum,
        )
        self.entropy = APT(spec, particles, representation)

    @classmethod
    def check(cls, spec: EnvSpec, config: RunConfig) -> None:
        """Refuse more neighbors than the minibatch has."""
        method = config.method
        assert isinstance(method, APSConfig)
        require_neighbors(config, method.k, include_self=method.include_self)

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """The negative log-likelihood of the skill under a von Mises–Fisher density around φ̂(s')."""
        loss, concentration = self.direction_loss(latents.z_next, batch.skill)
        yield Loss("method", loss, {"aps_loss": loss.detach(), "aps_concentration": concentration})

    @fusable
    def direction_loss(self, z_next: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """−φ̂·w, and ‖mean φ̂‖: 1 if φ̂ is the same for all states."""
        direction = unit_vectors(self.features(z_next))  # (B, dim)
        loss = -(direction * skill).sum(1).mean()
        return loss, torch.linalg.vector_norm(direction.detach().mean(0))

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """Both terms."""
        phi, along = self.along_skill(latents.z_next, batch.skill)
        return along + self.entropy.knn_reward(phi, None)

    @fusable
    def along_skill(self, z_next: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """φ, (B, dim), and φ̂·w, (B,)."""
        # From vectors in float32: bf16 would make neighbors equal.
        with nullcontext() if self.spec.pixels else full_precision(z_next):
            phi: Tensor = self.features(z_next)
        return phi, (unit_vectors(phi) * skill).sum(1)

    def metrics(self) -> Metrics:
        """The running mean of the distances shows how the space of φ grows."""
        return {"aps_distance_mean": self.entropy.mean.mean}

    # Skills

    def sample_skill(self, episode_steps: Tensor) -> Tensor:
        """Uniform on the unit sphere."""
        return F.normalize(
            torch.randn(len(episode_steps), self.skill_dim, device=episode_steps.device), dim=1
        )

    def select_skill(self, batch: Batch, latents: Latents) -> Tensor:
        """argmin_w Σ (φ̂(s')·w − r)², normalized to the sphere."""
        phi = unit_vectors(self.features(latents.z_next)).double()  # (n, dim)
        ridge = RIDGE * len(phi) * torch.eye(self.skill_dim, dtype=phi.dtype, device=phi.device)
        w: Tensor = torch.linalg.solve(phi.T @ phi + ridge, phi.T @ batch.reward.double())
        if not w.any():  # host read, once in a run: without reward w = 0, which would make every Q 0
            tried = super().select_skill(batch, latents)
            self.skill_choice = "one of those tried, since the warm-up earned no reward to regress on"
            return tried
        return F.normalize(w, dim=0).float()

    def make_critic(self, feature_dim: int, config: LearnerConfig) -> nn.Module:
        """Twin critics of continuous actions behind the learner's trunk, if it has one; or all actions'."""
        spec, dim = self.spec, self.skill_dim
        inputs, heads = feature_dim + dim, (config.hidden_dim, config.hidden_layers)
        if spec.discrete:
            return SuccessorDuelingQ(
                inputs,
                spec.num_actions,
                *heads,
                dueling=bool(getattr(config, "dueling", False)),
                outputs=dim,
                noisy_sigma=float(getattr(config, "noisy_sigma", 0.0)),
                shared_hidden=bool(getattr(config, "shared_hidden", False)),
            )
        if width := int(getattr(config, "trunk_dim", 0)):
            return SuccessorTrunkQ(inputs, spec.action_dim, width, *heads, dim, action_first=not spec.pixels)
        return SuccessorTwinQ(inputs + spec.action_dim, *heads, dim)
