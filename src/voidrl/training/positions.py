"""Counts of visited positions, whose range nobody has to declare."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from voidrl.errors import CheckpointError

BINS = 64  # at most, along each axis
FINEST = -20  # log2 of a bin's width at the start: less than a millionth
MAX_LEVEL = 40
FARTHEST = 1e12  # positions beyond it are ignored


class Positions:
    """Counts of (x, y) in square bins of width 2^`level`, whose edges are multiples of it.

    Where the bins do not reach, 2 × 2 of them become one until they do. The result does not depend on the
    order of the positions.
    """

    def __init__(self) -> None:
        self.level = FINEST
        self.first = np.zeros(2, np.int64)
        """The lowest bins in use, in multiples of their width."""
        self.counts = np.zeros((0, 0), np.int64)
        """By x, then y, from `first` on; (0, 0) before the first position."""

    def add(self, positions: np.ndarray) -> None:
        """Count positions, (n, 2) float64; those that are not finite or too far away are ignored."""
        positions = positions[(np.abs(positions) <= FARTHEST).all(1)]
        bins = np.floor(np.ldexp(positions, -self.level)).astype(np.int64)  # exact
        if ((bins < self.first) | (bins >= self.first + self.counts.shape)).any():
            used, counts = self.first + np.argwhere(self.counts), self.counts[self.counts > 0]
            low, high = np.concatenate([used, bins]).min(0), np.concatenate([used, bins]).max(0)
            doublings = 0
            while ((high >> doublings) - (low >> doublings) >= BINS).any():
                doublings += 1
            self.level, self.first = self.level + doublings, low >> doublings
            bins, self.counts = bins >> doublings, np.zeros((BINS, BINS), np.int64)
            np.add.at(self.counts, tuple(((used >> doublings) - self.first).T), counts)
        np.add.at(self.counts, tuple((bins - self.first).T), 1)

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint; nothing where no position was counted."""
        counts, where = torch.from_numpy(self.counts), torch.tensor([self.level, *self.first.tolist()])
        return {"positions": counts, "position_bins": where} if len(counts) else {}

    @classmethod
    def load(cls, tensors: Mapping[str, Tensor]) -> Positions:
        """The inverse of `state`."""
        found = cls()
        if "positions" in tensors:
            counts, where = tensors["positions"], tensors.get("position_bins", tensors["positions"])
            if counts.shape != (BINS, BINS) or where.shape != (3,) or abs(where[0]) > MAX_LEVEL:
                raise CheckpointError(f"counts of positions, {[*counts.shape]}, are damaged, or not voidrl's")
            found.counts, found.first, found.level = counts.numpy(), where[1:].numpy(), int(where[0])
        return found
