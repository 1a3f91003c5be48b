"""Stored frames → network input in one pass: gathered, stacked, shifted, jittered, scaled and cast.

A program makes a block of one observation's pixels with all their channels. Neighbouring threads read
neighbouring pixels of one channel's plane and write neighbouring pixels of the result, in which the channels
lie innermost. What it must move is all it moves: every frame is read once and every value written once.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

BLOCK_VALUES = 16384  # that a program makes
NUM_WARPS = 4


@triton.jit  # type: ignore[untyped-decorator]
def _images(
    source: tl.tensor,  # (S, CHANNELS, HEIGHT, WIDTH) uint8
    index: tl.tensor,  # (B, STACK) with these strides, or None: the sources are the observations
    index_stride: tl.tensor,
    stack_stride: tl.tensor,
    shift: tl.tensor,  # (2, B): dy, dx; or None
    noise: tl.tensor,  # (B,) float32; or None
    scale: tl.tensor,
    out: tl.tensor,  # (B, HEIGHT / FOLD, WIDTH / FOLD, PADDED)
    batch: tl.tensor,
    STACK: tl.constexpr,  # noqa: N803
    CHANNELS: tl.constexpr,  # noqa: N803
    HEIGHT: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    FOLD: tl.constexpr,  # noqa: N803
    PADDED: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803 (PADDED or the next power of two, as a tile must be)
    BLOCK: tl.constexpr,  # noqa: N803
    EXACT: tl.constexpr,  # noqa: N803
) -> None:
    width: tl.constexpr = WIDTH // FOLD
    pixels: tl.constexpr = HEIGHT // FOLD * width  # of the result
    blocks: tl.constexpr = (pixels + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    b = (program // blocks).to(tl.int64)
    pixel = (program % blocks * BLOCK + tl.arange(0, BLOCK))[None, :]
    channel = tl.arange(0, TILE)[:, None]
    # FOLD² pixels of a plane are the channels of one pixel of the result, as `pixel_unshuffle` has them.
    part, fold = channel // (FOLD * FOLD), channel % (FOLD * FOLD)
    y, x = pixel // width * FOLD, pixel % width * FOLD  # (1, BLOCK)
    if FOLD > 1:
        y, x = y + fold // FOLD, x + fold % FOLD  # (TILE, BLOCK)
    if shift is not None:  # clamped: what comes in from outside repeats the edge
        y = tl.minimum(tl.maximum(y + tl.load(shift + b).to(tl.int32), 0), HEIGHT - 1)
        x = tl.minimum(tl.maximum(x + tl.load(shift + batch + b).to(tl.int32), 0), WIDTH - 1)
    real = part < STACK * CHANNELS
    if index is not None:
        frame = tl.load(index + b * index_stride + part // CHANNELS * stack_stride, mask=real, other=0)
        plane = frame.to(tl.int64) * CHANNELS + part % CHANNELS  # a ring may exceed 2³¹ bytes
    else:
        plane = b * CHANNELS + part
    inside = pixel < pixels
    byte = tl.load(source + plane * (HEIGHT * WIDTH) + (y * WIDTH + x), mask=real & inside, other=0)
    gain = 1.0
    if noise is not None:
        gain = 1 + scale * tl.minimum(tl.maximum(tl.load(noise + b), -2.0), 2.0)
    value = byte.to(tl.float32)
    if EXACT:  # noqa: SIM108
        value = value / 255 * gain - 0.5
    else:  # one multiply-add each; rounding to 16 bits hides the difference
        value = value * (gain / 255) - 0.5
    value = tl.where(real, value, 0.0)
    target = out + b * (pixels * PADDED) + pixel * PADDED + channel
    tl.store(target, value.to(out.dtype.element_ty), mask=(channel < PADDED) & inside)


@torch.library.custom_op(
    "voidrl::images",
    mutates_args=(),
    schema="(Tensor source, Tensor? index, Tensor? shift, Tensor? noise, float scale, int fold, "
    "int multiple, ScalarType dtype) -> Tensor",
)
def images(
    source: Tensor,
    index: Tensor | None,
    shift: Tensor | None,
    noise: Tensor | None,
    scale: float,
    fold: int,
    multiple: int,
    dtype: torch.dtype,
) -> Tensor:
    """x/255 · (1 + scale · clip(noise, −2, 2)) − 0.5 of shifted stacks, channels last in a `Layout`.

    `source` is (S, C, H, W) uint8; `index` (B, stack) says which of its frames make up an observation, oldest
    first, and None that each is one. `shift` is (2, B), rows then columns, and `noise` (B,).
    """
    out = _empty(source, index, fold, multiple, dtype)
    source = source.contiguous()
    stack = 1 if index is None else index.shape[1]
    _, c, h, w = source.shape
    assert source.dtype == torch.uint8, source.dtype
    tile = triton.next_power_of_2(out.shape[1])
    block = max(16, BLOCK_VALUES // tile)
    with torch.cuda.device_of(source):
        _images[(len(out) * triton.cdiv(h * w // fold**2, block),)](
            source,
            index,
            *((0, 0) if index is None else index.stride()),
            None if shift is None else shift.contiguous(),
            None if noise is None else noise.contiguous(),
            scale,
            out,
            len(out),
            STACK=stack,
            CHANNELS=c,
            HEIGHT=h,
            WIDTH=w,
            FOLD=fold,
            PADDED=out.shape[1],
            TILE=tile,
            BLOCK=block,
            EXACT=dtype == torch.float32,
            num_warps=NUM_WARPS,
        )
    return out


@images.register_fake
def _(
    source: Tensor,
    index: Tensor | None,
    shift: Tensor | None,
    noise: Tensor | None,
    scale: float,
    fold: int,
    multiple: int,
    dtype: torch.dtype,
) -> Tensor:
    return _empty(source, index, fold, multiple, dtype)


def _empty(source: Tensor, index: Tensor | None, fold: int, multiple: int, dtype: torch.dtype) -> Tensor:
    stack = 1 if index is None else index.shape[1]
    _, c, h, w = source.shape
    channels = -(-stack * c * fold**2 // multiple) * multiple
    assert channels % fold**2 == h % fold == w % fold == 0, (source.shape, fold, multiple)
    shape = (len(source if index is None else index), channels, h // fold, w // fold)
    return torch.empty(shape, dtype=dtype, device=source.device, memory_format=torch.channels_last)
