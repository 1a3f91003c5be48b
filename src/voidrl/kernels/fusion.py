"""The mark of methods that the engine may compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable)


def fusable(method: F) -> F:
    """Mark a method as tensors in, tensors out: no host reads, no Python state that changes.

    With `engine = "compile"` its small kernels are fused into few; otherwise the mark means nothing.
    """
    method.fusable = True  # type: ignore[attr-defined]
    return method
