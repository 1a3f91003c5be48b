"""MOSS: CIC with a second mode, in which its reward is minimized (Zhao et al. 2022).

In explore mode the skill lies in [0, 1]^d and the reward is CIC's. In control mode the skill lies in
[−1, 0]^d and the reward is negated: the policy learns to stay among familiar states. Both modes share all
networks, one replay and one search for neighbors. In fine-tuning the skill is 0.5 everywhere, which is in
explore mode.

Differences from the authors' code, besides those of CIC:
- neighbors of φ(s') are searched among φ(s'); the code searches those of φ(s), one of which is its successor;
- distances below their mean count as well; the code subtracts the mean and cuts at 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from voidrl.config import Count, require
from voidrl.methods.base import About, Latents
from voidrl.methods.cic import CIC, CICConfig
from voidrl.types import Batch, Loss

CONTROL_FRACTION = 1 / 3  # probability that a new skill is in control mode, unless `explore_steps` decides


@dataclass(frozen=True)
class MOSSConfig(CICConfig):
    """r = ± CIC's reward, negative in control mode."""

    explore_steps: Count = 0
    """Steps of each episode after which new skills are in control mode; 0 draws the mode of every skill."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.skill_every_steps == 0:  # a skill is drawn at the first step of an episode only
            expected = "0 with skill_every_steps = 0, where no skill would be in control mode"
            require(self.explore_steps == 0, "explore_steps", self.explore_steps, expected)


def _in_control(skill: Tensor) -> Tensor:
    """(B, skill_dim) → (B,): the skills whose values are negative."""
    return skill.sum(1) < 0


class MOSS(CIC):
    """Rewards surprise in explore mode and the lack of it in control mode."""

    Config = MOSSConfig
    config: MOSSConfig
    about = About("competence", 2022, "Zhao et al., arXiv:2210.06702", skills="continuous")
    prefix: ClassVar[str] = "moss"
    skill_choice = "the same for every task"

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """CIC's loss, and how much of the batch is in control mode."""
        fraction = _in_control(batch.skill).float().mean()
        for loss in super().losses(batch, latents):
            yield loss._replace(metrics={**loss.metrics, "moss_control": fraction})

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """CIC's reward, negated where the skill is in control mode."""
        surprise = super().reward(batch, latents)
        return torch.where(_in_control(batch.skill), -surprise, surprise)

    # Skills

    def sample_skill(self, episode_steps: Tensor) -> Tensor:
        """Uniform vectors, negative in control mode."""
        if self.config.explore_steps:
            control = episode_steps >= self.config.explore_steps  # (n,)
        else:
            control = torch.rand(len(episode_steps), device=episode_steps.device) < CONTROL_FRACTION
        skill = super().sample_skill(episode_steps)
        return torch.where(control[:, None], -skill, skill)

    def trial_skills(self) -> Tensor:
        """0.5 everywhere, without a trial of others."""
        return torch.full((1, self.skill_dim), 0.5)
