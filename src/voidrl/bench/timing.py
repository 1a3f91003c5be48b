"""Timing: the device is waited for before and after, first calls never count, several repeats."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

REPEATS = 5
CALLS_PER_GRAPH = 16
MIB = 2**20


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, in each of the repeats."""

    repeats: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.repeats)

    def rates(self, prefix: str, each: float = 1.0) -> dict[str, Any]:
        """Median, slowest and fastest as `each` per second, for a row."""
        rates = [each / seconds for seconds in self.repeats]
        return {
            prefix: each / self.seconds,
            f"{prefix}_min": min(rates),
            f"{prefix}_max": max(rates),
            f"{prefix}_repeats": rates,
        }


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(
    runs: Sequence[Callable[[int], object]], device: torch.device, seconds: float, multiple: int = 1
) -> list[Timing]:
    """Time `run(count)` for each of the runs, in turn, so that what the machine does beside it hits all.

    Args:
        runs: Each runs something `count` times.
        device: What is waited for.
        seconds: For all repeats of one run together.
        multiple: Counts are multiples of this.
    """
    counts = [_count(run, device, seconds / REPEATS, multiple) for run in runs]
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(REPEATS):
        for run, count, mine in zip(runs, counts, taken, strict=True):
            mine.append(_time(run, count, device) / count)
    return [Timing(tuple(mine)) for mine in taken]


def _count(run: Callable[[int], object], device: torch.device, seconds: float, multiple: int) -> int:
    """How many fill the time; what runs here is not counted."""
    run(multiple)  # whatever is made at first, such as a graph, is made now
    count = multiple
    while (took := _time(run, count, device)) < seconds / 8:
        count *= 4
    return max(1, math.ceil(count * seconds / took / multiple)) * multiple


def _time(run: Callable[[int], object], count: int, device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    run(count)
    synchronize(device)
    return time.perf_counter() - began


def repeated(call: Callable[[], object], device: torch.device) -> tuple[Callable[[int], None], int]:
    """`run(count)` of a call, and the multiple in which it counts.

    On CUDA the call is captured, as it is inside an update: else the launches of small kernels are timed.
    """
    if device.type != "cuda":

        def run(count: int) -> None:
            for _ in range(count):
                call()

        return run, 1

    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS_PER_GRAPH):
            call()

    def replay(count: int) -> None:
        for _ in range(count // CALLS_PER_GRAPH):
            graph.replay()

    return replay, CALLS_PER_GRAPH


class PeakMemory:
    """Bytes allocated on a CUDA device at most, above what there was before; None elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._base = 0
        if self._device is not None:
            synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._base = torch.cuda.memory_allocated(self._device)

    def mib(self) -> float | None:
        """Since this was made."""
        if self._device is None:
            return None
        synchronize(self._device)
        return (torch.cuda.max_memory_allocated(self._device) - self._base) / MIB
