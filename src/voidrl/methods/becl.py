"""BeCL: states of one skill attract, those of different skills repel (Yang et al. 2023).

A skill w is drawn uniformly from K and conditions the policy. Each state s'_i of a batch is paired with a
random other one of the same skill, s'_j. The reward is how well the pair is found among all other states of
the batch, exp(s_ij / T) / Σ_{k ≠ i} exp(s_ik / T), with the cosine similarity s of learned embeddings. The
embedding minimizes −log of it (InfoNCE). Other states of the same skill are in the sum too, so the reward
scales as 1/B: for 16 skills and B = 1024 it is 0.00098 by chance and 0.0057 for skills that are perfectly
separated. `scale_by_batch` multiplies it by B − 1, so that chance is 1.

Differences from the authors' code: the positive is drawn at random, where the code takes the first row of the
batch with the same skill; a state without one is left out of the loss and earns the reward of chance,
1 / (B − 1), where the code pairs it with the first row, of another skill; no 1e-6 is added within the
logarithm; transitions are stored with the skill that they followed, where those at a change have the skill
before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from voidrl import dist
from voidrl.config import Config as RunConfig
from voidrl.config import Size
from voidrl.config.checks import between
from voidrl.errors import ConfigError
from voidrl.kernels.fusion import fusable
from voidrl.methods._skills import DiscreteSkillConfig, DiscreteSkillMethod
from voidrl.methods.base import About, Latents
from voidrl.nets import mlp, unit_vectors
from voidrl.nets.spectral import full_precision
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss

TEMPERATURE = 0.5  # T, as in the authors' code


@dataclass(frozen=True)
class BeCLConfig(DiscreteSkillConfig):
    """r = exp(s_ij / T) / Σ_{k ≠ i} exp(s_ik / T), where j has the skill of i."""

    hidden_dim: Size = 1024
    """Width of the hidden layers."""
    loss_batches: Annotated[int, between(1, 100)] = 3
    """Batches on which an update trains the embedding, one after another."""
    scale_by_batch: bool = False
    """Multiply the reward by B − 1, so that it is 1 by chance for any batch size."""


class BeCL(DiscreteSkillMethod):
    """Rewards states that resemble others of their skill, and none of other skills."""

    Config = BeCLConfig
    config: BeCLConfig
    about = About("competence", 2023, "Yang et al., arXiv:2305.04477", skills="discrete")
    image_representation = "learner"
    can_train_encoder = True
    skill_choice = "drawn at random, as in the paper"

    def __init__(self, spec: EnvSpec, config: BeCLConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.loss_batches = config.loss_batches
        width, hidden = config.num_skills, config.hidden_dim  # K directions can be equally far apart in K
        self.embedding = nn.Sequential(
            mlp([representation.dim, hidden, hidden, width], full_precision=False),
            mlp([width, hidden, width]),
        )

    @classmethod
    def check(cls, spec: EnvSpec, config: RunConfig) -> None:
        """Refuse batches in which most states have no positive."""
        skills, batch_size = config.method.num_skills, config.learner.batch_size  # type: ignore[attr-defined]
        if skills > batch_size:
            raise ConfigError(
                f"method.num_skills = {skills} cannot be used with learner.batch_size = "
                f"{batch_size}: states are paired with others of their skill in the batch, and most would "
                f"have none; use {batch_size} skills or fewer, larger batches, or diayn, which needs no pairs"
            )

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """InfoNCE, the mean over the states that have a positive."""
        log_ratio, paired, accuracy = self.contrast(latents.z_next, batch.skill)
        # Of all ranks: the mean of their losses is then the mean over all pairs.
        pairs = dist.average(paired.sum()).clamp(min=1 / dist.current().size)
        loss = -log_ratio.masked_fill(~paired, 0.0).sum() / pairs
        yield Loss("method", loss, {"becl_loss": loss.detach(), "becl_accuracy": accuracy})

    @fusable
    def contrast(self, z_next: Tensor, skill: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The log-ratio of each of (B, dim) states with (B, K) skills, and whether it has a positive.

        Without one the log-ratio is that of chance. Also the accuracy: how often the most similar state has
        the same skill, where any has.
        """
        h = unit_vectors(self.embedding(z_next))  # (B, width)
        everyone = dist.all_gather(h)  # on several ranks (N, width): pairs and others are those of all
        with full_precision(h):  # bf16 would round a similarity of 2 to 0.008
            similarity = h @ everyone.T / TEMPERATURE  # (B, B)
        label = skill.argmax(1)
        labels, first = dist.all_gather(label), dist.current().rank * len(label)
        itself = torch.eye(len(labels), dtype=torch.bool, device=label.device)[first : first + len(label)]
        same = (label[:, None] == labels) & ~itself  # (B, B)
        paired = same.any(1)
        # One of the same skill, uniformly: that with the highest of B random numbers.
        positive = torch.rand_like(similarity).masked_fill(~same, -1.0).argmax(1, keepdim=True)  # (B, 1)
        others = similarity.masked_fill(itself, -torch.inf)
        log_ratio = similarity.gather(1, positive)[:, 0] - others.logsumexp(1)
        found = same.gather(1, others.detach().argmax(1, keepdim=True)).sum() / paired.sum().clamp(min=1)
        return log_ratio.masked_fill(~paired, -math.log(len(labels) - 1)), paired, found

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The ratio, that of chance for states without a positive."""
        ratio = self.contrast(latents.z_next, batch.skill)[0].exp()
        others = len(ratio) * dist.current().size - 1
        return ratio * others if self.config.scale_by_batch else ratio

    def trial_skills(self) -> None:
        """None: the warm-up of fine-tuning draws skills at random."""

    def select_skill(self, batch: Batch, latents: Latents) -> Tensor:
        """A random one."""
        start = torch.zeros(1, dtype=torch.int64, device=batch.skill.device)
        return self.sample_skill(start)[0]
