"""Where the time of an update goes: kernels by class, and how much of the time the device is busy.

On CUDA kernels are read from a trace, on a CPU operators with the time they spend themselves. Names tell the
class: those of cuDNN, cuBLAS and PyTorch, and those of the Triton functions in `voidrl.kernels`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from voidrl import kernels
from voidrl.bench.timing import synchronize

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler writes lines of its own into the table
DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")

KERNEL_FILES = {"knn": "neighbors", "images": "images", "conv": "convolutions"}  # how names begin there

# The first that is found in a name decides. What Inductor fuses carries the names of all that it fused.
CLASSES: tuple[tuple[str, str], ...] = (
    ("convolutions", r"^triton_tem\w*conv"),
    ("products", r"^triton_(tem|mm|bmm)"),
    ("fused", r"^triton_|cpp_fused"),
    ("neighbors", r"voidrl::knn|cdist|topk|sort|radix|bitonic"),
    ("images", r"voidrl::images"),
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
    for own, part in own_kernels().items():
        if re.match(rf"{own}(_\d|\b)", name):  # Triton may append how the arguments are specialized
            return part
    return next((part for part, pattern in PATTERNS if pattern.search(name)), "other")


@cache
def own_kernels() -> dict[str, str]:
    """The class of each Triton function of ours, read from the source: importing it needs Triton."""
    found = {}
    for path in sorted(Path(kernels.__path__[0]).glob("*.py")):
        part = next((part for name, part in KERNEL_FILES.items() if path.name.startswith(name)), "other")
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any(
                "triton.jit" in ast.unparse(d) for d in node.decorator_list
            ):
                found[node.name] = part
    return found


@dataclass(frozen=True)
class Parts:
    """Of one update."""

    milliseconds: dict[str, float]
    """By class, the longest first."""
    kernels: float
    """Number of kernels, or of operators on a CPU."""
    busy: float | None
    """Share of the time in which the device ran a kernel; None on a CPU."""
    names: dict[str, float]
    """Milliseconds of the longest kernels by name."""


def find_parts(run: Callable[[int], object], count: int, device: torch.device) -> Parts:
    """Run `count` updates under the profiler."""
    if device.type != "cuda":
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            run(count)
        rows = [(row.key, row.self_cpu_time_total, row.count) for row in recorded.key_averages()]
        return _summed(((name, spent) for name, spent, _ in rows), sum(n for *_, n in rows), count, None)
    # Without CPU operators: recording them slows launching down, and with it what eager updates show.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write_trace(run, count, device, path, [ProfilerActivity.CUDA])
        events = device_events(json.loads(path.read_text("utf-8", errors="replace")))
    spent = ((event["name"], event["dur"]) for event in events)
    return _summed(spent, len(events), count, busy_share(events))


def write_trace(
    run: Callable[[int], object],
    count: int,
    device: torch.device,
    path: Path,
    activities: list[ProfilerActivity] | None = None,
) -> None:
    """A Chrome trace of `count` updates, by default with everything that the device lets us see."""
    on_cuda = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(
        activities=activities or [ProfilerActivity.CPU, *on_cuda],
        schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda recorded: recorded.export_chrome_trace(str(path)),
    ) as steps:
        for times in (count // 2, count):  # what the profiler sets up at first is not recorded
            run(times)
            synchronize(device)
            steps.step()


def device_events(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Kernels, copies and fills of a Chrome trace; times are in µs."""
    return [e for e in trace["traceEvents"] if e.get("cat") in DEVICE_EVENTS and e.get("ph") == "X"]


def busy_share(events: Iterable[dict[str, Any]]) -> float | None:
    """Union of the events' spans over the time from the first start to the last end; None without events."""
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events)
    if not spans:
        return None
    busy, end = 0.0, spans[0][0]
    for begin, finish in spans:
        busy += max(0.0, finish - max(begin, end))
        end = max(end, finish)
    return float(busy / max(end - spans[0][0], 1e-9))


def _summed(spent: Iterable[tuple[str, float]], kernels: int, updates: int, busy: float | None) -> Parts:
    by_name: dict[str, float] = defaultdict(float)
    for name, microseconds in spent:
        by_name[name] += microseconds / 1000 / updates
    by_part: dict[str, float] = defaultdict(float)
    for name, milliseconds in by_name.items():
        by_part[part_of(name)] += milliseconds
    longest = sorted(by_name.items(), key=lambda item: -item[1])[:20]
    ordered = dict(sorted(by_part.items(), key=lambda item: -item[1]))
    return Parts(ordered, kernels / updates, busy, {name[:120]: time for name, time in longest})
