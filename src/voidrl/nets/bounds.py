"""Limits of values: the sums that the rewards seen so far could add up to."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voidrl import dist
from voidrl.config import LearnerConfig
from voidrl.kernels.fusion import fusable


class ValueBounds(nn.Module):
    """Limits of TD targets, from the smallest and largest n-step reward seen so far.

    A value is a sum of n-step rewards R, each worth γⁿ of the one before, so it lies within R / (1 − γⁿ).
    An episode may end after any of them, so 0 is always possible. A critic that learns from its own errors
    leaves these limits; targets that are clamped to them cannot diverge.
    """

    def __init__(self, config: LearnerConfig) -> None:
        super().__init__()
        self.is_used = config.clamp_targets
        shortest = min(config.n_step, config.n_step_end or config.n_step)
        self.factor = 1 / (1 - config.largest_discount**shortest)
        self.low = nn.Buffer(torch.zeros(()))
        self.high = nn.Buffer(torch.zeros(()))

    @torch.no_grad()
    def observe(self, reward: Tensor) -> None:
        """Widen the limits by a batch of n-step rewards, scalars or vectors."""
        self._widen(reward)
        if dist.current().is_distributed:
            found = dist.min_(torch.stack([self.low, -self.high]))
            self.low.copy_(found[0])
            self.high.copy_(-found[1])

    @fusable
    def _widen(self, reward: Tensor) -> None:
        low, high = torch.aminmax(reward.float())
        self.low.copy_(torch.minimum(self.low, low))
        self.high.copy_(torch.maximum(self.high, high))

    def forget(self) -> None:
        """Begin again: the scale of rewards has changed."""
        self.low.zero_()
        self.high.zero_()

    @property
    def limit(self) -> Tensor:
        """(): the largest absolute value that rewards allow."""
        return torch.maximum(-self.low, self.high) * self.factor

    def clamp(self, target: Tensor, below: Tensor | float = 0.0, above: Tensor | float = 0.0) -> Tensor:
        """Targets within the limits, which an entropy bonus moves apart by `below` and `above`."""
        if not self.is_used:
            return target
        is_known = self.high > self.low  # before the first reward other than 0, anything is possible
        low = torch.where(is_known, self.low * self.factor - below, -torch.inf)
        return target.clamp(low, torch.where(is_known, self.high * self.factor + above, torch.inf))
