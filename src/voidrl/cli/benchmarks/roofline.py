"""The roofline of an update: a lower bound on its time on a device, from counted operations and bytes.

One eager update runs under a dispatch mode that sees every operator. Matrix products and convolutions count
with their operations and the bytes they read and write, optimizers and moving averages with their bytes, our
own kernels with both. Everything else is free, since a perfect compiler would fuse it into these. Each
operator takes the longer of operations / peak rate and bytes / bandwidth, one operator at a time.

The bound assumes main memory. Data that stays in a GPU's cache is read faster, so a small update
may run below it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from voidrl.cli.benchmarks.op_costs import OWN_OPS, bytes_in, knn_flop, same_memory, stored_bytes, tensors_in
from voidrl.cli.benchmarks.timing import time_run

TERA = 1e12
HALF = (torch.bfloat16, torch.float16)
MEMORY_OPS = ("_fused_adam", "_foreach_lerp", "_foreach_copy", "lerp")
READ_ONLY = ("grads",)  # _fused_adam_ writes to gradients only when it unscales them
VECTOR_PRODUCTS = ("mv", "addmv", "dot", "vdot", "addr")


@dataclass(frozen=True)
class Peaks:
    """Peak operations (a multiply-add is two) and bytes per second of a device."""

    bf16: float
    """Dense products on tensor cores."""
    tf32: float
    """Dense products of fp32 inputs rounded to TF32."""
    fp32: float
    bandwidth: float
    measured: bool = False
    """Measured here by one large product and one large copy, not taken from a data sheet."""

    def describe(self) -> str:
        """One line for the head of a table."""
        source = "peak measured" if self.measured else "peak of the data sheet"
        if self.fp32 < TERA:
            return f"{source}: {self.fp32 / 1e9:.0f} GFLOP/s fp32, {self.bandwidth / 1e9:.1f} GB/s"
        rates = f"{self.bf16 / TERA:.0f} TFLOP/s bf16, {self.fp32 / TERA:.1f} fp32"
        return f"{source}: {rates}, {self.bandwidth / TERA:.2f} TB/s"


DATA_SHEETS = {  # by full name: PCIe and mobile versions of a chip are slower
    "NVIDIA H200": Peaks(989 * TERA, 494 * TERA, 67 * TERA, 4.8 * TERA),
    "NVIDIA H100 80GB HBM3": Peaks(989 * TERA, 494 * TERA, 67 * TERA, 3.35 * TERA),
    "NVIDIA A100-SXM4-80GB": Peaks(312 * TERA, 156 * TERA, 19.5 * TERA, 2.0 * TERA),
    "NVIDIA GeForce RTX 4090": Peaks(165 * TERA, 82.6 * TERA, 82.6 * TERA, 1.0 * TERA),
}


def find_peaks(device: torch.device) -> Peaks:
    """Look the device up in `DATA_SHEETS`, or measure it in less than a second."""
    cuda = device.type == "cuda"
    if cuda and torch.cuda.get_device_name(device) in DATA_SHEETS:
        return DATA_SHEETS[torch.cuda.get_device_name(device)]

    def fastest(call: Callable[[], object]) -> float:
        return min([time_run(lambda _: call(), 1, device) for _ in range(6)][1:])

    side = 4096 if cuda else 768
    ones = {t: torch.ones(side, side, dtype=t, device=device) for t in (torch.bfloat16, torch.float32)}
    bf16, fp32 = (2 * side**3 / fastest(lambda a=a: a @ a) for a in ones.values())  # type: ignore[misc]
    source = torch.ones(2**28 if cuda else 2**25, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * source.numel() / fastest(lambda: target.copy_(source))
    return Peaks(bf16, bf16 / 2 if cuda else fp32, fp32, bandwidth, measured=True)


@dataclass
class Floor:
    """Counted operations and bytes, and the least time they take."""

    flop: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by class of operator."""

    def add(self, other: Floor, weight: float = 1.0) -> None:
        """Add another floor times a weight."""
        self.flop += weight * other.flop
        self.bytes += weight * other.bytes
        self.seconds += weight * other.seconds
        for part, seconds in other.parts.items():
            self.parts[part] += weight * seconds

    def to_json(self) -> dict[str, Any]:
        """Plain values for a row."""
        return {
            "milliseconds": self.seconds * 1000,
            "gflop": self.flop / 1e9,
            "gb": self.bytes / 1e9,
            "parts_ms": {part: seconds * 1000 for part, seconds in self.parts.items()},
        }


