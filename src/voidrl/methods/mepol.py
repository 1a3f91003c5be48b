"""MEPOL: a policy whose rollouts spread over the states (Mutti, Pratissoli & Restelli 2020).

Not a reward: the policy follows the gradient of the k-NN entropy of the states that its own rollouts reach,

    Ĥ = −Σ_i W_i log(W_i / V_i) − ψ(k),

where V_i is the volume of the ball from state i to its k-th neighbor and W_i the share of the new policy's
visits in it, by importance weights. That takes a learner of its own, `voidrl.learners.mepol`, which is the
learner of this method and of no other. The method says what a neighborhood is. Its `reward`, log V_i within a
batch, is what one state adds to the entropy of equally weighted ones; it is logged and probed, not maximized.

Differences from the paper and its code: a neighborhood is the k nearest others and its ball reaches to the
last of them, where the code sums the weights of the state itself and of k − 1 others; the W_i are divided by
their sum, which is k only on average, so that Ĥ and its gradient do not depend on units of the states and K̂L
is never negative; balls have a least radius, for states that are visited again and again; the entropy logged
is that of the new policy. Images are compared by f: by default a random encoder that never changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from voidrl.config import Config as RunConfig
from voidrl.config import MethodConfig, Size
from voidrl.entropy import Neighborhoods, neighborhoods
from voidrl.errors import NeighborError
from voidrl.methods.base import About, Latents, Method
from voidrl.types import Batch, EnvSpec

MIN_RADIUS = 0.01  # of balls, relative to the mean; those of states visited many times would be points


@dataclass(frozen=True)
class MEPOLConfig(MethodConfig):
    """Ĥ of the states that a rollout reaches."""

    k: Size = 4
    """Number of neighbors; the authors' grid has 50."""


class MEPOL(Method):
    """Spreads the states that a rollout reaches."""

    Config = MEPOLConfig
    config: MEPOLConfig
    about = About("data", 2020, "Mutti et al., arXiv:2007.04640")
    image_representation = "fixed"
    learner = "mepol"

    @classmethod
    def check(cls, spec: EnvSpec, config: RunConfig) -> None:
        """Refuse rollouts with fewer states than neighbors."""
        k, steps, envs = config.method.k, config.learner.rollout_steps, config.env.num_envs  # type: ignore[attr-defined]
        if k >= steps * envs:
            raise NeighborError(
                f"method.k = {k} cannot be used with learner.rollout_steps = {steps} and env.num_envs = "
                f"{envs}: a state has {steps * envs - 1} others in its rollout; lower k, or use longer "
                f"rollouts"
            )

    def neighborhoods(self, z_next: Tensor) -> Neighborhoods:
        """The k nearest of the states that a rollout reached; of fewer than k, all."""
        k = min(self.config.k, len(z_next) - 1)
        return neighborhoods(z_next, k, min_radius=MIN_RADIUS)

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The log-volume of each state's ball, among the states of the batch."""
        return self.neighborhoods(latents.z_next).log_volume.float()
