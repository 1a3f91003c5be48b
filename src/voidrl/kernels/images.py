# ruff: noqa: N803  (constants of a kernel are upper case)
"""Stored frames → network input in one pass: gathered, stacked, shifted, cropped, jittered, scaled and cast.

A program makes a block of one observation's pixels with all their channels, which are innermost in the
result. Every frame is read once and every value written once. Without folding, channels are read one by one,
at offsets computed once, and joined in registers: padding channels cost no reads.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

BLOCK_VALUES = 4096  # values per program
NUM_WARPS = 4
MAX_JOINED = 32  # channels; each is a separate read in the code


@triton.jit  # type: ignore[untyped-decorator]
def _images(
    source: tl.tensor,  # (S, CHANNELS, SOURCE_HEIGHT, SOURCE_WIDTH) uint8
    index: tl.tensor,  # (B, STACK) with these strides, or None: the sources are the observations
    index_stride: tl.tensor,
    stack_stride: tl.tensor,
    shift: tl.tensor,  # (2, B): dy, dx; or None: the middle
    low: tl.tensor,  # (2, B): where each window begins, of which only INNER_… are read; or None: at 0
    noise: tl.tensor,  # (B,) float32; or None
    scale: tl.tensor,
    out: tl.tensor,  # (B, HEIGHT / FOLD, WIDTH / FOLD, PADDED)
    batch: tl.tensor,
    STACK: tl.constexpr, CHANNELS: tl.constexpr, SOURCE_HEIGHT: tl.constexpr, SOURCE_WIDTH: tl.constexpr,
    INNER_HEIGHT: tl.constexpr, INNER_WIDTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    FOLD: tl.constexpr, PADDED: tl.constexpr,
    TILE: tl.constexpr,  # PADDED or the next power of two, as a tile must be
    BLOCK: tl.constexpr, EXACT: tl.constexpr,
    JOINED: tl.constexpr,  # needs FOLD = 1
    LEVELS: tl.constexpr,  # log₂ of TILE
) -> None:  # fmt: skip
    width: tl.constexpr = WIDTH // FOLD
    pixels: tl.constexpr = HEIGHT // FOLD * width  # of the result
    blocks: tl.constexpr = (pixels + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    b = (program // blocks).to(tl.int64)
    at = program % blocks * BLOCK + tl.arange(0, BLOCK)
    dy, dx = (INNER_HEIGHT - HEIGHT) // 2, (INNER_WIDTH - WIDTH) // 2
    if shift is not None:
        dy, dx = tl.load(shift + b).to(tl.int32), tl.load(shift + batch + b).to(tl.int32)
    top, left = 0, 0
    if low is not None:
        top, left = tl.load(low + b).to(tl.int32), tl.load(low + batch + b).to(tl.int32)
    gain = 1.0
    if noise is not None:
        gain = 1 + scale * tl.minimum(tl.maximum(tl.load(noise + b), -2.0), 2.0)
    if JOINED:
        pixel, channel = at[:, None], tl.arange(0, TILE)[None, :]
        y = _clamped(at // WIDTH + dy, INNER_HEIGHT) + top
        place = y * SOURCE_WIDTH + _clamped(at % WIDTH + dx, INNER_WIDTH) + left
        parts: tl.tuple = ()
        for part in tl.static_range(TILE):
            value = tl.zeros((BLOCK,), tl.float32)
            if part < STACK * CHANNELS:
                plane = b * CHANNELS + part
                if index is not None:
                    frame = tl.load(index + b * index_stride + part // CHANNELS * stack_stride)
                    plane = frame.to(tl.int64) * CHANNELS + part % CHANNELS  # a ring may exceed 2³¹ bytes
                plane *= SOURCE_HEIGHT * SOURCE_WIDTH
                byte = tl.load(source + plane + place, mask=at < pixels, other=0)
                value = _scaled(byte, gain, EXACT)
            parts = parts + (value.to(out.dtype.element_ty),)  # noqa: RUF005 (no unpacking in a kernel)
        for _ in tl.static_range(LEVELS):  # the first pairs are the channel's highest bit
            pairs: tl.tuple = ()
            for i in tl.static_range(len(parts) // 2):
                pairs = pairs + (tl.join(parts[i], parts[i + len(parts) // 2]),)  # noqa: RUF005
            parts = pairs
        values = parts[0].reshape((BLOCK, TILE))
    else:
        pixel, channel = at[None, :], tl.arange(0, TILE)[:, None]
        # FOLD² pixels of a plane are the channels of one pixel of the result, as `pixel_unshuffle` has them.
        part, fold = channel // (FOLD * FOLD), channel % (FOLD * FOLD)
        y = _clamped(pixel // width * FOLD + fold // FOLD + dy, INNER_HEIGHT) + top
        x = _clamped(pixel % width * FOLD + fold % FOLD + dx, INNER_WIDTH) + left
        real = part < STACK * CHANNELS
        plane = b * CHANNELS + part
        if index is not None:
            frame = tl.load(index + b * index_stride + part // CHANNELS * stack_stride, mask=real, other=0)
            plane = frame.to(tl.int64) * CHANNELS + part % CHANNELS
        inside = real & (pixel < pixels)
        plane *= SOURCE_HEIGHT * SOURCE_WIDTH
        byte = tl.load(source + plane + (y * SOURCE_WIDTH + x), mask=inside, other=0)
        values = tl.where(real, _scaled(byte, gain, EXACT), 0.0).to(out.dtype.element_ty)
    target = out + b * (pixels * PADDED) + pixel * PADDED + channel
    tl.store(target, values, mask=(channel < PADDED) & (pixel < pixels))


@triton.jit  # type: ignore[untyped-decorator]
def _clamped(at: tl.tensor, SIZE: tl.constexpr) -> tl.tensor:
    return tl.minimum(tl.maximum(at, 0), SIZE - 1)  # outside the image, repeat the edge


@triton.jit  # type: ignore[untyped-decorator]
def _scaled(byte: tl.tensor, gain: tl.tensor, EXACT: tl.constexpr) -> tl.tensor:
    value = byte.to(tl.float32)
    if EXACT:  # noqa: SIM108
        value = value / 255 * gain - 0.5
    else:  # one multiply-add each; rounding to 16 bits hides the difference
        value = value * (gain / 255) - 0.5
    return value


@torch.library.custom_op(
    "voidrl::images",
    mutates_args=(),
    schema="(Tensor source, Tensor? index, Tensor? shift, Tensor? noise, float scale, int fold, "
    "int multiple, ScalarType dtype, Tensor? low=None, int inner=0, int height=0, int width=0) -> Tensor",
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
    low: Tensor | None = None,
    inner: int = 0,
    height: int = 0,
    width: int = 0,
) -> Tensor:
    """x/255 · (1 + scale · clip(noise, −2, 2)) − 0.5 of shifted stacks, channels last in a `Layout`.

    `source` is (S, C, H, W) uint8; `index` (B, stack) lists the frames of each observation, oldest first;
    None means that each frame is an observation. `shift` is (2, B), rows then columns, and `noise` (B,).
    With `low`, (2, B), each image is a window of `inner` × `inner` that begins there. Results of `height` ×
    `width`, 0 being the source's, are the middle without a `shift`.
    """
    out = _empty(source, index, fold, multiple, dtype, height, width)
    source = source.contiguous()
    stack = 1 if index is None else index.shape[1]
    _, c, h, w = source.shape
    height, width = height or h, width or w
    assert source.dtype == torch.uint8, source.dtype
    tile = triton.next_power_of_2(out.shape[1])
    block = max(16, BLOCK_VALUES // tile)
    with torch.cuda.device_of(source):
        _images[(len(out) * triton.cdiv(height * width // fold**2, block),)](
            source, index, *((0, 0) if index is None else index.stride()),
            *(None if given is None else given.contiguous() for given in (shift, low, noise)),
            scale, out, len(out),
            STACK=stack, CHANNELS=c, SOURCE_HEIGHT=h, SOURCE_WIDTH=w,
            INNER_HEIGHT=h if low is None else inner, INNER_WIDTH=w if low is None else inner,
            HEIGHT=height, WIDTH=width, FOLD=fold, PADDED=out.shape[1], TILE=tile, BLOCK=block,
            EXACT=dtype == torch.float32, JOINED=fold == 1 and tile <= MAX_JOINED,
            LEVELS=tile.bit_length() - 1, num_warps=NUM_WARPS,
        )  # fmt: skip
    return out


images.register_fake(
    lambda source, index, shift, noise, scale, fold, multiple, dtype, low=None, inner=0, height=0, width=0: (
        _empty(source, index, fold, multiple, dtype, height, width)
    )
)


def _empty(
    source: Tensor,
    index: Tensor | None,
    fold: int,
    multiple: int,
    dtype: torch.dtype,
    height: int,
    width: int,
) -> Tensor:
    stack = 1 if index is None else index.shape[1]
    _, c, h, w = source.shape
    h, w = height or h, width or w
    channels = -(-stack * c * fold**2 // multiple) * multiple
    assert channels % fold**2 == h % fold == w % fold == 0, (source.shape, fold, multiple)
    shape = (len(source if index is None else index), channels, h // fold, w // fold)
    return torch.empty(shape, dtype=dtype, device=source.device, memory_format=torch.channels_last)
