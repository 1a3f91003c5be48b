"""The kernels against the definition in float64 and against the plain path, whose place they take on CUDA.

Without a GPU they run in Triton's interpreter, so sizes are tiny here; small tiles bring out the borders.
"""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")

from helpers import KERNEL_DEVICES, brute_force, needs_cuda, points

from voidrl import entropy
from voidrl.kernels import knn

WAYS = {  # with small tiles
    "rows": (knn.by_rows, {"TILE": 16}),
    "matrix": (knn.by_matrix, {"MATRIX_TILE": 16}),
    "matrix-in-parts": (knn.by_matrix, {"MATRIX_TILE": 16, "MAX_ELEMENTS": 100}),
    "tiles": (knn.by_tiles, {"TILE": 4}),
    "tiles-in-parts": (knn.by_tiles, {"TILE": 4, "MAX_TILES": 3, "MAX_ELEMENTS": 20}),
    "chosen": (knn.knn_distances, {}),
}


@pytest.fixture(params=KERNEL_DEVICES)
def device(request):
    return request.param


def way_of(name, monkeypatch):
    search, sizes = WAYS[name]
    for size, value in sizes.items():
        monkeypatch.setattr(knn, size, value)
    return search


@pytest.fixture(params=["rows", "matrix", "tiles-in-parts"])
def way(request, monkeypatch):
    return way_of(request.param, monkeypatch)


def assert_exact(found, expected):
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-6, atol=0)


# --- values -------------------------------------------------------------------------------------------------


SIZES = {  # queries, particles, dimension, neighbors, without themselves
    "one": (1, 5, 1, 1, False),
    "all": (5, 6, 7, 5, True),
    "odd": (9, 33, 17, 3, True),
    "wide": (3, 12, 200, 4, True),
}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *((name, "odd") for name in WAYS),
        *((name, "wide") for name in ("rows", "matrix", "tiles")),
        *((name, sizes) for name in ("matrix-in-parts", "tiles-in-parts") for sizes in ("one", "all")),
    ],
)
def test_equal_to_brute_force(device, name, sizes, monkeypatch):
    n, m, d, k, exclude_self = SIZES[sizes]
    pool = points(m, d).to(device)
    found = way_of(name, monkeypatch)(pool[:n], pool, k, exclude_self)
    assert found.shape == (n, k)
    assert found.device == pool.device
    assert_exact(found, brute_force(pool[:n].cpu(), pool.cpu(), k, exclude_self))


def test_the_smallest_of_a_row(device):
    x = torch.tensor([[4.0, 1.0, 1.0, math.nan, 0.0, math.inf, 9.0]], device=device).repeat(2, 1)
    assert knn.smallest(x, 4).tolist() == [[0.0, 1.0, 1.0, 2.0]] * 2
    assert knn.smallest(x, 7, indices=True).tolist() == [[4, 1, 2, 0, 6, 5, 3]] * 2
    assert knn.smallest(x, 2, own=4).tolist() == [[1.0, 1.0], [0.0, 1.0]]
    for bits in (0x7FC00000, 0x7FFFFFFF, -1):  # NaN has many, and another sign counts for nothing
        x[:, 1:] = torch.tensor(bits, dtype=torch.int32, device=device).view(torch.float32)
        assert knn.smallest(x, 3, indices=True).tolist() == [[0, 1, 2]] * 2


def test_copies_and_ties(device, way):
    z = torch.tensor([[1.0], [1.0], [1.0], [5.0]] * 5, device=device)
    expected = brute_force(z[:5].cpu(), z.cpu(), 17, exclude_self=True)
    assert torch.equal(way(z[:5], z, 17, True).cpu().double(), expected)
    grid = torch.cartesian_prod(torch.arange(5.0), torch.arange(5.0)).to(device)  # many neighbors equally far
    assert_exact(way(grid[10:14], grid, 9, False), brute_force(grid[10:14].cpu(), grid.cpu(), 9))


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # ∞ − ∞, by the interpreter
def test_not_a_number_and_infinity(device, way):
    z = points(24, 3)
    z[2, 1] = math.nan
    z[4], z[5, 0] = math.inf, -math.inf
    z[12:20] = math.nan  # whole tiles of it
    for pool, n, k in ((z, 6, 9), (z[12:], 2, 11), (z[16:], 5, 7), (z[4:6].repeat(4, 1), 2, 3)):
        expected = entropy._knn(*entropy._widen(pool[:n], pool), k, True)[0].float()
        found = way(pool[:n].to(device), pool.to(device), k, True)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=0, equal_nan=True)
        if pool is z:
            assert found[2].isnan().all(), "a query that is NaN"
            assert found[0].isfinite().all(), "particles that are NaN"


