"""APT: the particle-based entropy of the states visited (Liu & Abbeel 2021, eq. 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from voidrl.config import Config as RunConfig
from voidrl.config import MethodConfig, require, require_positive
from voidrl.entropy import RunningMean, RunningMoments, particle_reward
from voidrl.kernels.fusion import fusable
from voidrl.methods.base import (
    About,
    Latents,
    Method,
    Pool,
    particles_of_ranks,
    require_neighbors,
    require_pool,
)
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Metrics


@dataclass(frozen=True)
class APTConfig(MethodConfig):
    """r = log(c + mean over k neighbors of ‖z − z_j‖^p), divided by its running mean or otherwise scaled."""

    k: int = 5
    """Neighbors (the paper searched 3, 5, 10)."""
    c: float = 1.0
    """Constant inside the logarithm."""
    distance_power: float | Literal["dim"] = 1.0
    """p; `dim` is the exponent as printed, the width of z."""
    average: bool = True
    """Average over the k neighbors (eq. 4); False takes the k-th alone (eq. 3)."""
    include_self: bool = False
    """Count the particle as its own neighbor, as the authors' code does."""
    neighbors: Literal["nearest", "random"] = "nearest"
    """`random`: the paper's ablation."""
    particle: Literal["next", "current"] = "next"
    """Which state of the transition is scored: s' (the text) or s (the equation)."""
    pool: Pool = 0
    """Particles drawn from the replay to search; 0: the minibatch itself, which on several ranks is each
    one's own part of it; `all_ranks`: the parts of all of them."""
    normalize: Literal["reward_mean", "distance_mean", "distance_variance", "none"] = "reward_mean"
    """Divide the reward by its running mean (the paper), distances by theirs (URLB's code) or by their
    running variance (the authors' Atari code), before the logarithm, or nothing. The variance is no scale:
    with features twice as large, distances are half as large after it."""
    mean_momentum: float | None = None
    """Momentum of the running mean; None averages over everything seen, as the variance always does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        momentum = self.mean_momentum
        require(
            momentum is None or 0 <= momentum < 1, "mean_momentum", momentum, "None or a number in [0, 1)"
        )
        if self.normalize == "distance_variance":
            expected = "None with normalize = 'distance_variance'"
            require(momentum is None, "mean_momentum", momentum, expected)
        require_positive(self, "k")
        require(self.k > self.include_self, "k", self.k, "2 or more with include_self = True")
        require(self.c >= 0, "c", self.c, "0 or more")
        if self.normalize == "reward_mean":  # below 1 the logarithm can be negative, and so can its mean
            require(self.c >= 1, "c", self.c, "1 or more with normalize = 'reward_mean'")
        require_pool(self.pool, "particles")


class APT(Method):
    """Rewards states that lie far from their nearest neighbors."""

    Config = APTConfig
    about = About(
        family="data",
        year=2021,
        reward="distance to the nearest neighbors, in a learned space or between raw states",
        paper="Liu & Abbeel, arXiv:2103.04551",
    )
    splits_over_ranks = True

    def __init__(self, spec: EnvSpec, config: APTConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.config: APTConfig = config
        self.mean = RunningMean(config.mean_momentum)
        by_variance = config.normalize == "distance_variance"
        # The floor keeps distances finite where all particles are equally far apart.
        self.moments = RunningMoments(floor=1e-4) if by_variance else None

    @classmethod
    def check(cls, spec: EnvSpec, config: RunConfig) -> None:
        """Refuse to search more neighbors than there are."""
        method = config.method
        assert isinstance(method, APTConfig)
        require_neighbors(config, method.k, pool=method.pool, include_self=method.include_self)

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """Return eq. 5, on a consistent scale."""
        config = self.config
        z = latents.z_next if config.particle == "next" else latents.z  # (B, dim)
        if config.pool == "all_ranks":
            return self.knn_reward(z, particles_of_ranks(z), own_first=True)
        return self.knn_reward(z, latents.pool(config.pool) if config.pool else None)

    @fusable
    def knn_reward(self, z: Tensor, particles: Tensor | None, own_first: bool = False) -> Tensor:
        """The k-NN reward of each of (B, dim) among themselves, or particles that may begin with them."""
        config = self.config

        def score(c: float, distance_power: float | Literal["dim"]) -> Tensor:
            return particle_reward(
                z,
                particles=particles,
                own_first=own_first,
                k=config.k,
                c=c,
                distance_power=distance_power,
                include_self=config.include_self,
                average=config.average,
                neighbors=config.neighbors,
            )

        if config.normalize in ("distance_mean", "distance_variance"):
            distance = score(c=0.0, distance_power=1.0).exp()  # (B,)
            self.mean.update(distance)
            if self.moments is not None:
                self.moments.update(distance[:, None])
            if config.distance_power == 1:  # one search is enough
                return (self.scaled(distance) + config.c).log()
            # Scaling z scales every distance.
            z, particles = self.scaled(z), None if particles is None else self.scaled(particles)
        reward = score(config.c, config.distance_power)
        if config.normalize == "reward_mean":
            self.mean.update(reward)
            reward = self.mean(reward)
        return reward

    def scaled(self, x: Tensor) -> Tensor:
        """Divide distances, or what they are between, by their running mean or variance."""
        if self.moments is not None:
            return x / self.moments.std.square()
        by_mean: Tensor = self.mean(x)
        return by_mean

    def metrics(self) -> Metrics:
        """The running mean shows how the space shrinks or grows."""
        if self.moments is None:
            return {"particle_mean": self.mean.mean}
        return {"particle_mean": self.mean.mean, "particle_variance": self.moments.std.square()[0]}
