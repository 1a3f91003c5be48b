"""Prioritized sampling on the device (Schaul et al. 2016)."""

from __future__ import annotations

from torch import Tensor


class Priorities:
    """The priority of every slot of a replay."""

    def update(self, slots: Tensor, error: Tensor) -> None:
        """Set the priorities of (B,) slots by the (B,) errors of their transitions."""
        raise NotImplementedError
