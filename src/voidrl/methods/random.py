"""Uniform random actions; nothing is learned. The baseline of every measure of exploration."""

from __future__ import annotations

import torch
from torch import Tensor

from voidrl.methods.base import About, Latents, Method
from voidrl.types import Batch


class Random(Method):
    """Acts at random."""

    about = About("baseline", None, "")
    learns = False
    constant_reward = True

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """0 everywhere."""
        return torch.zeros_like(batch.reward)
