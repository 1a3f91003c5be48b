"""The paper's "do not die" reward: 1 for every step that does not end the episode, and no entropy."""

from __future__ import annotations

from torch import Tensor

from voidrl.methods.base import About, Latents, Method
from voidrl.types import Batch


class Positive(Method):
    """Rewards staying alive."""

    about = About("baseline", 2021, "Liu & Abbeel, arXiv:2103.04551")
    reads_latents = False
    constant_reward = True

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """1, or 0 where the episode terminated."""
        return (batch.discount > 0).float()