@pytest.mark.parametrize(("rows", "dim", "matrix"), [(99, 9, 0), (9, 9, 0), (0, 2, 99)])
def test_every_choice_is_right(device, monkeypatch, rows, dim, matrix):
    monkeypatch.setattr(knn, "MAX_ROWS_PARTICLES", rows)
    monkeypatch.setattr(knn, "MAX_ROWS_DIM", dim)
    monkeypatch.setattr(knn, "MAX_MATRIX_PARTICLES", matrix)
    z = points(12, 3).to(device)
    assert_exact(knn.knn_distances(z, z, 4, True), brute_force(z.cpu(), z.cpu(), 4, True))


# --- as a part of PyTorch -----------------------------------------------------------------------------------


def test_a_proper_operator(device):
    z = points(12, 3).to(device)
    torch.library.opcheck(knn.knn_distances, (z[:5], z, 3, True))
    compiled = torch.compile(lambda z: knn.knn_distances(z, z, 3, True) + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(z), knn.knn_distances(z, z, 3, True) + 1)


def test_the_estimators_use_it(device, monkeypatch):
    monkeypatch.setattr(entropy, "usable", lambda tensor: True)  # also where it is interpreted
    seen, search = [], knn.by_rows
    monkeypatch.setattr(knn, "by_rows", lambda *args: seen.append(args) or search(*args))
    z = points(12, 4)
    reward = entropy.particle_reward(z.to(device), k=5)
    nats = entropy.particle_entropy(z.to(device))
    assert len(seen) == 2
    compiled = torch.compile(entropy.particle_reward, backend="eager", fullgraph=True)
    assert torch.equal(compiled(z.to(device), k=5), reward)
    in_float64 = entropy.particle_reward(z.to(device).double(), k=5)
    assert len(seen) == 3, "wider numbers take the plain path"
    monkeypatch.setattr(knn, "MAX_K", 4)
    many = entropy.particle_reward(z.to(device), k=5)
    assert len(seen) == 3, "and so do more neighbors than are selected one by one"
    monkeypatch.undo()
    for found in (reward, in_float64, many):
        torch.testing.assert_close(found.cpu(), entropy.particle_reward(z, k=5), rtol=1e-5, atol=1e-6)
    assert nats.item() == pytest.approx(entropy.particle_entropy(z).item(), abs=1e-5)


# --- at size ------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(
    ("n", "m", "d", "k"),
    [(1024, 1024, 512, 12), (1000, 1000, 15, 12), (100, 3000, 200, 128), (300, 100_003, 15, 10)],
)
def test_full_sizes_and_captured(n, m, d, k):
    pool = points(m, d).cuda()
    queries = pool if n == m else pool[:n].clone()

    def search():
        return entropy.knn_distances(queries, pool, k, exclude_self=True)

    search()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = search()
    pool.copy_(points(m, d, seed=1))
    queries.copy_(pool[:n])
    graph.replay()
    expected = torch.cat(
        [brute_force(queries[i : i + 8], pool, k + 1)[:, 1:].cpu() for i in range(0, min(n, 64), 8)]
    )
    assert_exact(found[: len(expected)], expected)


@pytest.mark.gpu
@needs_cuda
def test_memory_stays_linear_on_the_device():
    pool = torch.randn(1_000_000, 15, device="cuda")
    entropy.knn_distances(pool[:512], pool, 10)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    entropy.knn_distances(pool[:512], pool, 10)
    assert torch.cuda.max_memory_allocated() - before < 2**28  # n × m would be 2 GB
