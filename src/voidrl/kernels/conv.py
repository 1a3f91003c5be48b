"""A stack of small convolutions as one operation: products of windows, with bias and activation inside.

Each layer is y = act(conv(x, W, stride) + b) without padding. Images are bfloat16 with channels innermost, so
that a row of a window is contiguous and one product takes it whole: (groups, span · channels) × (span ·
channels, pixels of a group · out channels), summed in float32. A *sweep* is such a product over all windows.
In the forward pass, a group is a pixel or, if their common window then fills a power of two, a pair of
neighbors: a quarter of the weights is zero, but a third less is read. In the backward pass, it is the
`stride` pixels of a line that see the same gradients, so that no tap of the wrong parity is read.

A sweep walks down the columns of groups. Each row of the images is copied once, ahead of its products, and
multiplied for all windows on it, whose sums are carried from row to row. Images of a few rows, where the
first rows of a strip would cost too much, are read window by window.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from voidrl.kernels import conv_kernels as kernels


class Launch(NamedTuple):
    """The launch options of a sweep."""

    block: int  # columns of groups in a product
    warps: int
    stages: int
    registers: int | None  # of a thread, at most


WALK = Launch(64, 4, 3, None)  # each row of images is loaded once, ahead of its products
STEP = Launch(128, 8, 1, 128)  # each window by itself; plain loads hit the L1 cache where windows overlap
WALK_ROWS = 16  # of windows, at least: the first ones of a strip are computed in vain
WALK_SUMS = 192  # of a column, at most: 96 registers of a thread's 255
WALK_BYTES = 113_000  # of shared memory, at most: two programs on a multiprocessor
PROGRAMS = 264  # that run at once: two on each multiprocessor of an H200, or four with half the sums
CHUNKS = (128, 64, 32)  # elements of a window's row per product: the least waste, then the largest
KEPT_BYTES = 100_000  # more weights than this are not kept in shared memory but read for each product

GRADIENT_BLOCK, GRADIENT_WARPS, GRADIENT_STAGES = 64, 8, 3  # of weight gradients
GRADIENT_CHUNKS = (128, 64)  # fewer than 64 rows would idle a warp group
GRADIENT_SUMS = 24576  # sums that a program keeps in registers: 96 of a thread's 255
GRADIENT_PROGRAMS = 132  # one for each multiprocessor of an H200; each writes its own sums

PACK_BLOCK, GATHER_BLOCK, GATHER_PROGRAMS, PIXEL_BLOCK = 1024, 128, 32, 64
MAX_CHANNELS, MAX_KERNEL, MAX_STRIDE = 64, 8, 4


class Sweep(NamedTuple):
    """A product over all windows of images: (groups, window) × (window, pixels of a group)."""

    height: int  # of the images read
    width: int
    channels: int
    out_height: int  # of the images written
    out_width: int
    out_channels: int
    step_y: int  # pixels from window to window
    step_x: int
    pad_y: int  # how far outside the image the first window starts
    pad_x: int
    rows: int  # of a window
    span: int  # pixels in a row of a window
    group_y: int  # pixels written per window; each row of a group is a program's axis
    group_x: int

    def constants(self, chunks: tuple[int, ...]) -> dict[str, int]:
        """Constants of the kernels. A window's row is read in equal chunks, a power of two each."""
        line = self.span * self.channels
        chunk = min(chunks, key=lambda size: (triton.cdiv(line, size) * size, -size))
        end_y = (triton.cdiv(self.out_height, self.group_y) - 1) * self.step_y - self.pad_y + self.rows
        end_x = (triton.cdiv(self.out_width, self.group_x) - 1) * self.step_x - self.pad_x + self.span
        return {name.upper(): value for name, value in self._asdict().items()} | {
            "CHUNK": chunk,
            "CHUNKS": triton.cdiv(line, chunk),
            "TILE": triton.next_power_of_2(self.group_x * self.out_channels),
            "EDGES": bool(self.pad_y or self.pad_x or end_y > self.height or end_x > self.width),
            "RAGGED": line % chunk != 0,
        }


