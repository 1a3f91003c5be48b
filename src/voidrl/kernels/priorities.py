# ruff: noqa: N803  (constants of a kernel are upper case)
"""Prioritized draws and updates on a GPU in few launches; `voidrl.replay.priorities` has the reference.

Priorities are whole numbers whose sums float64 holds exactly, so the slots are those that the reference
draws, whatever the order of summation. Powers come from logarithms; rounding, to whole units or to float32,
absorbs the difference but for the largest priorities.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

MAX_BLOCKS = 8192  # whose sums one program searches at once
MAX_BATCH = 4096  # one program has the whole batch


@torch.library.custom_op(
    "voidrl::draw_priorities",
    mutates_args=("values",),
    schema="(Tensor(a!) values, Tensor highest, Tensor importance, Tensor uniform, float stratum, int block)"
    " -> (Tensor, Tensor)",
)
def draw(
    values: Tensor, highest: Tensor, importance: Tensor, uniform: Tensor, stratum: float, block: int
) -> tuple[Tensor, Tensor]:
    """(B,) slots and importance weights, for (B,) random numbers; what is new gets the highest priority.

    All numbers are float64. There are a multiple of `block` priorities, a power of two, which one program
    sums; `highest` and `importance` have one element; each slot is drawn from a `stratum` of the total.
    """
    batch, blocks = len(uniform), len(values) // block
    sums, drawn = values.new_empty(blocks), values.new_empty(batch)
    slots, weight = _drawn_like(uniform)
    padded = triton.next_power_of_2(blocks)
    with torch.cuda.device_of(values):  # Triton launches on the current device
        _sum_blocks[(blocks,)](values, highest, sums, block, num_warps=4)
        _find[(batch,)](
            values, sums, uniform, slots, drawn, blocks, stratum, block, padded,
            num_warps=min(16, max(4, padded // 512)),
            enable_fp_fusion=False,  # a fused product and difference may be less than 0: see `_search`
        )  # fmt: skip
        whole = triton.next_power_of_2(batch)
        _weigh[(1,)](drawn, importance, weight, batch, whole, num_warps=_warps(whole))
    return slots, weight


draw.register_fake(lambda values, highest, importance, uniform, stratum, block: _drawn_like(uniform))


def _drawn_like(uniform: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(uniform, dtype=torch.int64), torch.empty_like(uniform, dtype=torch.float32)


@torch.library.custom_op(
    "voidrl::update_priorities",
    mutates_args=("values", "highest"),
    schema="(Tensor(a!) values, Tensor(b!) highest, Tensor slots, Tensor error, float exponent, float unit,"
    " float limit) -> ()",
)
def update(
    values: Tensor, highest: Tensor, slots: Tensor, error: Tensor, exponent: float, unit: float, limit: float
) -> None:
    """Set the priorities of (B,) slots by (B,) errors ≥ 0, in whole units, of which `limit` is the most."""
    whole = triton.next_power_of_2(len(slots))
    with torch.cuda.device_of(values):
        _update[(1,)](
            values.view(torch.int64), highest, slots.contiguous(), error.contiguous(), len(slots),
            exponent, unit, limit, whole, num_warps=_warps(whole),
        )  # fmt: skip


update.register_fake(lambda *arguments: None)


def _warps(batch: int) -> int:
    return min(16, max(1, batch // 64))


@triton.jit  # type: ignore[untyped-decorator]
def _sum_blocks(
    values: tl.tensor,  # (blocks · BLOCK,) float64
    highest: tl.tensor,  # (1,) float64
    sums: tl.tensor,  # (blocks,) float64
    BLOCK: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    value, top = tl.load(values + at), tl.load(highest)
    known = tl.minimum(value, top)
    tl.store(values + at, known, mask=value > top)  # few are new: almost nothing is written
    tl.store(sums + block, tl.sum(known, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def _find(
    values: tl.tensor,  # (blocks · BLOCK,) float64
    sums: tl.tensor,  # (blocks,) float64
    uniform: tl.tensor,  # (B,) float64
    slots: tl.tensor,  # (B,) int64
    drawn: tl.tensor,  # (B,) float64
    blocks: tl.tensor,
    STRATUM: tl.constexpr,  # as an argument it would be rounded to float32
    BLOCK: tl.constexpr, PADDED: tl.constexpr,
) -> None:  # fmt: skip
    sample = tl.program_id(0)
    at = tl.arange(0, PADDED)
    block_sums = tl.load(sums + at, mask=at < blocks, other=0.0)
    total = tl.sum(block_sums, axis=0)
    target = (tl.load(uniform + sample) + sample) * STRATUM * total
    block, target = _search(block_sums, target)
    block = tl.minimum(block, blocks - 1)  # if all are 0: nonsense, but no read outside
    inside = tl.arange(0, BLOCK)
    value = tl.load(values + block * BLOCK + inside)
    place, _ = _search(value, target)
    place = tl.minimum(place, BLOCK - 1)
    tl.store(slots + sample, (block * BLOCK + place).to(tl.int64))
    tl.store(drawn + sample, tl.sum(tl.where(inside == place, value, 0.0), axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def _search(parts: tl.tensor, target: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The part in which the target lies, and how far from its beginning: at least 0, or parts of 0 count."""
    ends = tl.cumsum(parts, axis=0)
    before = ends <= target
    return tl.sum(before.to(tl.int32), axis=0), target - tl.max(tl.where(before, ends, 0.0), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def _weigh(
    drawn: tl.tensor,  # (B,) float64
    importance: tl.tensor,  # (1,) float64
    weight: tl.tensor,  # (B,) float32
    batch: tl.tensor,
    PADDED: tl.constexpr,
) -> None:
    at = tl.arange(0, PADDED)
    inside = at < batch
    value = tl.load(drawn + at, mask=inside, other=float("inf"))
    rarest = tl.min(value, axis=0)
    tl.store(weight + at, _power(rarest / value, tl.load(importance)).to(tl.float32), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _update(
    bits: tl.tensor,  # (slots,) int64: those of priorities, which as positive numbers have the same order
    highest: tl.tensor,  # (1,) float64
    slots: tl.tensor,  # (B,) int64
    error: tl.tensor,  # (B,)
    batch: tl.tensor,
    EXPONENT: tl.constexpr, UNIT: tl.constexpr, LIMIT: tl.constexpr, PADDED: tl.constexpr,
) -> None:  # fmt: skip
    at = tl.arange(0, PADDED)
    inside = at < batch
    slot = tl.load(slots + at, mask=inside, other=0)
    tl.store(bits + slot, tl.zeros((PADDED,), tl.int64), mask=inside)
    units = tl.load(error + at, mask=inside, other=1.0).to(tl.float64)
    if EXPONENT != 1:  # exact, as units of float32 errors are often halves
        units = _power(units, EXPONENT)
    units = units / UNIT
    units = tl.minimum(tl.where(units > 1, units, 1.0), LIMIT)  # what is not a number becomes 1
    units = (units + 4503599627370496.0) - 4503599627370496.0  # 2⁵²: rounded, half to even, as the reference
    tl.debug_barrier()  # all old priorities are gone before the first new one comes
    tl.atomic_max(bits + slot, units.to(tl.int64, bitcast=True), mask=inside, sem="relaxed")
    largest = tl.max(tl.where(inside, units, 0.0), axis=0)
    tl.store(highest, tl.maximum(tl.load(highest), largest))


@triton.jit  # type: ignore[untyped-decorator]
def _power(base: tl.tensor, exponent: tl.tensor) -> tl.tensor:
    return tl.exp2(tl.log2(base) * exponent)  # exactly 1 for 1
