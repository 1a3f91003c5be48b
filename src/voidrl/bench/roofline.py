"""The counted floor of an update: no implementation of the same arithmetic on this device can be faster.

One eager update is run under a mode that sees every operator. Products and convolutions count with their
operations and with the bytes of what they read and write, optimizers and moving averages with their bytes,
our own kernels with both. Everything else counts nothing, since a perfect compiler would fuse it into these.
The time of each is the longer of operations / peak rate and bytes / bandwidth, and they run one by one.

It is a floor of main memory: what stays in a GPU's cache from one operator to the next is read faster, so a
small update may come out below it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from voidrl.bench.op_costs import OWN_OPS, bytes_in, knn_flop, same, stored_bytes, tensors_in
from voidrl.bench.peaks import Peaks

HALF = (torch.bfloat16, torch.float16)
MEMORY_OPS = ("_fused_adam", "_foreach_lerp", "_foreach_copy", "lerp")
READ_ONLY = ("grads",)  # _fused_adam_ writes to gradients only where it unscales them
VECTOR_PRODUCTS = ("mv", "addmv", "dot", "vdot", "addr")


@dataclass
class Floor:
    """Totals of what was counted."""

    flop: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by class of operator."""
    ops: Counter[str] = field(default_factory=Counter)
    """How often each operator was counted."""

    def add(self, name: str, part: str, flop: float, size: float, seconds: float) -> None:
        """One operator."""
        self.flop, self.bytes, self.seconds = self.flop + flop, self.bytes + size, self.seconds + seconds
        self.parts[part] += seconds
        self.ops[name] += 1

    def share(self, weight: float) -> Floor:
        """This one times a weight."""
        parts = {part: seconds * weight for part, seconds in self.parts.items()}
        return Floor(self.flop * weight, self.bytes * weight, self.seconds * weight, parts, self.ops)

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

    def __torch_dispatch__(self, op: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = op(*args, **kwargs)
        self._count(op, args, kwargs, out)
        return out

    def _count(self, op: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        name = op._schema.name.partition("::")[2]
        if op.namespace == "voidrl" and name in OWN_OPS:
            names = [argument.name for argument in op._schema.arguments]
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            for piece in OWN_OPS[name](given, out):
                rate = self.peaks.bf16 if piece.in_bf16 else self.peaks.fp32
                self._add(name, piece.part, piece.flop, piece.bytes, rate)
            return
        part, flop, rate = "products", 0.0, self.peaks.fp32
        if op.overloadpacket in flop_registry:
            part = "convolutions" if "conv" in name else "products"
            flop = float(flop_registry[op.overloadpacket](*args, **kwargs, out_val=out))
            rate = self._product_rate(out, convolution=part == "convolutions")
        elif name in VECTOR_PRODUCTS and op.namespace == "aten":
            flop = 2.0 * max(tensor.numel() for tensor in tensors_in(args))
        elif name == "_cdist_forward":
            (n, d), m = args[0].shape[-2:], None if same(*args[:2]) else args[1].shape[-2]
            part, flop = "neighbors", knn_flop(n, d, m)
        elif name.startswith(MEMORY_OPS):
            part = "optimizer"
        else:
            return
        self._add(name, part, flop, traffic(op, args, kwargs, out), rate)

    def _add(self, name: str, part: str, flop: float, size: float, rate: float) -> None:
        self.floor.add(name, part, flop, size, max(flop / rate, size / self.peaks.bandwidth))

    def _product_rate(self, out: Any, *, convolution: bool) -> float:
        dtype = next(iter(tensors_in(out))).dtype
        if dtype in HALF:
            return self.peaks.bf16
        rounded = torch.backends.cudnn.allow_tf32 if convolution else torch.backends.cuda.matmul.allow_tf32
        return self.peaks.tf32 if rounded else self.peaks.fp32


def traffic(op: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> float:
    """Bytes of everything read, and of everything written: outputs and what is changed in place."""
    total = 0.0
    for i, argument in enumerate(op._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        size = bytes_in(value)
        changed = argument.alias_info is not None and argument.alias_info.is_write
        total += size * (2 if changed and argument.name not in READ_ONLY else 1)
    if op._schema.name == "aten::convolution_backward":
        wanted = args[-1]  # the input's gradient needs the weight, and vice versa
        total -= 0 if wanted[0] else stored_bytes(args[2])
        total -= 0 if wanted[1] else stored_bytes(args[1])
    fresh = [result for result in op._schema.returns if result.alias_info is None]
    return total + (bytes_in(out) if fresh else 0)


def count_floor(call: Callable[[], object], peaks: Peaks) -> Floor:
    """The floor of what runs in one call."""
    counter = CountFloor(peaks)
    with counter:
        call()
    return counter.floor


def mean_floor(floors: Iterable[tuple[Floor, float]]) -> Floor:
    """The weighted sum of floors whose weights add up to 1."""
    total = Floor()
    for floor, weight in floors:
        scaled = floor.share(weight)
        total.flop, total.bytes = total.flop + scaled.flop, total.bytes + scaled.bytes
        total.seconds += scaled.seconds
        for part, seconds in scaled.parts.items():
            total.parts[part] += seconds
        total.ops += scaled.ops
    return total
