"""APT: the particle-based entropy of the states visited (Liu & Abbeel 2021, eq. 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from voidrl.config import MethodConfig, OptionalSize, Size, require
from voidrl.config.checks import Momentum
from voidrl.entropy import RunningMean, RunningMoments, particle_reward
from voidrl.kernels.fusion import fusable
from voidrl.methods.base import About, Latents, Method, whole_minibatch
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Metrics


@dataclass(frozen=True)
class ParticleConfig(MethodConfig):
    """A reward that grows with the distance to neighbors, scaled by a running mean."""

    k: Size = 5
    """Neighbors (APT's paper searched 3, 5, 10)."""
    include_self: bool = False
    """Count a particle as its own neighbor, as the code of APT's authors and URLB's do."""
    mean_momentum: Momentum | None = None
    """Momentum of the running mean; None averages over everything seen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.k > self.include_self, "k", self.k, "2 or more with include_self = True")


@dataclass(frozen=True)
class APTConfig(ParticleConfig):
    """r = log(1 + mean over k neighbors of ‖z − z_j‖), divided by its running mean or otherwise scaled."""

    average: bool = True
    """Average over the k neighbors (eq. 4); False takes the k-th alone (eq. 3)."""
    neighbors: Literal["nearest", "random"] = "nearest"
    """`nearest`, or `random` ones (the paper's ablation)."""
    particle: Literal["next", "current"] = "next"
    """The state that is scored: `next`, s' (the paper's text), or `current`, s (its equation)."""
    pool: OptionalSize = 0
    """Particles drawn from the replay to search; 0: the minibatch itself."""
    normalize: Literal["reward_mean", "distance_mean", "distance_variance", "none"] = "reward_mean"
    """Divide the reward by its running mean (`reward_mean`, the paper), distances by theirs (`distance_mean`,
    URLB's code) or by their running variance (`distance_variance`, the authors' Atari code), or nothing
    (`none`). After the variance, features twice as large give distances half as large."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalize == "distance_variance":
            expected = "None with normalize = 'distance_variance'"
            require(self.mean_momentum is None, "mean_momentum", self.mean_momentum, expected)


class APT(Method):
    """Rewards states that lie far from their nearest neighbors."""

    Config = APTConfig
    config: APTConfig
    about = About("data", 2021, "Liu & Abbeel, arXiv:2103.04551")

    def __init__(self, spec: EnvSpec, config: APTConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.mean = RunningMean(config.mean_momentum)
        by_variance = config.normalize == "distance_variance"
        # The floor keeps distances finite where all particles are equally far apart.
        self.moments = RunningMoments(floor=1e-4) if by_variance else None

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """Return eq. 5, on a consistent scale."""
        config = self.config
        z = latents.z_next if config.particle == "next" else latents.z  # (B, dim)
        particles = latents.pool(config.pool) if config.pool else whole_minibatch(z)
        return self.knn_reward(z, particles, own_first=not config.pool)

    @fusable
    def knn_reward(self, z: Tensor, particles: Tensor, own_first: bool = False) -> Tensor:
        """The k-NN reward of each of (B, dim) among particles, which may begin with them."""
        config = self.config
        by_distance = config.normalize in ("distance_mean", "distance_variance")
        reward = particle_reward(
            z,
            particles=particles,
            own_first=own_first,
            k=config.k,
            c=0.0 if by_distance else 1.0,
            include_self=config.include_self,
            average=config.average,
            neighbors=config.neighbors,
        )  # (B,)
        if by_distance:
            distance = reward.exp()
            self.mean.update(distance)
            if self.moments is None:
                distance = self.mean(distance)
            else:
                self.moments.update(distance[:, None])
                distance = distance / self.moments.std.square()
            return (distance + 1.0).log()
        if config.normalize == "reward_mean":
            self.mean.update(reward)
            reward = self.mean(reward)
        return reward

    def metrics(self) -> Metrics:
        """The running mean shows how the space shrinks or grows."""
        if self.moments is None:
            return {"particle_mean": self.mean.mean}
        return {"particle_mean": self.mean.mean, "particle_variance": self.moments.std.square()[0]}
