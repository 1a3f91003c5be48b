"""Discrete skills: one-hot vectors, drawn uniformly, inferred by classifiers, and all tried for a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.config import SkillConfig, require
from voidrl.config.checks import between
from voidrl.methods.base import Method
from voidrl.nets import top1_hits
from voidrl.representations.base import Representation
from voidrl.types import EnvSpec

MAX_SKILLS = 2**16  # discrete ones, and components of others
SEVERAL = (
    f"2 to {MAX_SKILLS}, since a skill is rewarded for differing from others; apt and rnd do without skills"
)
SkillDim = Annotated[int, between(1, MAX_SKILLS, "components of a skill; apt and rnd do without skills")]


@dataclass(frozen=True)
class DiscreteSkillConfig(SkillConfig):
    """Discrete skills."""

    fewest: ClassVar[int] = 2

    num_skills: int = 16
    """K."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.fewest <= self.num_skills <= MAX_SKILLS, "num_skills", self.num_skills, SEVERAL)


@dataclass(frozen=True)
class EitherSkillConfig(SkillConfig):
    """Continuous skills, or discrete ones."""

    skill_dim: SkillDim = 2
    """Width of a skill; with `discrete_skills` the number of skills."""
    discrete_skills: bool = False
    """One-hot skills instead of continuous ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.skill_dim > 1 or not self.discrete_skills, "skill_dim", self.skill_dim, SEVERAL)


class DiscreteSkillMethod(Method):
    """Draws one of K skills uniformly."""

    def __init__(
        self, spec: EnvSpec, config: DiscreteSkillConfig | EitherSkillConfig, representation: Representation
    ) -> None:
        super().__init__(spec, config, representation)
        self.skill_dim = config.num_skills if isinstance(config, DiscreteSkillConfig) else config.skill_dim

    def sample_skill(self, episode_steps: Tensor) -> Tensor:
        """One-hot vectors, uniformly."""
        return F.one_hot(torch.randint_like(episode_steps, self.skill_dim), self.skill_dim).float()

    def trial_skills(self) -> Tensor | None:
        """All K of them."""
        return torch.eye(self.skill_dim)


def skill_loss(logits: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy and accuracy of (B, K) logits, given (B, K) one-hot skills."""
    label = skill.argmax(1)
    right = logits.gather(1, label[:, None]).squeeze(1)
    return F.cross_entropy(logits, label), top1_hits(logits, right).mean()