class CountFloor(TorchDispatchMode):
    """Counts every operator that runs inside it."""

    def __init__(self, peaks: Peaks) -> None:
        super().__init__()
        self.peaks, self.floor = peaks, Floor()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = op(*args, **kwargs)
        self._count(op, args, kwargs, out)
        return out

    def _count(self, op: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        name = op._schema.name.partition("::")[2]
        if op.namespace == "voidrl":
            names = [argument.name for argument in op._schema.arguments]
            assert name in OWN_OPS, f"voidrl.cli.benchmarks.op_costs does not know the cost of {name}"
            cost = OWN_OPS[name]({**dict(zip(names, args, strict=False)), **kwargs}, out)
            rate = self.peaks.tf32 if cost.tf32 else self.peaks.fp32
            self._add(cost.part, cost.flop, cost.bytes, rate)
            return
        part, flop, rate = "products", 0.0, self.peaks.fp32
        if op.overloadpacket in flop_registry:
            part = "convolutions" if "conv" in name else "products"
            flop = float(flop_registry[op.overloadpacket](*args, **kwargs, out_val=out))
            rate = self._product_rate(out, convolution=part == "convolutions")
        elif name in VECTOR_PRODUCTS and op.namespace == "aten":
            flop = 2.0 * max(tensor.numel() for tensor in tensors_in(args))
        elif name == "_cdist_forward":
            (n, d), m = args[0].shape[-2:], None if same_memory(*args[:2]) else args[1].shape[-2]
            part, flop = "neighbors", knn_flop(n, d, m)
        elif name.startswith(MEMORY_OPS):
            part = "optimizer"
        else:
            return
        self._add(part, flop, traffic(op, args, kwargs, out), rate)

    def _add(self, part: str, flop: float, size: float, rate: float) -> None:
        seconds = max(flop / rate, size / self.peaks.bandwidth)
        self.floor.add(Floor(flop, size, seconds, {part: seconds}))

    def _product_rate(self, out: Any, *, convolution: bool) -> float:
        if tensors_in(out)[0].dtype in HALF:
            return self.peaks.bf16
        rounded = torch.backends.cudnn.allow_tf32 if convolution else torch.backends.cuda.matmul.allow_tf32
        return self.peaks.tf32 if rounded else self.peaks.fp32


def traffic(op: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> float:
    """Bytes that an operator reads and writes, including in-place changes."""
    total = 0.0
    for i, argument in enumerate(op._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        total += bytes_in(value) * (2 if written and argument.name not in READ_ONLY else 1)
    if op._schema.name == "aten::convolution_backward":
        wanted = args[-1]  # the input's gradient needs the weight, and vice versa
        total -= 0 if wanted[0] else stored_bytes(args[2])
        total -= 0 if wanted[1] else stored_bytes(args[1])
    returns_new = any(result.alias_info is None for result in op._schema.returns)
    return total + (bytes_in(out) if returns_new else 0)


def count_floor(call: Callable[[], object], peaks: Peaks) -> Floor:
    """The floor of everything that runs in one call."""
    with CountFloor(peaks) as counter:
        call()
    floor: Floor = counter.floor
    return floor


def mean_floor(floors: Iterable[tuple[Floor, float]]) -> Floor:
    """The weighted sum of floors whose weights add up to 1."""
    total = Floor()
    for floor, weight in floors:
        total.add(floor, weight)
    return total
