"""Prioritized sampling on the device (Schaul et al. 2016): P ∝ p^α, importance weights ∝ P^−β.

Differences from the original:
- No sum tree, which would take twenty dependent launches per draw and as many per update. Sums of blocks are
  computed with each draw: nothing has to be kept consistent, and nothing drifts.
- p^α is rounded to whole units of 2⁻²⁰, the smallest priority there is; the original adds a small constant.
  Whole numbers are summed exactly in float64, in whatever order. Otherwise rounding would make some entries
  unreachable, and now and then select one whose priority is 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from voidrl import dist
from voidrl.kernels.fusion import fusable

BLOCK = 1024
"""Slots whose priorities are summed first, then searched together."""
UNIT = 2.0**-20
EXACT = 2.0**53
"""Up to here float64 has every whole number."""
BELOW_ONE = 1 - 2.0**-50
NEW, NONE = float("inf"), 0.0
"""Stored where a transition is new, and where there is none."""


class Priorities:
    """The priority p^α of every slot of a replay: 8 MB for a million slots.

    Everything is on the device where the replay is stored, and no method waits for it. With float32, half the
    memory, each draw would begin by converting all of them.
    """

    def __init__(
        self, slots: int, exponent: float, importance: tuple[float, float], storage: torch.device
    ) -> None:
        """Priorities of empty slots. α is `exponent`; β is the importance, which changes linearly."""
        self.exponent, self.importance_range = exponent, importance

        def full(size: int, value: float) -> Tensor:
            return torch.full((size,), value, dtype=torch.float64, device=storage)

        self.values = full(-(-slots // BLOCK) * BLOCK, NONE)  # in units
        # A power of two, so that sums of any of them are exact.
        self.limit = 2.0 ** math.floor(math.log2(EXACT / len(self.values)))
        # One element each: compiled code may lose writes to tensors without dimensions.
        self.highest = full(1, 1 / UNIT)
        self.importance = full(1, importance[0])
        self._strata: dict[int, Tensor] = {}

    def draw(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """(B,) slots and their importance weights; some slot must have a transition.

        The total is divided into B strata, and one slot is drawn from each. Each rank draws B from its own
        priorities, P = p / (ranks · Σ p of the rank). Weights are relative to the largest of all ranks.
        """
        if batch_size not in self._strata:
            index = torch.arange(batch_size, dtype=torch.float64, device=self.values.device)
            self._strata[batch_size] = index
        slots, weight = self._draw(self._strata[batch_size])
        if dist.current().is_distributed:
            chance = self.values[slots] / self.values.sum()
            weight = ((dist.min_(chance.amin()) / chance) ** self.importance).float()
        return slots, weight

    @fusable
    def _draw(self, strata: Tensor) -> tuple[Tensor, Tensor]:
        uniform = torch.rand(len(strata), dtype=torch.float64, device=strata.device)
        # Farther below 1 than rounding can reach, so that the last stratum stays inside the total.
        stratum = BELOW_ONE / len(strata)
        # New transitions get the highest priority so far.
        blocks = self.values.clamp_(max=self.highest).view(-1, BLOCK)
        sums = blocks.sum(1)
        ends = sums.cumsum(0)
        target = (uniform + strata) * stratum * ends[-1]  # (B,)
        block = torch.searchsorted(ends, target, right=True)
        target = target - (ends - sums)[block]
        inside = blocks[block].cumsum(1)  # (B, BLOCK)
        slots = torch.searchsorted(inside, target[:, None], right=True).squeeze(1)
        slots = torch.add(slots, block, alpha=BLOCK)
        drawn = self.values[slots]
        # (N · P)^−β, divided by its maximum: N and the total cancel.
        return slots, ((drawn.amin() / drawn) ** self.importance).float()

    @fusable
    def update(self, slots: Tensor, error: Tensor) -> None:
        """Set the priorities of (B,) slots by the (B,) errors of their transitions.

        For a slot that was drawn several times the largest error counts. Errors that are not finite do not
        spoil the draws, so that the loss which they come from can be reported.
        """
        error = error.detach().to(self.values.device)
        units = (error.double() ** self.exponent / UNIT).nan_to_num(nan=0.0).clamp(1, self.limit).round()
        self.values.scatter_reduce_(0, slots, units, "amax", include_self=False)
        self.highest.copy_(torch.maximum(self.highest, units.amax()))
        if dist.current().is_distributed:  # what is new has the highest priority of all ranks
            self.highest.copy_(-dist.min_(-self.highest))

    def set_progress(self, fraction: float) -> None:
        """Set β to its value after this fraction of the run."""
        start, end = self.importance_range
        self.importance.fill_(start + (end - start) * min(fraction, 1.0))

    def state(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint, without β, which follows from the progress of the run."""
        return {"priority": self.values, "highest_priority": self.highest}
