"""MaxEnt: rewards that make the visits as even as possible, epoch by epoch (Hazan et al. 2019).

In each epoch the policy is trained on the gradient of a smooth surrogate of the entropy at the distribution
of states p̂ visited up to its beginning: r ∝ 1 / (p̂(s') + ε). p̂ is the count table of `cbb`, copied at the
beginning of every epoch (`epoch_steps`).

Differences from the paper: there every epoch trains a new policy, and p̂ is that of a mixture of all of them,
re-estimated by rollouts. Here one network is trained throughout. What it has visited so far is what its
mixture has visited, and the replay holds it; but no mixture is kept, and what remains is the last policy.
States are hash codes; the authors' code has bins of hand-picked coordinates and, on Ant, of a random
projection which is drawn unseeded and never saved. −log p̂, the gradient of the entropy itself, is left out.
With `source = "latent"` codes change while f learns and nothing can be frozen: p̂ is that of a sample of the
replay, hashed in every update with the current f, and the epoch is one update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from voidrl.config import PositiveCount
from voidrl.config.checks import Limit
from voidrl.methods._visits import VisitConfig, VisitMethod, VisitTable
from voidrl.methods.base import About, Latents
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec

Epsilon = Annotated[float, Limit(lambda value: 0 <= value < 1, "a number in (0, 1), or 0 for |S|^−½")]


@dataclass(frozen=True)
class MaxEntConfig(VisitConfig):
    """r = ε / (p̂(s') + ε), p̂ frozen for an epoch."""

    epoch_steps: PositiveCount = 10_000
    """Environment steps for which p̂ stays as it is; without effect on latents."""
    epsilon: Epsilon = 0.0
    """ε; 0 is |S|^−½, with the number of different codes visited for |S|."""


class MaxEnt(VisitMethod):
    """Rewards states that had a small part of all visits when the epoch began."""

    Config = MaxEntConfig
    prefix = "maxent"
    config: MaxEntConfig
    about = About("data", 2019, "Hazan et al., arXiv:1812.02690")

    def __init__(self, spec: EnvSpec, config: MaxEntConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.steps = 0
        if self.source == "image":
            self.frozen = VisitTable(self.hash.buckets)

    def set_progress(self, steps: int, total: int) -> None:
        """Remember how far the run is before the next step."""
        self.steps = steps

    def observe(self, obs: Tensor, skill: Tensor, env: Tensor, representation: Representation) -> None:
        """Count the states that were reached; with the last step of an epoch, begin the next."""
        super().observe(obs, skill, env, representation)
        before, self.steps = self.steps, self.steps + len(obs)
        # Nothing to remember between runs: it depends on the number of steps alone.
        every = self.config.epoch_steps
        if self.source == "image" and before // every < self.steps // every:
            self.frozen.load_state_dict(self.table.state_dict())

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The gradient of the entropy at p̂."""
        visits, total = self.visits(self.frozen if self.source == "image" else None, batch, latents)
        epsilon = self.epsilon()
        reward = 1 / (visits.double() / total.double().clamp(min=1) + epsilon)
        return (reward * epsilon).float()  # 1 for a state that was never visited

    def epsilon(self) -> Tensor:
        """ε, float64."""
        states = self.frozen.distinct if self.source == "image" else self.sample.distinct
        if self.config.epsilon:
            return torch.full_like(states, self.config.epsilon, dtype=torch.float64)
        return states.double().clamp(min=1).rsqrt()
