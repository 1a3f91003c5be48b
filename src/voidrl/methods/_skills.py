"""Discrete skills: one-hot vectors, drawn uniformly, inferred by classifiers, and all tried for a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.config import SkillConfig, require
from voidrl.methods.base import Method, one_hot_skills
from voidrl.nets import top1_accuracy
from voidrl.representations.base import Representation
from voidrl.types import EnvSpec

MAX_SKILLS = 2**16  # discrete ones, and components of others


def require_skills(name: str, count: int) -> None:
    """Refuse a number of discrete skills among which none could be told from another."""
    reason = "since a skill is rewarded for differing from others; apt and rnd do without skills"
    require(2 <= count <= MAX_SKILLS, name, count, f"2 to {MAX_SKILLS}, {reason}")


@dataclass(frozen=True)
class DiscreteSkillConfig(SkillConfig):
    """Discrete skills."""

    allows_one_skill: ClassVar[bool] = False

    num_skills: int = 16
    """K."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.allows_one_skill and self.num_skills == 1):
            require_skills("num_skills", self.num_skills)


@dataclass(frozen=True)
class EitherSkillConfig(SkillConfig):
    """Continuous skills, or discrete ones."""

    skill_dim: int = 2
    """Width of a skill; with `discrete_skills` the number of skills."""
    discrete_skills: bool = False
    """One-hot skills instead of continuous ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.discrete_skills:
            require_skills("skill_dim", self.skill_dim)
        expected = f"1 to {MAX_SKILLS}, the width of the skills; apt and rnd do without skills"
        require(1 <= self.skill_dim <= MAX_SKILLS, "skill_dim", self.skill_dim, expected)


class DiscreteSkillMethod(Method):
    """Draws one of K skills uniformly."""

    def __init__(self, spec: EnvSpec, config: DiscreteSkillConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.skill_dim = config.num_skills

    def sample_skill(self, episode_steps: Tensor) -> Tensor:
        """One-hot vectors, uniformly."""
        return one_hot_skills(episode_steps, self.skill_dim)

    def trial_skills(self) -> Tensor | None:
        """All K of them."""
        return torch.eye(self.skill_dim)


def skill_loss(logits: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy and accuracy of (B, K) logits, given (B, K) one-hot skills."""
    label = skill.argmax(1)
    right = logits.gather(1, label[:, None]).squeeze(1)
    return F.cross_entropy(logits, label), top1_accuracy(logits, right)
