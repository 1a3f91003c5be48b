"""The search for nearest neighbors, alone."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from voidrl.bench.op_costs import knn_flop
from voidrl.bench.peaks import Peaks
from voidrl.bench.report import Column, Row, number, percent, ratio, shown, spread
from voidrl.bench.timing import PeakMemory, measure, repeated
from voidrl.entropy import knn_distances
from voidrl.errors import ConfigError
from voidrl.units import parse_count

Size = tuple[int, int, int, int]  # n, m, d, k
SIZES: tuple[Size, ...] = (
    (512, 512, 15, 5),
    (1024, 1024, 15, 12),
    (1024, 1024, 512, 12),
    (512, 100_000, 15, 10),
    (512, 1_000_000, 15, 10),
)
CPU_PAIRS = 10**8  # more are left out on a CPU, unless they are asked for
REFERENCE_CHUNK = 2**16


def check(options: Namespace) -> None:
    """Refuse sizes that are none."""
    for text in options.sizes:
        parse_size(text)


def parse_size(text: str) -> Size:
    """`512,1M,15,10` as n, m, d, k."""
    words = text.split(",")
    if len(words) != 4:
        raise ConfigError(f"size {text!r} cannot be read: expected N,M,D,K, such as 512,1M,15,10")
    n, m, d, k = (parse_count(word, name) for word, name in zip(words, "nmdk", strict=True))
    if k > m - (n == m):
        raise ConfigError(f"size {text!r} cannot be used: {m} particles have no {k} neighbors; lower K")
    return n, m, d, k


def columns(options: Namespace) -> list[Column]:
    """One row for each size."""
    return [
        Column("n × m × d, k", 26, _size_text),
        Column("µs", 10, shown("microseconds")),
        *([Column("× torch", 9, ratio)] if options.against else []),
        Column("peak MiB", 9, shown("peak_mib")),
        Column("floor µs", 9, lambda row: number(row["floor"]["microseconds"])),
        Column("bound by", 10, lambda row: row["floor"]["bound"]),
        Column("of floor", 8, lambda row: percent(row["floor_share"])),
    ]


def details(row: Row) -> list[str]:
    """The spread."""
    return [f"{spread(row, 'per_second')} searches/s, {number(row['floor']['gflop'])} GFLOP each"]


def _size_text(row: Row) -> str:
    return f"{row['n']:,} × {row['m']:,} × {row['d']}, {row['k']}"


def rows(options: Namespace, device: torch.device, peaks: Peaks, say: Callable[[str], None]) -> Iterator[Row]:
    """As many particles as queries: every particle's neighbors among the others, as in a batch."""
    sizes = [parse_size(text) for text in options.sizes]
    if not sizes:
        sizes = [s for s in SIZES if device.type == "cuda" or s[0] * s[1] <= CPU_PAIRS]
    for n, m, d, k in sizes:
        particles = torch.randn(m, d, device=device)
        queries = particles if n == m else torch.randn(n, d, device=device)
        yield _row(queries, particles, k, options, peaks)


def _row(queries: Tensor, particles: Tensor, k: int, options: Namespace, peaks: Peaks) -> Row:
    own, device = queries is particles, queries.device

    def ours() -> Tensor:
        return knn_distances(queries, particles, k, exclude_self=own)

    ours()  # compiled here, if it is
    peak = PeakMemory(device)
    ours()
    peak_mib = peak.mib()
    calls = [ours] if not options.against else [ours, lambda: reference(queries, particles, k)]
    runs = [repeated(call, device) for call in calls]
    timings = measure([run for run, _ in runs], device, options.seconds, runs[0][1])
    (n, d), m, timing = queries.shape, len(particles), timings[0]
    flop = knn_flop(n, d, None if own else m)
    size = 4.0 * (n * d * (not own) + m * d + n * k)
    by_flop, by_bytes = flop / peaks.fp32, size / peaks.bandwidth
    floor = max(by_flop, by_bytes)
    return {
        "n": n,
        "m": m,
        "d": d,
        "k": k,
        **timing.rates("per_second"),
        "microseconds": timing.seconds * 1e6,
        "ratio": timings[1].seconds / timing.seconds if options.against else None,
        "against": options.against,
        "peak_mib": peak_mib,
        "floor": {
            "microseconds": floor * 1e6,
            "gflop": flop / 1e9,
            "gb": size / 1e9,
            "bound": "operations" if by_flop > by_bytes else "bytes",
        },
        "floor_share": floor / timing.seconds,
    }


def reference(queries: Tensor, particles: Tensor, k: int) -> Tensor:
    """What one writes in PyTorch: the product form of cdist, which is fast and rounds, and topk."""
    own = queries is particles  # then the nearest is the point itself, and is dropped
    found = []
    for chunk in particles.split(REFERENCE_CHUNK):
        distances = torch.cdist(queries, chunk)  # (n, c)
        found.append(distances.topk(min(k + own, len(chunk)), largest=False).values)
    return torch.cat(found, 1).topk(k + own, largest=False).values[:, int(own) :]
