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

from torch import Tensor

from voidrl.config import Size
from voidrl.kernels.fusion import fusable
from voidrl.methods._skills import DiscreteSkillConfig, DiscreteSkillMethod, skill_loss
from voidrl.methods.base import About, Latents
from voidrl.nets import mlp
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss


@dataclass(frozen=True)
class DIAYNConfig(DiscreteSkillConfig):
    """r = log q(w | s') + log K."""

    num_skills: int = 50
    """K."""
    hidden_dim: Size = 300
    """Width of the classifier's two hidden layers."""


class DIAYN(DiscreteSkillMethod):
    """Rewards states from which the skill can be inferred."""

    Config = DIAYNConfig
    config: DIAYNConfig
    about = About("competence", 2018, "Eysenbach et al., arXiv:1802.06070", skills="discrete")
    image_representation = "learner"
    can_train_encoder = True

    def __init__(self, spec: EnvSpec, config: DIAYNConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.classifier = mlp([representation.dim, config.hidden_dim, config.hidden_dim, config.num_skills])

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """Cross-entropy of the classifier."""
        loss, accuracy = self.classify(latents.z_next, batch.skill)
        yield Loss("method", loss, {"diayn_loss": loss.detach(), "diayn_accuracy": accuracy})

    @fusable
    def classify(self, z_next: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and accuracy over (B, dim) states and (B, K) one-hot skills."""
        return skill_loss(self.classifier(z_next), skill)

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """Log-probability of the skill, relative to chance."""
        log_q: Tensor = self.classifier(latents.z_next).log_softmax(1)  # (B, K)
        return (log_q * batch.skill).sum(1) + math.log(self.skill_dim)
