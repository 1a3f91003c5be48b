"""DIAYN: skills that a classifier can tell apart by the states they visit (Eysenbach et al. 2018).

A skill w is drawn uniformly from K and conditions the policy. A classifier q(w | s') is trained on the states
visited; the reward is log q(w | s') + log K, at most log K for a skill that is recognized with certainty and
0 on average for states that all skills share. In fine-tuning the warm-up tries every skill with the policy
and keeps the one with the highest mean reward.

With `skill_every_steps = 50` a skill lasts 50 steps, as in URLB. Its public code labels the transition at a
change with the wrong skill; here every transition has its own, and n-step returns stop at a change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.config import SkillConfig, require_positive, require_skills
from voidrl.kernels.fusion import fusable
from voidrl.methods.base import About, Latents, Method, one_hot_skills
from voidrl.nets import mlp, top1_accuracy
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss


@dataclass(frozen=True)
class DIAYNConfig(SkillConfig):
    """r = log q(w | s') + log K."""

    num_skills: int = 50
    """K."""
    hidden_dim: int = 300
    """Width of the classifier's two hidden layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_skills("num_skills", self.num_skills)
        require_positive(self, "hidden_dim")


class DIAYN(Method):
    """Rewards states from which the skill can be inferred."""

    Config = DIAYNConfig
    about = About(
        family="competence",
        year=2018,
        reward="how well a classifier infers the skill from the state reached",
        paper="Eysenbach et al., arXiv:1802.06070",
        skills="discrete",
    )
    splits_over_ranks = True
    image_representation = "learner"
    can_train_encoder = True

    def __init__(self, spec: EnvSpec, config: DIAYNConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.config: DIAYNConfig = config
        self.skill_dim = config.num_skills
        self.classifier = mlp([representation.dim, config.hidden_dim, config.hidden_dim, config.num_skills])

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """Cross-entropy of the classifier."""
        loss, accuracy = self.classify(latents.z_next, batch.skill)
        yield Loss("method", loss, {"diayn_loss": loss.detach(), "diayn_accuracy": accuracy})

    @fusable
    def classify(self, z_next: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and accuracy over (B, dim) states and (B, K) one-hot skills."""
        logits, label = self.classifier(z_next), skill.argmax(1)
        right = logits.gather(1, label[:, None]).squeeze(1)
        return F.cross_entropy(logits, label), top1_accuracy(logits, right)

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """Log-probability of the skill, relative to chance."""
        log_q: Tensor = self.classifier(latents.z_next).log_softmax(1)  # (B, K)
        return (log_q * batch.skill).sum(1) + math.log(self.skill_dim)

    # Skills

    def sample_skill(self, episode_steps: Tensor) -> Tensor:
        """One-hot vectors, uniformly."""
        return one_hot_skills(episode_steps, self.skill_dim)

    def trial_skills(self) -> Tensor:
        """All K of them."""
        return torch.eye(self.skill_dim)