class Layer(NamedTuple):
    """The sizes of one convolution."""

    height: int
    width: int
    channels: int  # of its input, padded
    real_channels: int  # of its weights
    out_height: int
    out_width: int
    out_channels: int
    kernel_y: int
    kernel_x: int
    stride: int

    def forward(self) -> Sweep:
        """The layer itself."""
        pair = (self.kernel_x + self.stride) * self.channels in (32, 64, 128) and self.out_channels <= 32
        group = 2 if pair else 1
        span = self.kernel_x + (group - 1) * self.stride
        step = self.stride
        return Sweep(*self[:3], *self[4:7], step, step * group, 0, 0, self.kernel_y, span, 1, group)

    def backward(self) -> Sweep:
        """Its gradient with respect to its input."""
        pad_y, pad_x = (self.kernel_y - 1) // self.stride, (self.kernel_x - 1) // self.stride
        pair = (pad_x + 2) * self.out_channels in (32, 64, 128) and self.stride * self.channels <= 32
        group = 2 if pair else 1
        sizes = (pad_y, pad_x, pad_y + 1, pad_x + group, self.stride, self.stride * group)
        return Sweep(*self[4:7], *self[:3], 1, group, *sizes)


def _layers(x: Tensor, shapes: Sequence[Sequence[int]], strides: Sequence[int]) -> list[Layer]:
    channels, height, width = x.shape[1:]
    layers = []
    for (out, real, kernel_y, kernel_x), stride in zip(shapes, strides, strict=True):
        out_height, out_width = (height - kernel_y) // stride + 1, (width - kernel_x) // stride + 1
        sizes = (out_height, out_width, out, kernel_y, kernel_x, stride)
        layers.append(Layer(height, width, channels, real, *sizes))
        channels, height, width = out, out_height, out_width
    return layers


def suits(x: Tensor, shapes: Sequence[Sequence[int]], strides: Sequence[int]) -> bool:
    """Whether the kernels support a stack of these shapes; the caller checks device and precision."""
    if x.dim() != 4 or any(len(shape) != 4 for shape in shapes) or not 0 < len(shapes) == len(strides):
        return False
    layers = _layers(x, shapes, strides)
    return all(
        layer.channels % 16 == 0
        and layer.out_channels % 16 == 0
        and max(layer.channels, layer.out_channels) <= MAX_CHANNELS
        and (layer.real_channels == layer.channels or (i == 0 and layer.real_channels < layer.channels))
        and max(layer.kernel_y, layer.kernel_x) <= MAX_KERNEL
        and 1 <= layer.stride <= MAX_STRIDE
        and min(layer.out_height, layer.out_width) > 0
        # offsets are 32-bit integers
        and x.shape[0] * layer.height * layer.width * max(layer.channels, layer.out_channels) < 2**31
        for i, layer in enumerate(layers)
    )


