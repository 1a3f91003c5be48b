"""CBB: a count-based bonus, r = n(s')^−½ (Tang et al. 2017).

n is the number of visits of a state's hash code, counted once for every step of the environments and never
for a sampled batch. What is counted is `source`:

- `image`: SimHash of the newest frame, gray and small, or of a vector;
- `latent`: SimHash of z' = f(s'). The codes of states change while f learns, so n is estimated: the
  share of equal codes in a sample of the replay, hashed with the present f, times the number of steps.

Differences from the paper: one table for all codes, where its code takes the least of six counts; an
average-pooled gray image instead of its preprocessing or learned codes; z in place of its autoencoder's
code. It adds β times the bonus to the reward of a task; in pre-training β would only set the scale, so it is
left out. There is no density model, from which Bellemare et al. 2016 derive pseudo-counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from voidrl.methods._visits import VisitConfig, VisitMethod
from voidrl.methods.base import About, Latents
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec


@dataclass(frozen=True)
class CBBConfig(VisitConfig):
    """r = n(s')^−½."""


class CBB(VisitMethod):
    """Rewards states that were visited rarely, by counts."""

    Config = CBBConfig
    prefix = "cbb"
    config: CBBConfig
    about = About("data", 2017, "Tang et al., arXiv:1611.04717")

    def __init__(self, spec: EnvSpec, config: CBBConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.steps_seen = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def observe(self, obs: Tensor, skill: Tensor, env: Tensor, representation: Representation) -> None:
        """Count the states that were reached."""
        self.steps_seen.add_(len(obs))
        super().observe(obs, skill, env, representation)

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """One over the square root of the number of visits."""
        return self.number(batch, latents).rsqrt().float()

    def number(self, batch: Batch, latents: Latents) -> Tensor:
        """(B,) float64: how often s' was visited, counted or estimated."""
        visits, total = self.visits(self.table if self.source == "image" else None, batch, latents)
        number = visits.double()
        if self.source == "latent":
            # s' is one more state of the sample: what is not in it came at most once in `recounted` states.
            number = self.steps_seen * (number + 1) / (total + 1)
        return number.clamp(min=1)  # what is in the replay was visited, if perhaps before counting began
