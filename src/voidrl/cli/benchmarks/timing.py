"""Timing: synchronize before and after, discard the first calls, take the median of several repeats."""

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
Run = Callable[[int], object]  # runs something `count` times


@dataclass(frozen=True)
class Timing:
    """Seconds per call in each of the repeats."""

    repeats: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.repeats)

    def compare(self, baseline: Sequence[Timing], floor: float) -> dict[str, Any]:
        """Microseconds of a call, its share of the floor in seconds, and the speedup over plain PyTorch."""
        ratio = {"ratio": baseline[0].seconds / self.seconds, "against": "torch"} if baseline else {}
        return {"microseconds": self.seconds * 1e6, "floor_share": floor / self.seconds, **ratio}

    def rates(self, key: str, items_per_call: float = 1.0) -> dict[str, Any]:
        """Items per second: the median, the slowest and the fastest repeat, and all repeats."""
        return rate_figures(key, [items_per_call / seconds for seconds in self.repeats])


def rate_figures(key: str, rates: Sequence[float]) -> dict[str, Any]:
    """Median, minimum, maximum and the repeats themselves, named after `key`."""
    return {
        key: statistics.median(rates),
        f"{key}_min": min(rates),
        f"{key}_max": max(rates),
        f"{key}_repeats": list(rates),
    }


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(runs: Sequence[Run], device: torch.device, seconds: float, multiple: int = 1) -> list[Timing]:
    """Time each run, with alternating repeats, so that other load on the machine affects all equally.

    Args:
        runs: Each runs something `count` times.
        device: The device to synchronize with.
        seconds: Time budget for all repeats of one run.
        multiple: Counts are multiples of this.
    """
    counts = [_choose_count(run, device, seconds / REPEATS, multiple) for run in runs]
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(REPEATS):
        for run, count, repeats in zip(runs, counts, times, strict=True):
            repeats.append(time_run(run, count, device) / count)
    return [Timing(tuple(repeats)) for repeats in times]


def _choose_count(run: Run, device: torch.device, seconds: float, multiple: int) -> int:
    """The number of calls that fill the given time."""
    run(multiple)  # one-time setup, such as capturing a graph, happens here
    count = multiple
    while (elapsed := time_run(run, count, device)) < seconds / 8:
        count *= 4
    return max(1, math.ceil(count * seconds / elapsed / multiple)) * multiple


def time_run(run: Run, count: int, device: torch.device) -> float:
    """Seconds that `run(count)` takes."""
    synchronize(device)
    start = time.perf_counter()
    run(count)
    synchronize(device)
    return time.perf_counter() - start


def measure_calls(
    calls: Sequence[Callable[[], object]], device: torch.device, seconds: float
) -> list[Timing]:
    """Time functions without arguments, on CUDA as a captured graph, as they run inside an update.

    Without a graph, launching small kernels would dominate the time.
    """
    if device.type == "cuda":
        return measure([_captured(call, device) for call in calls], device, seconds, CALLS_PER_GRAPH)
    return measure([_repeated(call) for call in calls], device, seconds)


def _repeated(call: Callable[[], object]) -> Run:
    return lambda count: [call() for _ in range(count)]


def _captured(call: Callable[[], object], device: torch.device) -> Run:
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
    replay = _repeated(graph.replay)
    return lambda count: replay(count // CALLS_PER_GRAPH)


class PeakMemory:
    """Peak memory allocated on a CUDA device since this object was created; None on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            self._base = torch.cuda.memory_allocated(device)

    def mib(self) -> float | None:
        """The peak in MiB, above the allocation at the start."""
        if self._device.type != "cuda":
            return None
        synchronize(self._device)
        return (torch.cuda.max_memory_allocated(self._device) - self._base) / MIB
