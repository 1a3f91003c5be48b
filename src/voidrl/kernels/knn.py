"""Nearest-neighbor distances on a GPU; the reference is the plain path of `voidrl.entropy.knn_distances`.

A distance is a sum of squared differences in float32. Particles are packed once into tiles (tiles, d, T): T
side by side, coordinate by coordinate, so that a warp reads a coordinate of all with one wide load. Each
thread keeps a block of pairs in registers. There are three ways to find the k nearest:

- `by_rows`, for few low-dimensional particles: one program computes a query's distances and selects;
- `by_matrix`, for few high-dimensional ones: programs compute blocks of a matrix of distances, only half of
  it if the queries are the particles; then each row is selected from;
- `by_tiles`, for large pools: only the smallest distance of each tile is kept, and the tiles that may contain
  a neighbor are searched again. Memory stays linear in queries and particles.

Selection compares bits, which have the order of non-negative floats; NaN comes last, as in `torch.topk`.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

MAX_K = 128  # above, selecting one by one is too slow

TILE = 128  # particles per tile: four for each thread of a warp
MAX_ROWS_PARTICLES = 2048  # `by_rows`: values to select from in registers
MAX_ROWS_DIM = 32  # above, rereading particles for each query costs more than writing distances
MAX_MATRIX_PARTICLES = 8192
MAX_ELEMENTS = 2**24  # of a matrix of distances or minima alive at once: 64 MiB
MAX_TILES = 2**14  # minima per program
MAX_PACKED = 2**26  # floats of packed particles alive at once: 256 MiB

QUERY_ROWS = 8  # queries against which a tile is held in registers
MATRIX_ROWS, MATRIX_TILE, MATRIX_UNROLL = 8, 64, 16  # of the matrix: small blocks, for more of them at once
QUERY_LOOPS = 4  # such blocks of queries one after the other, while a tile's particles are in the L1 cache
SPLIT_DIM = 64  # from this dimension on, the coordinates of a pair are split among …
SPLIT = 4  # … this many warps, to occupy the GPU when pairs are few
UNROLL = 8  # coordinates per iteration of the loop
SELECT_PER_WARP = 1024  # values per warp in a selection
PACK_DIM = 32  # coordinates per program

_NAN = tl.constexpr(0x7FC00000)  # a NaN, larger than the bits of all numbers
_TAKEN = tl.constexpr(0x7FFFFFFF)  # a larger NaN, which marks what is not a candidate


def by_rows(queries: Tensor, particles: Tensor, k: int, exclude_self: bool) -> Tensor:
    """One program per query computes all distances and selects from them in registers."""
    return nearest(_rows(queries), pack(particles, TILE), None, k, 0 if exclude_self else None)


def by_matrix(queries: Tensor, particles: Tensor, k: int, exclude_self: bool) -> Tensor:
    """Compute a matrix of distances, some queries at a time; only half of a symmetric one."""
    rows, packed, m = _rows(queries), pack(particles, MATRIX_TILE), len(particles)  # (n, d), (tiles, d, T)
    chunk = max(1, MAX_ELEMENTS // m)
    here, there = ((x.data_ptr(), x.shape, x.stride(), x.dtype) for x in (queries, particles))
    symmetric = here == there and chunk >= m
    found = []
    for i, block in enumerate(rows.split(chunk)):
        squares = squared_matrix(block, packed, m, symmetric)  # (q, m)
        found.append(smallest(squares, k, own=i * chunk if exclude_self else None))
    return _cat(found)


def by_tiles(queries: Tensor, particles: Tensor, k: int, exclude_self: bool) -> Tensor:
    """Find the smallest distance in each tile, then the k nearest in the k tiles where it is smallest.

    This is exact: for a particle outside these tiles, each of the k tiles has one at least as near.
    """
    rows = _rows(queries)  # (n, d)
    segment = TILE * max(1, min(MAX_TILES, MAX_PACKED // (TILE * rows.shape[1])))
    for j, part in enumerate(particles.split(segment)):
        packed = pack(part, TILE)  # (tiles, d, T)
        tiles = len(packed)
        chunk = max(1, MAX_ELEMENTS // tiles)
        found = []
        for i, block in enumerate(rows.split(chunk)):
            own = i * chunk - j * segment if exclude_self else None
            minima = tile_minima(block, packed, own)  # (q, tiles)
            where = smallest(minima, min(k, tiles), indices=True)  # (q, ≤ k)
            found.append(nearest(block, packed, where, min(k, TILE * where.shape[1]), own))
        if j == 0:
            best = _cat(found)  # (n, ≤ k)
        else:
            both = torch.cat([best, _cat(found)], dim=1)
            best = both.topk(min(k, both.shape[1]), largest=False).values
    return best  # (n, k)


@torch.library.custom_op(
    "voidrl::knn_distances",
    mutates_args=(),
    schema="(Tensor queries, Tensor particles, int k, bool exclude_self) -> Tensor",
)
def knn_distances(queries: Tensor, particles: Tensor, k: int, exclude_self: bool) -> Tensor:
    """Distances from each query to its k nearest particles, ascending, as `voidrl.entropy.knn_distances`.

    Args:
        queries: (n, d), any dtype of 32 bits or less; distances are computed in float32.
        particles: (m, d), the pool of possible neighbors, or the queries themselves.
        k: number of neighbors, from 1 to `MAX_K` and to the number of particles.
        exclude_self: `particles[i]` is `queries[i]` for every i < n, and is not its own neighbor.

    Returns:
        (n, k) float32.
    """
    (n, d), m = queries.shape, len(particles)
    if n == 0 or d == 0:
        return queries.new_zeros(n, k, dtype=torch.float32)
    if d <= MAX_ROWS_DIM:
        way = by_rows if m <= MAX_ROWS_PARTICLES else by_tiles
    else:
        way = by_matrix if m <= MAX_MATRIX_PARTICLES else by_tiles
    with torch.cuda.device_of(queries):  # Triton launches on the current device
        return way(queries, particles, k, exclude_self)


knn_distances.register_fake(
    lambda queries, particles, k, exclude_self: queries.new_empty(len(queries), k, dtype=torch.float32)
)


# --- launches -----------------------------------------------------------------------------------------------


def pack(points: Tensor, tile: int) -> Tensor:
    """Pack points (m, d) of any strides into (tiles, d, T) float32; the last tile is padded with NaN."""
    m, d = points.shape
    packed = points.new_empty(triton.cdiv(m, tile), d, tile, dtype=torch.float32)
    block = min(PACK_DIM, triton.next_power_of_2(d))
    grid = (len(packed), triton.cdiv(d, block))
    _knn_pack[grid](points, packed, m, points.stride(0), points.stride(1), d, tile, block, num_warps=4)
    return packed


def squared_matrix(queries: Tensor, packed: Tensor, m: int, symmetric: bool = False) -> Tensor:
    """Squared distances (n, m); `symmetric` if the queries are the particles, which halves the work."""
    (n, d), (tiles, _, tile) = queries.shape, packed.shape
    rows, split = _at_most(MATRIX_ROWS, n), _split(d)
    squares = queries.new_empty(n, m)
    grid = (triton.cdiv(n, rows), tiles)
    _knn_matrix[grid](
        queries, packed, squares, n, m, d, rows, tile, split, MATRIX_UNROLL, symmetric, num_warps=split
    )
    return squares


def tile_minima(queries: Tensor, packed: Tensor, own: int | None = None) -> Tensor:
    """Smallest squared distance of each query in each tile (n, tiles); row i skips particle i + own."""
    (n, d), (tiles, _, tile) = queries.shape, packed.shape
    rows, split = _at_most(QUERY_ROWS, n), _split(d)
    loops = min(QUERY_LOOPS, triton.cdiv(n, rows))
    minima = queries.new_empty(n, tiles)
    grid = (triton.cdiv(n, rows * loops), tiles)  # neighboring programs share a tile: one read from memory
    _knn_minima[grid](
        queries, packed, minima, n, tiles, own or 0, d, rows, tile, split, UNROLL, loops, own is not None,
        num_warps=split,
    )  # fmt: skip
    return minima


def smallest(squares: Tensor, k: int, *, indices: bool = False, own: int | None = None) -> Tensor:
    """Square roots of the k smallest values of each row, ascending (n, k), or their int32 indices.

    Values are non-negative or NaN. Row i skips column i + own.
    """
    n, width = squares.shape
    out = squares.new_empty(n, k, dtype=torch.int32 if indices else torch.float32)
    block = triton.next_power_of_2(width)
    _knn_smallest[(n,)](
        squares, out, width, own or 0, k, block, indices, own is not None, num_warps=_warps(block)
    )
    return out


def nearest(queries: Tensor, packed: Tensor, where: Tensor | None, k: int, own: int | None) -> Tensor:
    """The k smallest distances (n, k) in the tiles `where` (n, t) of each query, or in all tiles."""
    (n, d), (tiles, _, tile) = queries.shape, packed.shape
    count = tiles if where is None else where.shape[1]
    out = queries.new_empty(n, k)
    block = triton.next_power_of_2(count * tile)
    gather = where is not None
    _knn_nearest[(n,)](
        queries, packed, where if gather else out, out, count, own or 0, k, d, tile, block, UNROLL, gather,
        own is not None, num_warps=_warps(block),
    )  # fmt: skip
    return out


def _rows(queries: Tensor) -> Tensor:
    return queries.to(torch.float32).contiguous()


def _cat(found: list[Tensor]) -> Tensor:
    return found[0] if len(found) == 1 else torch.cat(found)


def _at_most(rows: int, n: int) -> int:
    return min(rows, 1 << (n.bit_length() - 1))  # a power of two, at most n


def _split(d: int) -> int:
    return SPLIT if d >= SPLIT_DIM else 1


def _warps(block: int) -> int:
    return min(16, max(1, block // SELECT_PER_WARP))


# --- kernels ------------------------------------------------------------------------------------------------


@triton.jit  # type: ignore[untyped-decorator]
def _knn_pack(
    x_ptr: tl.tensor, out_ptr: tl.tensor, m: tl.tensor, stride_m: tl.tensor, stride_d: tl.tensor,
    dim: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    inside = tl.arange(0, tile)[:, None]
    row = number * tile + inside  # (T, 1)
    d = tl.program_id(1) * block + tl.arange(0, block)[None, :]  # (1, block)
    x = tl.load(x_ptr + row * stride_m + d * stride_d, mask=(row < m) & (d < dim), other=0.0)
    x = tl.where(row < m, x.to(tl.float32), float("nan"))  # (T, block)
    tl.store(out_ptr + number * (dim * tile) + d * tile + inside, x, mask=d < dim)


@triton.jit  # type: ignore[untyped-decorator]
def _squared(
    q_ptr: tl.tensor, p_ptr: tl.tensor,
    dim: tl.constexpr, rows: tl.constexpr, tile: tl.constexpr, split: tl.constexpr, unroll: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Squared distances (rows, T) of the queries at q_ptr, row after row, to the packed tile at p_ptr.

    Warp s takes coordinates s, s + split, …; each of its threads holds rows × T/32 pairs and reads all
    queries from the cache. Offsets are constants: the loop contains only loads and arithmetic.
    """
    part = tl.arange(0, split)[:, None, None]
    q_at = tl.arange(0, rows)[None, :, None] * dim + part  # (split, rows, 1)
    p_at = part * tile + tl.arange(0, tile)[None, None, :]  # (split, 1, T)
    sums = tl.zeros((split, rows, tile), tl.float32)
    step: tl.constexpr = split * unroll
    whole: tl.constexpr = dim // step * step
    for d in range(0, whole, step):
        for u in tl.static_range(0, step, split):
            difference = tl.load(q_ptr + (d + u) + q_at) - tl.load(p_ptr + (d + u) * tile + p_at)
            sums += difference * difference
    for d in tl.static_range(whole, dim, split):
        if d + split <= dim:
            difference = tl.load(q_ptr + d + q_at) - tl.load(p_ptr + d * tile + p_at)
        else:
            left = part < dim - d
            difference = tl.load(q_ptr + d + q_at, mask=left, other=0.0)
            difference = difference - tl.load(p_ptr + d * tile + p_at, mask=left, other=0.0)
        sums += difference * difference
    return tl.sum(sums, axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def _bits(squares: tl.tensor) -> tl.tensor:
    return squares.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # a NaN may have a sign bit


@triton.jit  # type: ignore[untyped-decorator]
def _take(bits: tl.tensor, at: tl.tensor, out_ptr: tl.tensor, k: tl.tensor, indices: tl.constexpr) -> None:
    """Write the k smallest of a row one by one: the square root of the value, or its index."""
    for j in range(k):
        low = tl.min(bits, axis=0)
        first = tl.min(tl.where(bits == low, at, _TAKEN), axis=0)  # only one of several copies
        if indices:
            tl.store(out_ptr + j, first)
        else:
            tl.store(out_ptr + j, tl.sqrt_rn(low.to(tl.float32, bitcast=True)))
        bits = tl.where(at == first, _TAKEN, bits)


@triton.jit  # type: ignore[untyped-decorator]
def _knn_matrix(
    q_ptr: tl.tensor, p_ptr: tl.tensor, out_ptr: tl.tensor, n: tl.tensor, m: tl.tensor,
    dim: tl.constexpr, rows: tl.constexpr, tile: tl.constexpr, split: tl.constexpr, unroll: tl.constexpr,
    symmetric: tl.constexpr,
) -> None:  # fmt: skip
    block, number = tl.program_id(0), tl.program_id(1)
    # A tile below the diagonal mirrors parts of other tiles.
    if not symmetric or (number + 1) * tile > block * rows:
        start = tl.minimum(block * rows, n - rows)  # the last block may repeat some rows
        squares = _squared(q_ptr + start * dim, p_ptr + number * (dim * tile), dim, rows, tile, split, unroll)
        row = start + tl.arange(0, rows)[:, None]  # (rows, 1)
        col = number * tile + tl.arange(0, tile)[None, :]  # (1, T)
        tl.store(out_ptr + row * m + col, squares, mask=col < m)
        if symmetric:
            tl.store(out_ptr + col * m + row, squares, mask=col < m)


@triton.jit  # type: ignore[untyped-decorator]
def _knn_minima(
    q_ptr: tl.tensor, p_ptr: tl.tensor, out_ptr: tl.tensor, n: tl.tensor, tiles: tl.tensor, own: tl.tensor,
    dim: tl.constexpr, rows: tl.constexpr, tile: tl.constexpr, split: tl.constexpr, unroll: tl.constexpr,
    loops: tl.constexpr, exclude: tl.constexpr,
) -> None:  # fmt: skip
    number = tl.program_id(1)
    p_ptr += number * (dim * tile)
    row, col = tl.arange(0, rows), tl.arange(0, tile)
    for i in range(loops):
        start = tl.minimum((tl.program_id(0) * loops + i) * rows, n - rows)  # the last rows may repeat
        bits = _bits(_squared(q_ptr + start * dim, p_ptr, dim, rows, tile, split, unroll))  # (rows, T)
        if exclude:
            shift = start + own - number * tile
            if (shift < tile) & (shift > -rows):
                bits = tl.where(row[:, None] + shift == col[None, :], _TAKEN, bits)
        low = tl.min(bits, axis=1)
        tl.store(out_ptr + (start + row) * tiles + number, low.to(tl.float32, bitcast=True))


@triton.jit  # type: ignore[untyped-decorator]
def _knn_smallest(
    x_ptr: tl.tensor, out_ptr: tl.tensor, width: tl.tensor, own: tl.tensor, k: tl.tensor,
    block: tl.constexpr, indices: tl.constexpr, exclude: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    at = tl.arange(0, block)
    bits = _bits(tl.load(x_ptr + row * width + at, mask=at < width, other=0.0))
    bits = tl.where(at < width, tl.minimum(bits, _NAN), _TAKEN)  # so that no index is selected twice
    if exclude:
        bits = tl.where(at == row + own, _TAKEN, bits)
    _take(bits, at, out_ptr + row * k, k, indices)


@triton.jit  # type: ignore[untyped-decorator]
def _knn_nearest(
    q_ptr: tl.tensor, p_ptr: tl.tensor, where_ptr: tl.tensor, out_ptr: tl.tensor,
    count: tl.tensor, own: tl.tensor, k: tl.tensor,
    dim: tl.constexpr, tile: tl.constexpr, block: tl.constexpr, unroll: tl.constexpr,
    gather: tl.constexpr, exclude: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < count * tile
    number = tl.minimum(at // tile, count - 1)  # beyond the last, any readable tile
    if gather:
        number = tl.load(where_ptr + row * count + number)
    q_ptr += row * dim
    p_at = p_ptr + (number * (dim * tile) + at % tile)
    sums = tl.zeros((block,), tl.float32)
    whole: tl.constexpr = dim // unroll * unroll
    for d in range(0, whole, unroll):
        for u in tl.static_range(unroll):
            difference = tl.load(q_ptr + (d + u)) - tl.load(p_at + (d + u) * tile)
            sums += difference * difference
    for d in tl.static_range(whole, dim):
        difference = tl.load(q_ptr + d) - tl.load(p_at + d * tile)
        sums += difference * difference
    bits = tl.where(inside, _bits(sums), _TAKEN)
    if exclude:
        bits = tl.where(number * tile + at % tile == row + own, _TAKEN, bits)
    _take(bits, at, out_ptr + row * k, k, False)
