"""CBB: a count-based bonus, r = n(s')^−½ (Bellemare et al. 2016, Tang et al. 2017).

n is the number of visits of a state's hash code, counted once for every step of the environments and never
for a sampled batch. What is counted is `source`:

- `image`: SimHash of the newest frame, gray and small, or of a vector;
- `latent`: SimHash of z' = f(s'). The codes of states change while f learns, so n is estimated: the
  share of equal codes in a sample of the replay, hashed with the present f, times the number of steps;
- `density`: the pseudo-count N̂ = ρ(1 − ρ') / (ρ' − ρ) of a density model of the small gray image, ρ' being
  the density after seeing s' once more, and r = (N̂ + 0.01)^−½.

Differences from Tang et al.: one table for all codes, where their code takes the least of six counts; an
average-pooled gray image instead of their preprocessing or learned codes; z in place of their autoencoder's
code. Differences from Bellemare et al.: each pixel is conditioned on two neighbors by plain counts, where CTS
mixes contexts of several lengths over four neighbors; 21 × 21 pixels instead of 42 × 42. Both add β
times the bonus to the reward of a task; in pre-training β would only set the scale, so it is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from voidrl.config import Config as RunConfig
from voidrl.errors import ConfigError
from voidrl.methods._visits import IMAGE_SIZE, VisitConfig, VisitMethod
from voidrl.methods.base import About, Latents
from voidrl.nets.counting import PixelDensity, small_gray
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Metrics

PSEUDO_COUNT_OFFSET = 0.01  # bounds the bonus at 10
LEVELS = 8  # gray levels of the density model
PRIOR = 0.1  # α: the count of each level before it was seen


@dataclass(frozen=True)
class CBBConfig(VisitConfig):
    """r = n(s')^−½."""

    source: Literal["auto", "image", "latent", "density"] = "auto"  # type: ignore[assignment]
    """Counted states: codes of a small gray `image` (or of a vector), codes of the `latent` z, or a `density`
    of small gray images. `auto`: `latent` if the representation has a loss, else `image`."""


class CBB(VisitMethod):
    """Rewards states that were visited rarely, by counts."""

    Config = CBBConfig
    config: CBBConfig
    about = About(
        family="data",
        year=2016,
        reward="inverse square root of the number of visits, by hash code or density",
        paper="Bellemare et al., arXiv:1606.01868; Tang et al., arXiv:1611.04717",
    )
    steps_seen: Tensor

    def __init__(self, spec: EnvSpec, config: CBBConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.register_buffer("steps_seen", torch.zeros((), dtype=torch.int64))
        if self.source == "density":
            height, width = (min(IMAGE_SIZE, side) for side in spec.frame_shape[1:])
            self.density = PixelDensity(height, width, LEVELS, PRIOR)

    @classmethod
    def check(cls, spec: EnvSpec, config: RunConfig) -> None:
        """The density model is one of images."""
        assert isinstance(config.method, CBBConfig)
        if config.method.source == "density" and not spec.pixels:
            raise ConfigError(
                f"method.source = 'density' cannot be used with {spec.describe()}: it is a density of "
                f"images; use 'image', which hashes vectors as well"
            )

    def observe(self, obs: Tensor, skill: Tensor, env: Tensor, representation: Representation) -> None:
        """Count the states that were reached."""
        self.steps_seen.add_(len(obs))
        if self.source == "density":
            self.density.add(self._gray(obs))
        else:
            super().observe(obs, skill, env, representation)

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """One over the square root of the number of visits."""
        return self.number(batch, latents).rsqrt().float()

    def number(self, batch: Batch, latents: Latents) -> Tensor:
        """(B,) float64: how often s' was visited, counted or estimated."""
        if self.source == "density":
            return self.density.pseudo_count(self._gray(batch.next_obs)) + PSEUDO_COUNT_OFFSET
        visits = self.visits(self.table if self.source == "image" else None, batch, latents)
        number = visits.n.double()
        if self.source == "latent":
            # s' is one more state of the sample: what is not in it came at most once in `recounted` states.
            number = self.steps_seen * (number + 1) / (visits.total + 1)
        return number.clamp(min=1)  # what is in the replay was visited, if perhaps before counting began

    def _gray(self, obs: Tensor) -> Tensor:
        return small_gray(obs, self.spec, IMAGE_SIZE)

    def metrics(self) -> Metrics:
        """How fine the codes are."""
        if self.source == "latent":
            return {"cbb_equal_codes": self.sample.equal}
        if self.source == "image":
            return {"cbb_codes": self.table.distinct.float(), "cbb_entropy": self.table.entropy}
        return {}
