"""The k-nearest-neighbor search by itself."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from voidrl.cli.benchmarks.op_costs import knn_flop
from voidrl.cli.benchmarks.results import Result, number, percent, speedup, value_range
from voidrl.cli.benchmarks.roofline import Peaks
from voidrl.cli.benchmarks.timing import PeakMemory, measure_calls
from voidrl.entropy import knn_distances

NAME_WIDTH = 26
SIZES = (  # n, m, d, k
    (512, 512, 15, 5),
    (1024, 1024, 15, 12),
    (1024, 1024, 512, 12),
    (512, 100_000, 15, 10),
    (512, 1_000_000, 15, 10),
)
CPU_PAIRS = 10**8  # the defaults skip larger sizes on a CPU
REFERENCE_CHUNK = 2**16


def results(
    options: Namespace, device: torch.device, peaks: Peaks, say: Callable[[str], None]
) -> Iterator[Result]:
    """Measure each size. With n = m the queries are the particles, as in a minibatch."""
    sizes = options.sizes or [s for s in SIZES if device.type == "cuda" or s[0] * s[1] <= CPU_PAIRS]
    for n, m, d, k in sizes:
        particles = torch.randn(m, d, device=device)
        queries = particles if n == m else torch.randn(n, d, device=device)
        yield _result(queries, particles, k, options, peaks)


def _result(queries: Tensor, particles: Tensor, k: int, options: Namespace, peaks: Peaks) -> Result:
    own, device = queries is particles, queries.device

    def search() -> Tensor:
        return knn_distances(queries, particles, k, exclude_self=own)

    search()  # compiles the kernels
    peak = PeakMemory(device)
    search()
    peak_mib = peak.mib()
    calls = [search, lambda: reference(queries, particles, k)] if options.against else [search]
    timing, *baseline = measure_calls(calls, device, options.seconds)
    (n, d), m = queries.shape, len(particles)
    flop = knn_flop(n, d, None if own else m)
    size = 4.0 * (n * d * (not own) + m * d + n * k)
    compute, memory = flop / peaks.fp32, size / peaks.bandwidth
    floor = max(compute, memory)
    bound = "compute" if compute > memory else "memory"
    figures = {
        "n": n,
        "m": m,
        "d": d,
        "k": k,
        **timing.rates("per_second"),
        **timing.compare(baseline, floor),
        "peak_mib": peak_mib,
        "floor": {"microseconds": floor * 1e6, "gflop": flop / 1e9, "gb": size / 1e9, "bound": bound},
    }
    cells = {
        "n × m × d, k": f"{n:,} × {m:,} × {d}, {k}",
        "µs": number(figures["microseconds"]),
        **speedup(figures),
        "peak MiB": number(peak_mib),
        "floor µs": number(floor * 1e6),
        "bound by": bound,
        "of floor": percent(figures["floor_share"]),
    }
    note = f"{value_range(figures, 'per_second')} searches/s, {number(flop / 1e9)} GFLOP each"
    return Result(figures, cells, (note,))


def reference(queries: Tensor, particles: Tensor, k: int) -> Tensor:
    """The usual PyTorch code: topk of cdist by matrix product, which is fast but loses precision."""
    own = queries is particles  # then the nearest particle is the query itself, and is dropped
    nearest = []
    for chunk in particles.split(REFERENCE_CHUNK):
        distances = torch.cdist(queries, chunk)  # (n, c)
        nearest.append(distances.topk(min(k + own, len(chunk)), largest=False).values)
    return torch.cat(nearest, 1).topk(k + own, largest=False).values[:, int(own) :]
