"""The sum of losses that train the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor


class Aside:
    """A context for a loss that changes no weights: here in the order of the code; the engine overlaps it."""

    @contextmanager
    def __call__(self, *read: Any) -> Iterator[None]:
        """Compute what is inside, which reads these tensors."""
        yield

    def join(self) -> None:
        """Wait for it."""


class JointLoss:
    """Losses of the same weights that wait to be minimized together, in one backward pass.

    No weight changes before that, so that one of them may be computed aside.
    """

    def __init__(self, aside: Aside | None = None) -> None:
        self.aside = aside or Aside()
        self.optimizers: list[str] = []
        self.priority_terms: list[Tensor] = []
        """(B,) each: errors of the learner's transitions, whose sum becomes their priority in the replay."""
        self._terms: list[Tensor] = []

    def __bool__(self) -> bool:
        """Whether a loss waits."""
        return bool(self._terms)

    def add(self, value: Tensor, optimizers: list[str]) -> None:
        """Add a loss to the sum."""
        self._terms.append(value)
        self.optimizers += [name for name in optimizers if name not in self.optimizers]

    def total(self) -> Tensor:
        """Return the sum, and clear it."""
        self.aside.join()
        terms, self._terms = self._terms, []
        return reduce(torch.add, terms)
