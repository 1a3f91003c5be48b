"""MaxEnt: rewards that make the visits as even as possible, epoch by epoch (Hazan et al. 2019).

In each epoch the policy is trained on the gradient of the entropy, or of a smooth surrogate, at the
distribution of states p̂ visited up to its beginning: r = 1 / (p̂(s') + ε), or −log p̂(s'). p̂ is the count
table of `cbb`, copied at the beginning of every epoch (`epoch_steps`).

Differences from the paper: there every epoch trains a new policy, and p̂ is that of a mixture of all of them,
re-estimated by rollouts. Here one network is trained throughout. What it has visited so far is what its
mixture has visited, and the replay holds it; but no mixture is kept, and what remains is the last policy.
States are hash codes; the authors' code has bins of hand-picked coordinates and, on Ant, of a random
projection which is drawn unseeded and never saved. −log p̂ is computed with one visit more, where the authors'
code sets values above 100 to 1000.
With `source = "latent"` codes change while f learns and nothing can be frozen: p̂ is that of a sample of the
replay, hashed in every update with the current f, and the epoch is one update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from voidrl.config import Count, require, require_positive
from voidrl.methods._visits import VisitConfig, VisitMethod
from voidrl.methods.base import About, Latents
from voidrl.nets.counting import VisitTable
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Metrics


@dataclass(frozen=True)
class MaxEntConfig(VisitConfig):
    """r = 1 / (p̂(s') + ε) or −log p̂(s'), p̂ frozen for an epoch."""

    reward: Literal["inverse", "log"] = "inverse"
    """`inverse`: 1 / (p̂ + ε); `log`: −log p̂, counted with one visit more, so that it is finite."""
    source: Literal["auto", "image", "latent"] = "auto"
    """What is counted: codes of a small gray `image` (or of a vector), or codes of the `latent` z. `auto`:
    `latent` if the representation has a loss, else `image`."""
    epoch_steps: Count = 10_000
    """Environment steps for which p̂ stays as it is; without effect on latents."""
    epsilon: float = 0.0
    """ε; 0 is |S|^−½, with the number of different codes visited for |S|."""
    normalize: bool = True
    """Divide by the reward of a state that was never visited, which is 1/ε or log(N + 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "epoch_steps")
        require(0 <= self.epsilon < 1, "epsilon", self.epsilon, "a number in (0, 1), or 0 for |S|^−½")


class MaxEnt(VisitMethod):
    """Rewards states that had a small part of all visits when the epoch began."""

    Config = MaxEntConfig
    about = About(
        family="data",
        year=2019,
        reward="inverse or −log of the share of visits, frozen for an epoch",
        paper="Hazan et al., arXiv:1812.02690",
    )

    def __init__(self, spec: EnvSpec, config: MaxEntConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.config: MaxEntConfig = config
        self.steps = 0
        if self.source == "image":
            self.frozen = VisitTable(self.hash.buckets)

    def set_progress(self, steps: int, total: int) -> None:
        """Where the run is before the next step."""
        self.steps = steps

    def observe(self, obs: Tensor, skill: Tensor, env: Tensor) -> None:
        """Count the states that were reached; with the last step of an epoch, begin the next."""
        super().observe(obs, skill, env)
        before, self.steps = self.steps, self.steps + len(obs)
        # Nothing to remember between runs: it depends on the number of steps alone.
        every = self.config.epoch_steps
        if self.source == "image" and before // every < self.steps // every:
            self.frozen.copy_(self.table)

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The gradient of the entropy at p̂."""
        visits = self.visits(self.frozen if self.source == "image" else None, batch, latents)
        n, all_visits = visits.n.double(), visits.total.double()
        if self.config.reward == "log":
            most = (all_visits + 1).log()
            reward = most - (n + 1).log()
            return (reward / most.clamp(min=1) if self.config.normalize else reward).float()
        epsilon = self.epsilon()
        reward = 1 / (n / all_visits.clamp(min=1) + epsilon)
        return (reward * epsilon if self.config.normalize else reward).float()

    def epsilon(self) -> Tensor:
        """ε, float64."""
        states = self.frozen.distinct if self.source == "image" else self.sample.distinct
        if self.config.epsilon:
            return torch.full_like(states, self.config.epsilon, dtype=torch.float64)
        return states.double().clamp(min=1).rsqrt()

    def metrics(self) -> Metrics:
        """How even the visits are, and how fine the codes."""
        if self.source == "latent":
            return {"maxent_equal_codes": self.sample.equal}
        return {"maxent_codes": self.table.distinct.float(), "maxent_entropy": self.table.entropy}
