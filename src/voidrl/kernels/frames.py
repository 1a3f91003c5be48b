"""Compressed frames → words, a program each: mask, count, and one read from the record or the key frame."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

MAX_WORDS = 2**14  # of a frame: 128 KiB
NUM_WARPS = 8


@triton.jit  # type: ignore[untyped-decorator]
def _decode(
    ring: tl.tensor,  # int64 words
    begin: tl.tensor,  # (S,) int64 of each slot: its record in the ring
    key: tl.tensor,  # (S,) int32 of each slot: its key frame
    keys: tl.tensor,  # (K, WORDS) int64
    slots: tl.tensor,  # (n,) int64
    out: tl.tensor,  # (n, WORDS) int64
    WORDS: tl.constexpr,  # noqa: N803
    MASK_WORDS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
) -> None:
    frame = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + frame)
    record = ring + tl.load(begin + slot)
    source = keys + tl.load(key + slot).to(tl.int64) * WORDS
    word = tl.arange(0, BLOCK)
    inside = word < WORDS
    mask = tl.load(record + word // 64, mask=inside, other=0)
    differs = ((mask >> (word % 64).to(tl.int64)) & 1).to(tl.int32)
    count = tl.cumsum(differs, 0)
    changed = differs == 1
    stored = tl.load(record + (MASK_WORDS - 1) + count, mask=changed, other=0)
    same = tl.load(source + word, mask=inside & (differs == 0), other=0)
    tl.store(out + frame * WORDS + word, tl.where(changed, stored, same), mask=inside)


@torch.library.custom_op(
    "voidrl::decode_frames",
    mutates_args=(),
    schema="(Tensor ring, Tensor begin, Tensor key, Tensor keys, Tensor slots) -> Tensor",
)
def decode(ring: Tensor, begin: Tensor, key: Tensor, keys: Tensor, slots: Tensor) -> Tensor:
    """(n,) slots → (n, W) words of their frames; see `voidrl.replay.compression`."""
    words = keys.shape[1]
    out = keys.new_empty(len(slots), words)
    with torch.cuda.device_of(keys):
        _decode[(len(slots),)](
            ring,
            begin,
            key,
            keys,
            slots.contiguous(),
            out,
            WORDS=words,
            MASK_WORDS=-(-words // 64),
            BLOCK=triton.next_power_of_2(words),
            num_warps=NUM_WARPS,
        )
    return out


@decode.register_fake
def _(ring: Tensor, begin: Tensor, key: Tensor, keys: Tensor, slots: Tensor) -> Tensor:
    return keys.new_empty(len(slots), keys.shape[1])
