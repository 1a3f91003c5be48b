"""Samples of a replay: single transitions, and several that belong together."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.types import Batch

# Why no n-step sum runs past the step taken in a slot; 0 where it does. Only termination ends the value.
TERMINATED, TRUNCATED, SKILL_ENDED = 1, 2, 3


class Draw(NamedTuple):
    """A sample of transitions for the learner."""

    slots: Tensor  # (B,)
    weight: Tensor  # (B,) importance weights, 1 where sampling is uniform


class Segment(NamedTuple):
    """Up to n steps from each of B starts, fewer where the episode, the skill or the data ends."""

    slots: Tensor  # (B, n) the step's slot; after the last valid step, that step's again
    weights: Tensor  # (B, n) γ^i, 0 after the last valid step
    states: Tensor  # (B, n + 1) slot of each state passed through; after the last one, that one again
    discount: Tensor  # (B,) factor of that state's value: γ^m, 0 where the episode terminated


class OptionSlots(NamedTuple):
    """The options that B transitions belong to: from one ending up to the next."""

    first: Tensor  # (B,) slot of the first state
    last: Tensor  # (B,) slot of the state after the last step
    steps: Tensor  # (B,) length of the option
    complete: Tensor  # (B,) bool: it has ended within the steps searched, and both states are stored


class Rollout(NamedTuple):
    """The newest steps of N environments: P transitions, row by row in a grid of time steps.

    An episode that ends leaves one place of the grid empty, that of its reset.
    """

    slots: Tensor  # (P,) oldest first
    batch: Batch  # (P, …) single steps
    ends: Tensor  # (P,) bool: no return runs past this step
    real: Tensor  # (R, N) bool: the places of the P steps

    def grid(self, x: Tensor) -> Tensor:
        """(P,) → (R, N), 0 in empty places."""
        empty = torch.zeros(self.real.shape, dtype=x.dtype, device=x.device)
        return empty.masked_scatter(self.real, x)

    def path_sums(self, x: Tensor) -> Tensor:
        """(P,): x summed over the steps of the same episode up to and including each."""
        total = F.pad(self.grid(x).cumsum(0), (0, 0, 1, 0))  # (R + 1, N)
        row = torch.arange(len(self.real), device=x.device)[:, None]
        begins = F.pad(~self.real[:-1], (0, 0, 1, 0), value=True)  # after an empty place
        first = torch.where(begins, row, 0).cummax(0).values  # (R, N) the row in which the episode begins
        sums: Tensor = (total[1:] - total.gather(0, first))[self.real]
        return sums
