"""The sum of losses that train the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor


class JointLoss:
    """Losses of the same weights that wait to be minimized together, in one backward pass.

    No weight changes before that, so that one of them may be computed on a second CUDA stream, `side`. Its
    gradients are computed there too, since autograd returns to the stream of the forward pass.
    """

    def __init__(self, side: torch.cuda.Stream | None = None) -> None:
        self.optimizers: list[str] = []
        self.errors: list[Tensor] = []
        """(B,) each: what makes up the priorities of the learner's transitions."""
        self._terms: list[Tensor] = []
        self._side = side
        self._read_beside: tuple[Any, ...] = ()

    def __bool__(self) -> bool:
        """Whether a loss waits."""
        return bool(self._terms)

    @contextmanager
    def beside(self, *read: Any) -> Iterator[None]:
        """Inside, kernels are launched on the second stream, if there is one, until `total` waits for them.

        `read` is what they read of the present stream, whose memory is not given to others meanwhile.
        """
        if self._side is None:
            yield
            return
        self._read_beside = read
        self._side.wait_stream(torch.cuda.current_stream(self._side.device))
        with torch.cuda.stream(self._side):
            yield

    def add(self, value: Tensor, optimizers: list[str]) -> None:
        """Add a loss to the sum."""
        self._terms.append(value)
        self.optimizers += [name for name in optimizers if name not in self.optimizers]

    def total(self) -> Tensor:
        """The sum, which is then no longer kept."""
        if self._side is not None:
            torch.cuda.current_stream(self._side.device).wait_stream(self._side)
        terms, self._terms, self._read_beside = self._terms, [], ()
        return reduce(torch.add, terms)
