# ruff: noqa: N803  (constants of a kernel are upper case)
"""The kernels behind `conv`, which explains windows, groups and sweeps."""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit  # type: ignore[untyped-decorator]
def pack(
    weights: tl.tensor,  # of each layer: (out, in, kernel_y, kernel_x) float32
    packed: tl.tensor,  # of all layers, as `sweep` takes them
    SIZES: tl.constexpr, COUNT: tl.constexpr, BACK: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Weights of all layers into the order in which sweeps read them, with zeros where a group has no tap."""
    for layer in tl.static_range(len(weights)):
        if tl.program_id(1) == layer:
            _pack(weights[layer], packed, SIZES, layer * COUNT, BACK, BLOCK)


@triton.jit  # type: ignore[untyped-decorator]
def _pack(
    weight: tl.tensor, packed: tl.tensor,
    SIZES: tl.constexpr, AT: tl.constexpr, BACK: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    kernel_y: tl.constexpr = SIZES[AT]
    kernel_x: tl.constexpr = SIZES[AT + 1]
    inputs: tl.constexpr = SIZES[AT + 2]
    stride: tl.constexpr = SIZES[AT + 3]
    channels: tl.constexpr = SIZES[AT + 4]
    out_channels: tl.constexpr = SIZES[AT + 5]
    rows: tl.constexpr = SIZES[AT + 6]
    pad_x: tl.constexpr = SIZES[AT + 7]
    group_y: tl.constexpr = SIZES[AT + 8]
    group_x: tl.constexpr = SIZES[AT + 9]
    line: tl.constexpr = SIZES[AT + 10]
    tile: tl.constexpr = SIZES[AT + 11]
    offset: tl.constexpr = SIZES[AT + 12]
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n, k, row, gy = e % tile, e // tile % line, e // (tile * line) % rows, e // (tile * line * rows)
    gx, pixel = n // out_channels, k // channels  # in the group; in the row of its window
    if BACK:
        ky, kx = gy + stride * (rows - 1 - row), gx + stride * (pad_x - pixel)
        co, ci = k % channels, n % out_channels
    else:
        ky, kx = row, pixel - gx * stride
        co, ci = n % out_channels, k % channels
    real = (gx < group_x) & (ky < kernel_y) & (kx >= 0) & (kx < kernel_x) & (ci < inputs) & (gy < group_y)
    value = tl.load(weight + ((co * inputs + ci) * kernel_y + ky) * kernel_x + kx, mask=real, other=0.0)
    tl.store(packed + offset + e, value.to(packed.dtype.element_ty), mask=gy < group_y)


@triton.jit  # type: ignore[untyped-decorator]
def _slope(y: tl.tensor, ELU: tl.constexpr) -> tl.tensor:  # act' from act's result
    return tl.where(y <= 0, y + 1.0 if ELU else 0.0, 1.0)


@triton.jit  # type: ignore[untyped-decorator]
def _dot(a: tl.tensor, b: tl.tensor, sums: tl.tensor) -> tl.tensor:
    if INTERPRETED:  # where bfloat16 would be multiplied as integers
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, sums)


@triton.jit  # type: ignore[untyped-decorator]
def _in_registers(tile: tl.tensor) -> tl.tensor:
    """Else every product would read the tile from shared memory again, whose bandwidth is the limit."""
    if INTERPRETED:
        return tile
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tile], tile.dtype, is_pure=True, pack=2)


@triton.jit  # type: ignore[untyped-decorator]
def _window_row(
    at: tl.tensor,  # (BLOCK, CHUNK): where this row of the windows begins
    x: tl.tensor,  # (BLOCK,): the element of the image row where it does
    end: tl.tensor,  # of the image row: its elements, or 0 for a row outside the image
    chunk: tl.tensor,
    ELEMENTS: tl.constexpr, CHUNK: tl.constexpr, EDGES: tl.constexpr, RAGGED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    k = chunk * CHUNK + tl.arange(0, CHUNK)
    if EDGES:
        element = x[:, None] + k[None, :]
        inside = (element >= 0) & (element < end)
        if RAGGED:
            inside = inside & (k < ELEMENTS)[None, :]
        tile = tl.load(at + chunk * CHUNK, mask=inside, other=0.0)
    elif RAGGED:
        tile = tl.load(at + chunk * CHUNK, mask=(k < ELEMENTS)[None, :], other=0.0)
    else:
        tile = tl.load(at + chunk * CHUNK)
    return tile


@triton.jit(do_not_specialize=["columns", "rounds"])  # type: ignore[untyped-decorator]
def sweep(
    source: tl.tensor,  # (B, HEIGHT, WIDTH, CHANNELS)
    weights: tl.tensor,  # (GROUP_Y, ROWS, CHUNKS · CHUNK, TILE)
    bias: tl.tensor,  # (OUT_CHANNELS,) float32: then the activation follows; or None
    saved: tl.tensor,  # like `out`: a result of the activation, whose slope there multiplies; or None
    out: tl.tensor,  # (B, OUT_HEIGHT, OUT_WIDTH, OUT_CHANNELS)
    columns: tl.tensor,  # of groups, in all images
    rounds: tl.tensor,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, OUT_CHANNELS: tl.constexpr,
    STEP_Y: tl.constexpr, STEP_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
    ROWS: tl.constexpr, SPAN: tl.constexpr, GROUP_Y: tl.constexpr, GROUP_X: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, TILE: tl.constexpr, EDGES: tl.constexpr, RAGGED: tl.constexpr,
    LOADED: tl.constexpr, ELU: tl.constexpr, KEEP: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One sweep: products, then bias and activation, or the slope of one.

    A program walks down a strip of its columns. In each round it loads the next LOADED rows of the images and
    multiplies them for all windows that contain them: those that began up to `depth - 1` rounds above, whose
    sums so far it carries, and those that begin here. The oldest end here; theirs is the last product, so
    that all are waited for before the next copies overwrite what they read.
    """
    across: tl.constexpr = (OUT_WIDTH + GROUP_X - 1) // GROUP_X
    depth: tl.constexpr = (ROWS + LOADED - 1) // LOADED
    line: tl.constexpr = WIDTH * CHANNELS
    out_line: tl.constexpr = OUT_WIDTH * OUT_CHANNELS
    size: tl.constexpr = CHUNK * TILE
    k, n = tl.arange(0, CHUNK), tl.arange(0, TILE)
    weights += tl.program_id(2) * (ROWS * CHUNKS * size) + k[:, None] * TILE + n[None, :]
    kept: tl.tuple = ()
    if KEEP:
        for step in tl.static_range(ROWS * CHUNKS):
            kept = kept + (tl.load(weights + step * size),)  # noqa: RUF005 (no unpacking in a kernel)
    if bias is not None:
        shift = tl.load(bias + n % OUT_CHANNELS)[None, :]
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.minimum(index, columns - 1)  # read within bounds without a mask; written under one
    group_x, b = column % across, column // across
    x = (group_x * STEP_X - PAD_X) * CHANNELS
    at = source + (b * (HEIGHT * line) + x)[:, None] + k[None, :]
    element = (group_x * (GROUP_X * OUT_CHANNELS))[:, None] + n[None, :]
    to = (b * (OUT_HEIGHT * out_line))[:, None] + element
    real = (index < columns)[:, None]
    if TILE > GROUP_X * OUT_CHANNELS:
        real = real & (n < GROUP_X * OUT_CHANNELS)[None, :]
    first = tl.program_id(1) * (rounds - (depth - 1))
    carried: tl.tuple = ()
    for _ in tl.static_range(depth - 1):
        carried = carried + (tl.zeros((BLOCK, TILE), tl.float32),)  # noqa: RUF005
    for i in range(rounds):
        begun = first + i - (depth - 1)  # where the oldest windows did
        out_y = begun * GROUP_Y + tl.program_id(2)
        end = tl.where((begun >= first) & (out_y < OUT_HEIGHT), out_line, 0)
        inside = real & (element < end)
        if saved is not None:  # loaded while the products are computed
            slope = tl.load(saved + to + out_y * out_line, mask=inside, other=0.0)
        sums: tl.tuple = (tl.zeros((BLOCK, TILE), tl.float32),) + carried  # noqa: RUF005
        for row in tl.static_range(LOADED - 1, -1, -1):
            y = (first + i) * STEP_Y - PAD_Y + row
            row_at = at + tl.minimum(tl.maximum(y, 0), HEIGHT - 1) * line
            row_end = tl.where((y >= 0) & (y < HEIGHT), line, 0)
            for c in tl.static_range(CHUNKS):
                tile = _window_row(row_at, x, row_end, c, SPAN * CHANNELS, CHUNK, EDGES, RAGGED)
                if depth > 1:
                    tile = _in_registers(tile)
                added: tl.tuple = ()
                for above in tl.static_range(depth):
                    if above * LOADED + row < ROWS:
                        if KEEP:
                            weight = kept[(above * LOADED + row) * CHUNKS + c]
                        else:
                            weight = tl.load(weights + ((above * LOADED + row) * CHUNKS + c) * size)
                        added = added + (_dot(tile, weight, sums[above]),)  # noqa: RUF005
                    else:
                        added = added + (sums[above],)  # noqa: RUF005
                sums = added
        carried = sums[: depth - 1]
        done = sums[depth - 1]
        if bias is not None:
            done += shift
            done = tl.where(done <= 0, tl.exp(done) - 1.0 if ELU else 0.0, done)  # NaN stays NaN
        if saved is not None:
            done *= _slope(slope.to(tl.float32), ELU)
        tl.store(out + to + out_y * out_line, done.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def weight_gradient(
    source: tl.tensor,  # (B, HEIGHT, WIDTH, CHANNELS): the layer's input
    gradient: tl.tensor,  # (B, OUT_HEIGHT, OUT_WIDTH, OUT_CHANNELS)
    ones: tl.tensor,  # (64, BLOCK)
    partial: tl.tensor,  # (programs, ROWS · CHUNKS · CHUNK + 1, TILE) float32; the last line is the bias's
    groups: tl.tensor, rounds: tl.tensor,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, OUT_CHANNELS: tl.constexpr,
    STEP_Y: tl.constexpr, STEP_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr,
    ROWS: tl.constexpr, SPAN: tl.constexpr, GROUP_Y: tl.constexpr, GROUP_X: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, TILE: tl.constexpr, EDGES: tl.constexpr, RAGGED: tl.constexpr,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Windowsᵀ × gradients over a share of the groups, and the sum of these gradients."""
    across: tl.constexpr = (OUT_WIDTH + GROUP_X - 1) // GROUP_X
    lines: tl.constexpr = ROWS * CHUNKS * CHUNK
    stride: tl.constexpr = STEP_X // GROUP_X
    k, n = tl.arange(0, CHUNK), tl.arange(0, TILE)
    first = tl.program_id(1) * STEPS if ROWS * CHUNKS > STEPS else 0  # of the steps this program takes
    sums: tl.tuple = ()
    for _ in tl.static_range(STEPS):
        sums = sums + (tl.zeros((CHUNK, TILE), tl.float32),)  # noqa: RUF005
    # The sum of gradients is a product too: what a loop reads both for products and into registers gets one
    # buffer too few from Triton's pipeliner, and copies overwrite what products still read (triton#6691).
    ones = tl.load(ones + tl.arange(0, 64)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :])
    bias = tl.zeros((64, TILE), tl.float32)
    for i in range(rounds):
        index = (tl.program_id(0) * rounds + i) * BLOCK + tl.arange(0, BLOCK)
        group = tl.minimum(index, groups - 1)
        group_x, out_y, b = group % across, group // across % OUT_HEIGHT, group // (across * OUT_HEIGHT)
        x = group_x * (STEP_X * CHANNELS)
        at = source + ((b * HEIGHT + out_y * STEP_Y) * (WIDTH * CHANNELS) + x)[:, None] + k[None, :]
        element = (group_x * (GROUP_X * OUT_CHANNELS))[:, None] + n[None, :]
        inside = (index < groups)[:, None] & (element < OUT_WIDTH * OUT_CHANNELS)
        if TILE > GROUP_X * OUT_CHANNELS:
            inside = inside & (n < GROUP_X * OUT_CHANNELS)[None, :]
        line = ((b * OUT_HEIGHT + out_y) * (OUT_WIDTH * OUT_CHANNELS))[:, None]
        g = tl.load(gradient + line + element, mask=inside, other=0.0)  # (BLOCK, TILE)
        added: tl.tuple = ()
        for step in tl.static_range(STEPS):
            row, chunk = at + (first + step) // CHUNKS * (WIDTH * CHANNELS), (first + step) % CHUNKS
            tile = _window_row(row, x, WIDTH * CHANNELS, chunk, SPAN * CHANNELS, CHUNK, EDGES, RAGGED)
            added = added + (_dot(tl.trans(tile), g, sums[step]),)  # noqa: RUF005
        bias = _dot(ones, g, bias)
        sums = added
    partial += tl.program_id(0) * ((lines + 1) * TILE)
    for step in tl.static_range(STEPS):
        # With pairs, the products of a pixel with pixels outside its window contribute no gradient.
        pixel = ((first + step) % CHUNKS * CHUNK + k)[:, None] // CHANNELS
        tap = pixel - (n // OUT_CHANNELS * stride)[None, :]
        to = partial + ((first + step) * CHUNK + k)[:, None] * TILE + n[None, :]
        tl.store(to, sums[step], mask=(tap >= 0) & (tap < SPAN - (GROUP_X - 1) * stride))
    if tl.program_id(1) == 0:
        tl.store(partial + lines * TILE + n, tl.sum(bias, 0) / 64)  # of equal rows


@triton.jit  # type: ignore[untyped-decorator]
def output_gradient(
    gradient: tl.tensor,  # (B, CHANNELS, PIXELS) with these strides
    batch_stride: tl.tensor, channel_stride: tl.tensor, pixel_stride: tl.tensor,
    saved: tl.tensor,  # (B, PIXELS, CHANNELS): the activation's result
    out: tl.tensor,  # like `saved`
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr, ELU: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The gradient before the last activation, channels last."""
    b = tl.program_id(0).to(tl.int64)
    pixel, channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None], tl.arange(0, TILE)[None, :]
    inside = (pixel < PIXELS) & (channel < CHANNELS)
    at = b * batch_stride + pixel * pixel_stride + channel * channel_stride
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    to = b * (PIXELS * CHANNELS) + pixel * CHANNELS + channel
    y = tl.load(saved + to, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + to, (g * _slope(y, ELU)).to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def gather(
    partials: tl.tensor,  # of each layer: as `weight_gradient` writes them
    out: tl.tensor,  # of each layer: (out, in, kernel_y, kernel_x), then (out,), all float32
    SIZES: tl.constexpr, COUNT: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """The partial sums of all layers, added in a fixed order and laid out like the weights."""
    for layer in tl.static_range(len(partials)):
        if tl.program_id(1) == layer:
            _gather(partials[layer], out, SIZES, layer * COUNT, PROGRAMS, BLOCK)


@triton.jit  # type: ignore[untyped-decorator]
def _gather(
    partial: tl.tensor, out: tl.tensor,
    SIZES: tl.constexpr, AT: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    kernel_y: tl.constexpr = SIZES[AT]
    kernel_x: tl.constexpr = SIZES[AT + 1]
    inputs: tl.constexpr = SIZES[AT + 2]
    stride: tl.constexpr = SIZES[AT + 3]
    channels: tl.constexpr = SIZES[AT + 4]
    out_channels: tl.constexpr = SIZES[AT + 5]
    group_x: tl.constexpr = SIZES[AT + 6]
    line: tl.constexpr = SIZES[AT + 7]
    tile: tl.constexpr = SIZES[AT + 8]
    programs: tl.constexpr = SIZES[AT + 9]
    offset: tl.constexpr = SIZES[AT + 10]
    count: tl.constexpr = kernel_y * kernel_x * inputs * out_channels
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # (kernel_y, kernel_x, in, out), as the sums lie
    co, ci, tap = e % out_channels, e // out_channels % inputs, e // (out_channels * inputs)
    ky, kx = tap // kernel_x, tap % kernel_x
    is_weight, real = e < count, e < count + out_channels
    sums = tl.zeros((PROGRAMS, BLOCK), tl.float32)
    for first in range(0, programs, PROGRAMS):
        program = first + tl.arange(0, PROGRAMS)
        inside = (program < programs)[:, None] & real[None, :]
        for gx in tl.static_range(group_x):
            at = ky * line + tl.where(is_weight, (kx + gx * stride) * channels + ci, 0)
            at = at * tile + gx * out_channels + co
            start = program * ((kernel_y * line + 1) * tile)
            sums += tl.load(partial + start[:, None] + at[None, :], mask=inside, other=0.0)
    to = tl.where(is_weight, ((co * inputs + ci) * kernel_y + ky) * kernel_x + kx, e)
    tl.store(out + offset + to, tl.sum(sums, 0), mask=real)
