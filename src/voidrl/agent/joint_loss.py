"""Losses of the representation, and the sum of losses that train the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from voidrl.errors import ConfigError
from voidrl.types import Metrics


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


def require_loss(name: str, returned: Any, n: int) -> tuple[Tensor, Metrics]:
    """What a representation's `loss` of n transitions returned, if that can be minimized."""
    fits = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)
    loss = returned[0] if fits else returned
    if not fits or not isinstance(loss, Tensor) or loss.shape not in ((), (n,)):
        given = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigError(
            f"loss of representation {name!r} returned {given}: expected a scalar tensor, or one loss for "
            f"each transition, and a dictionary of metrics"
        )
    if not loss.requires_grad:
        raise ConfigError(
            f"loss of representation {name!r} has no gradient: expected one that depends on trainable "
            f"weights; look for .detach() or torch.no_grad()"
        )
    return loss, returned[1]