def _pack(weights: Sequence[Tensor], layers: Sequence[Layer], back: bool) -> list[Tensor]:
    """Pack the weights for the sweeps, in bfloat16; all layers in one launch."""
    sizes: list[int] = []
    starts = [0]
    for layer in layers:
        sweep = layer.backward() if back else layer.forward()
        constants = sweep.constants(CHUNKS)
        line, tile = constants["CHUNK"] * constants["CHUNKS"], constants["TILE"]
        sizes += (layer.kernel_y, layer.kernel_x, layer.real_channels, layer.stride)
        sizes += (sweep.channels, sweep.out_channels, sweep.rows, sweep.pad_x, sweep.group_y, sweep.group_x)
        sizes += (line, tile, starts[-1])
        starts.append(starts[-1] + sweep.group_y * sweep.rows * line * tile)
    packed = torch.empty(starts[-1], dtype=torch.bfloat16, device=weights[0].device)
    sources = tuple(weight.contiguous() for weight in weights)
    grid = (triton.cdiv(max(end - start for start, end in pairwise(starts)), PACK_BLOCK), len(layers))
    kernels.pack[grid](sources, packed, tuple(sizes), len(sizes) // len(layers), BACK=back, BLOCK=PACK_BLOCK)
    return [packed[start:end] for start, end in pairwise(starts)]


def _sweep(
    sweep: Sweep, source: Tensor, packed: Tensor, bias: Tensor | None, saved: Tensor | None, elu: bool
) -> Tensor:
    out = _images(source, source.shape[0], sweep.out_channels, sweep.out_height, sweep.out_width)
    constants = sweep.constants(CHUNKS)
    line, tile = constants["CHUNK"] * constants["CHUNKS"], constants["TILE"]
    weights = 2 * packed.numel() // sweep.group_y
    shared = weights + 2 * WALK.block * (line * sweep.step_y * (WALK.stages - 1) + tile)
    down, depth = triton.cdiv(sweep.out_height, sweep.group_y), triton.cdiv(sweep.rows, sweep.step_y)
    walks = down >= WALK_ROWS and depth * tile <= WALK_SUMS and shared <= WALK_BYTES
    way = WALK if walks else STEP
    depth, loaded = (depth, sweep.step_y) if walks else (1, sweep.rows)
    columns = source.shape[0] * triton.cdiv(sweep.out_width, sweep.group_x)
    programs = triton.cdiv(columns, way.block)

    def cost(strip: int) -> int:  # rounds until the last program ends; one more for the start of each
        at_once = PROGRAMS * (2 if tile <= 32 else 1)
        waves = triton.cdiv(programs * triton.cdiv(down, strip) * sweep.group_y, at_once)
        return int(waves * (strip + depth))

    strip = min(range(1, down + 1), key=cost)
    kernels.sweep[(programs, triton.cdiv(down, strip), sweep.group_y)](
        source, packed, bias, saved, out, columns, strip + depth - 1, **constants,
        LOADED=loaded, ELU=elu, KEEP=weights <= KEPT_BYTES, BLOCK=way.block,
        num_warps=way.warps, num_stages=way.stages,
        maxnreg=way.registers if way.block * tile <= 64 * 32 * way.warps else None,
    )  # fmt: skip
    return out


def _weight_gradient(layer: Layer, source: Tensor, gradient: Tensor, ones: Tensor) -> Tensor:
    """Partial sums (programs, lines + 1, tile) of the gradients of weights and bias."""
    sweep = layer.forward()
    constants = sweep.constants(GRADIENT_CHUNKS)
    steps, sums = sweep.rows * constants["CHUNKS"], constants["CHUNK"] * constants["TILE"]
    fits = [n for n in range(1, steps + 1) if steps % n == 0 and (n == 1 or n * sums <= GRADIENT_SUMS)]
    taken = fits[-1]  # steps per program; other programs do the rest
    most = GRADIENT_PROGRAMS * (2 if 4 * taken * sums <= GRADIENT_SUMS else 1) * taken // steps
    groups = source.shape[0] * sweep.out_height * triton.cdiv(sweep.out_width, sweep.group_x)
    rounds = triton.cdiv(triton.cdiv(groups, GRADIENT_BLOCK), max(1, most))
    programs = triton.cdiv(groups, GRADIENT_BLOCK * rounds)
    shape = (programs, steps * constants["CHUNK"] + 1, constants["TILE"])
    partial = torch.empty(shape, dtype=torch.float32, device=source.device)
    options = {"num_warps": GRADIENT_WARPS, "num_stages": GRADIENT_STAGES, "STEPS": taken}
    kernels.weight_gradient[(programs, steps // taken)](
        source, gradient, ones, partial, groups, rounds, **constants, BLOCK=GRADIENT_BLOCK, **options
    )
    return partial


def _gather(partials: Sequence[Tensor], layers: Sequence[Layer]) -> Tensor:
    """Sum up all gradients in one launch: flat, layer by layer, weights and then bias."""
    sizes: list[int] = []
    starts = [0, *accumulate(map(_parameters, layers))]
    for layer, partial, start in zip(layers, partials, starts, strict=False):
        programs, lines, tile = partial.shape
        sizes += (layer.kernel_y, layer.kernel_x, layer.real_channels, layer.stride)
        sizes += (layer.channels, layer.out_channels, layer.forward().group_x)
        sizes += ((lines - 1) // layer.kernel_y, tile, programs, start)
    out = torch.empty(starts[-1], dtype=torch.float32, device=partials[0].device)
    options = {"PROGRAMS": GATHER_PROGRAMS, "BLOCK": GATHER_BLOCK}
    grid = (triton.cdiv(max(map(_parameters, layers)), GATHER_BLOCK), len(layers))
    kernels.gather[grid](tuple(partials), out, tuple(sizes), len(sizes) // len(layers), **options)
    return out


def _output_gradient(gradient: Tensor, saved: Tensor, elu: bool) -> Tensor:
    batch, channels, height, width = saved.shape
    if gradient.stride(2) != width * gradient.stride(3):  # neither channels first nor last
        gradient = gradient.contiguous(memory_format=torch.channels_last)
    strides = [gradient.stride(dim) for dim in (0, 1, 3)]
    out = torch.empty_like(saved)
    sizes = {"PIXELS": height * width, "CHANNELS": channels, "TILE": triton.next_power_of_2(channels)}
    grid = (batch, triton.cdiv(height * width, PIXEL_BLOCK))
    kernels.output_gradient[grid](gradient, *strides, saved, out, **sizes, ELU=elu, BLOCK=PIXEL_BLOCK)
    return out


def _images(like: Tensor, batch: int, channels: int, height: int, width: int) -> Tensor:
    shape, layout = (batch, channels, height, width), torch.channels_last
    return torch.empty(shape, dtype=torch.bfloat16, device=like.device, memory_format=layout)


def _parameters(layer: Layer) -> int:
    return (layer.kernel_y * layer.kernel_x * layer.real_channels + 1) * layer.out_channels


@torch.library.custom_op("voidrl::conv_stack", mutates_args=())
def _forward(
    x: Tensor, weights: list[Tensor], biases: list[Tensor], strides: list[int], elu: bool, keep: bool
) -> list[Tensor]:
    """The results of all layers, or of only the last one."""
    x = x.contiguous(memory_format=torch.channels_last)
    layers = _layers(x, [weight.shape for weight in weights], strides)
    results: list[Tensor] = []
    with torch.cuda.device_of(x):
        for layer, packed, bias in zip(layers, _pack(weights, layers, back=False), biases, strict=True):
            x = _sweep(layer.forward(), x, packed, bias.contiguous(), None, elu)
            results = [*results, x] if keep else [x]
    return results


@_forward.register_fake
def _(x: Tensor, weights: list[Tensor], *rest: Any) -> list[Tensor]:
    _, strides, _, keep = rest
    layers = _layers(x, [weight.shape for weight in weights], strides)
    shapes = [(x.shape[0], layer.out_channels, layer.out_height, layer.out_width) for layer in layers]
    return [_images(x, *shape) for shape in (shapes if keep else shapes[-1:])]


@torch.library.custom_op("voidrl::conv_stack_backward", mutates_args=())
def _backward(
    gradient: Tensor, x: Tensor, results: list[Tensor], weights: list[Tensor], strides: list[int],
    elu: bool, to_input: bool,
) -> list[Tensor]:  # fmt: skip
    """The gradients of weights and biases, flat as `_gather` leaves them; and of x if asked for."""
    inputs = [x.contiguous(memory_format=torch.channels_last), *results[:-1]]
    layers = _layers(x, [weight.shape for weight in weights], strides)
    last = 0 if to_input else 1  # the layer down to which gradients of inputs are needed
    partials = []
    with torch.cuda.device_of(x):
        g = _output_gradient(gradient, results[-1], elu)
        ones = torch.ones(64, GRADIENT_BLOCK, dtype=torch.bfloat16, device=x.device)
        packed = _pack(weights[last:], layers[last:], back=True) if layers[last:] else []
        for i in reversed(range(len(layers))):
            partials.append(_weight_gradient(layers[i], inputs[i], g, ones))
            if i >= last:
                g = _sweep(
                    layers[i].backward(), g, packed[i - last], None, results[i - 1] if i else None, elu
                )
        flat = _gather(partials[::-1], layers)
    return [flat, g] if to_input else [flat]


@_backward.register_fake
def _(gradient: Tensor, x: Tensor, results: list[Tensor], weights: list[Tensor], *rest: Any) -> list[Tensor]:
    strides, _, to_input = rest
    size = sum(map(_parameters, _layers(x, [weight.shape for weight in weights], strides)))
    flat = torch.empty(size, dtype=torch.float32, device=x.device)
    return [flat, _images(x, *x.shape)] if to_input else [flat]


def _setup_context(ctx: Any, inputs: Any, output: list[Tensor]) -> None:
    x, weights, _, ctx.strides, ctx.elu, _ = inputs
    ctx.set_materialize_grads(False)  # only the last result has a gradient; the others need no zeros
    ctx.save_for_backward(x, *weights, *output)


def _autograd(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    x, *saved = ctx.saved_tensors
    weights, results = saved[: len(ctx.strides)], saved[len(ctx.strides) :]
    to_input = ctx.needs_input_grad[0]
    flat, *rest = _backward(gradients[-1], x, results, weights, ctx.strides, ctx.elu, to_input)
    parts = flat.split([size for weight in weights for size in (weight.numel(), weight.shape[0])])
    shaped = [part.view(weight.shape) for part, weight in zip(parts[::2], weights, strict=True)]
    return rest[0] if to_input else None, shaped, list(parts[1::2]), None, None, None


_forward.register_autograd(_autograd, setup_context=_setup_context)


def conv_stack(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], strides: Sequence[int], activation: str
) -> Tensor:
    """(B, C, H, W) → (B, C', H', W'), bfloat16, channels last: act(conv(·, W, stride) + b), layer by layer.

    Weights (out, in, kernel, kernel) and biases are float32, and so are their gradients. Channels of x beyond
    those of the first weight are padding and do not count. For stacks that `suits` accepts.
    """
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *weights, *biases))
    x = x.to(torch.bfloat16)
    results: list[Tensor] = _forward(x, list(weights), list(biases), list(strides), activation == "elu", keep)
    return results[-1]
