"""RE3: the distance to the k-th nearest state in the space of a random encoder (Seo et al. 2021).

A particle-based entropy like APT's, but f is initialized at random and never trained, so a state keeps its
place and a distance means the same throughout.

Differences from the paper: s' is scored, where the authors' code scores s; neighbors are searched in a sample
of the replay, not in all of it; f reads all stacked frames, not the last alone. The weight β of the reward
and its decay balance it against the reward of a task: `train --bonus re3` has them, and pre-training has
none. Distances are divided by their running standard deviation, as in the authors' code on MiniGrid; on
DMControl their code does the same and leaves out the logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from voidrl.config import MethodConfig, OptionalSize, Size
from voidrl.entropy import RunningMoments, knn_distances
from voidrl.kernels.fusion import fusable
from voidrl.methods.base import About, Latents, Method, whole_minibatch
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Metrics


@dataclass(frozen=True)
class RE3Config(MethodConfig):
    """r = log(1 + d_k / σ), d_k being the distance to the k-th nearest of a sample of the replay."""

    k: Size = 3
    """The neighbor whose distance is rewarded."""
    pool: OptionalSize = 1024
    """States drawn from the replay to search; 0: the minibatch itself."""


class RE3(Method):
    """Rewards states that lie far from others in the space of a random encoder."""

    Config = RE3Config
    config: RE3Config
    about = About("data", 2021, "Seo et al., arXiv:2102.09430")

    def __init__(self, spec: EnvSpec, config: RE3Config, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.distances = RunningMoments()

    @classmethod
    def default_representation(cls, spec: EnvSpec) -> str:
        """A random network: convolutions for images, a hidden layer for vectors."""
        return "fixed"

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """log(1 + d_k), on a consistent scale."""
        pool, z = self.config.pool, latents.z_next
        particles = latents.pool(pool) if pool else whole_minibatch(z)
        distance = self.distance(z, particles, own_first=not pool)  # (B,)
        self.distances.update(distance[:, None])
        return self.distances.scale(distance).log1p()

    @fusable
    def distance(self, z: Tensor, particles: Tensor, own_first: bool = False) -> Tensor:
        """(B,): the distance of each of (B, dim) to its k-th nearest particle; they may begin with these."""
        return knn_distances(z, particles, self.config.k, exclude_self=own_first)[:, -1]

    def metrics(self) -> Metrics:
        """Mean and scale of the distances: they grow as the states visited spread out."""
        return {"re3_distance_mean": self.distances.mean[0], "re3_distance_std": self.distances.std[0]}
