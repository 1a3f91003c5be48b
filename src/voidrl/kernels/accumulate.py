"""A row of metrics added to its sums, with a count of the finite ones, in one launch instead of four."""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor


@triton.jit  # type: ignore[untyped-decorator]
def _accumulate(
    row: tl.tensor,  # (keys,)
    sums: tl.tensor,  # (keys,) float64
    finite: tl.tensor,  # (keys,) float64
    keys: tl.tensor,
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    at = tl.arange(0, BLOCK)
    inside = at < keys
    value = tl.load(row + at, mask=inside, other=0.0).to(tl.float64)
    total = tl.load(sums + at, mask=inside, other=0.0) + value
    adds = tl.load(finite + at, mask=inside, other=0.0)
    tl.store(sums + at, total, mask=inside)
    tl.store(finite + at, adds + (tl.abs(total) < float("inf")).to(tl.float64), mask=inside)


def accumulate(row: Tensor, sums: Tensor, finite: Tensor) -> None:
    """Add a row to its sums, and 1 to `finite` where the sum is finite; (keys,) each."""
    keys = row.numel()
    _accumulate[(1,)](row, sums, finite, keys, BLOCK=triton.next_power_of_2(keys), num_warps=1)
