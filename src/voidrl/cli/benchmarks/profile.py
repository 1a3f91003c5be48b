"""Profile of an update: time in kernels by class, and how busy the device is.

On CUDA the kernels come from a trace, on a CPU the operators with their own time. The class follows from the
name: cuDNN, cuBLAS, PyTorch, and the Triton functions in `voidrl.kernels`.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from voidrl.cli.benchmarks.timing import synchronize

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # keeps the profiler's messages out of the table
DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")

# The first match in a name decides. Inductor's fused kernels carry the names of everything they fuse.
CLASSES: tuple[tuple[str, str], ...] = (
    ("neighbors", r"^_knn_|voidrl::knn"),
    ("images", r"^_images|voidrl::images"),
    ("priorities", r"^_(sum_blocks|find|weigh|update)(_\d|\b)|voidrl::(draw|update)_priorities"),
    ("convolutions", r"^(pack|sweep|weight_gradient|output_gradient|gather)(_\d|\b)"),  # of kernels/conv
    ("convolutions", r"^triton_tem\w*conv"),
    ("products", r"^triton_(tem|mm|bmm)"),
    ("fused", r"^triton_|cpp_fused"),
    ("neighbors", r"cdist|topk|sort|radix|bitonic"),
    ("optimizer", r"adam|multi_tensor_apply|lerp|_foreach_"),
    ("convolutions", r"conv|fprop|dgrad|wgrad|cudnn|nchwtonhwc|nhwctonchw"),
    ("products", r"gemm|gemv|cutlass|cublas|(?<!ga)mma|nvjet|splitk|\bdot_kernel|reduce_1block"),
    ("products", r"::(mm|addmm|bmm|baddbmm|mv|addmv|dot|matmul|linear)_?$"),
    ("random numbers", r"distribution|philox|rand|normal_$|uniform_$|bernoulli"),
    ("copies", r"memcpy|memset|copy|catarray|fillfunctor|::(cat|clone|zero_|fill_|contiguous)$"),
)
PATTERNS = [(part, re.compile(pattern, re.IGNORECASE)) for part, pattern in CLASSES]
PARTS = (*dict.fromkeys(part for part, _ in CLASSES), "other")


def part_of(name: str) -> str:
    """The class of a kernel or operator."""
    return next((part for part, pattern in PATTERNS if pattern.search(name)), "other")


@dataclass(frozen=True)
class Profile:
    """Profile of one update."""

    milliseconds: dict[str, float]
    """Milliseconds by class, the longest first."""
    kernels: float
    """Number of kernels, or of operators on a CPU."""
    busy: float | None
    """Fraction of the time in which the device runs a kernel; None on a CPU."""
    names: dict[str, float]
    """Milliseconds of the longest kernels by name."""


def profile_updates(run: Callable[[int], object], count: int, device: torch.device) -> Profile:
    """Run `count` updates under the profiler and average over them."""
    if device.type != "cuda":
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            run(count)
        rows = [(row.key, row.self_cpu_time_total, row.count) for row in recorded.key_averages()]
        return _summarize(((name, time) for name, time, _ in rows), sum(n for *_, n in rows), count, None)
    # Without CPU operators: recording them slows down launches, which distorts eager updates.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_trace(run, count, device, path, [ProfilerActivity.CUDA])
        events = device_events(json.loads(path.read_text("utf-8", errors="replace")))
    times = ((event["name"], event["dur"]) for event in events)
    return _summarize(times, len(events), count, busy_fraction(events))


def write_trace(
    run: Callable[[int], object],
    count: int,
    device: torch.device,
    path: Path,
    activities: list[ProfilerActivity] | None = None,
) -> None:
    """Write a Chrome trace of `count` updates, by default of the CPU and the GPU."""
    on_cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(
        activities=activities or [ProfilerActivity.CPU, *on_cuda],
        schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(str(path)),
    ) as steps:
        for repeats in (count // 2, count):  # the first round warms up the profiler
            run(repeats)
            synchronize(device)
            steps.step()


def device_events(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The kernels, copies and fills of a Chrome trace; times are in µs."""
    return [e for e in trace["traceEvents"] if e.get("cat") in DEVICE_EVENTS and e.get("ph") == "X"]


def busy_fraction(events: Iterable[dict[str, Any]]) -> float | None:
    """Fraction of the time from the first start to the last end covered by events; None without events."""
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events)
    if not spans:
        return None
    busy, end = 0.0, spans[0][0]
    for begin, finish in spans:
        busy += max(0.0, finish - max(begin, end))
        end = max(end, finish)
    return float(busy / max(end - spans[0][0], 1e-9))


def _summarize(times: Iterable[tuple[str, float]], kernels: int, updates: int, busy: float | None) -> Profile:
    by_name: dict[str, float] = defaultdict(float)
    for name, microseconds in times:
        by_name[name] += microseconds / 1000 / updates
    by_part: dict[str, float] = defaultdict(float)
    for name, milliseconds in by_name.items():
        by_part[part_of(name)] += milliseconds
    longest = sorted(by_name.items(), key=lambda item: -item[1])[:20]
    ordered = dict(sorted(by_part.items(), key=lambda item: -item[1]))
    return Profile(ordered, kernels / updates, busy, {name[:120]: time for name, time in longest})
