"""What a device can do at most: operations and bytes per second, from its data sheet or measured."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from voidrl.bench.timing import synchronize

TERA = 1e12


@dataclass(frozen=True)
class Peaks:
    """Operations (a multiply-add is two) and bytes per second."""

    bf16: float
    """Dense products on tensor cores."""
    tf32: float
    """The same where fp32 may be rounded for them."""
    fp32: float
    bandwidth: float
    measured: bool = False
    """On this machine, by one large product and one large copy, for want of a data sheet."""

    def describe(self) -> str:
        """One line for the head of a table."""
        source = "peak measured" if self.measured else "peak of the data sheet"
        if self.fp32 < TERA:
            rates = f"{self.fp32 / 1e9:.0f} GFLOP/s fp32, {self.bandwidth / 1e9:.1f} GB/s"
        else:
            rates = f"{self.bf16 / TERA:.0f} TFLOP/s bf16, {self.fp32 / TERA:.1f} fp32"
            rates += f", {self.bandwidth / TERA:.2f} TB/s"
        return f"{source}: {rates}"


DATA_SHEETS = {  # by the full name: the PCIe and mobile versions of the same chips are slower
    "NVIDIA H200": Peaks(989 * TERA, 494 * TERA, 67 * TERA, 4.8 * TERA),
    "NVIDIA H100 80GB HBM3": Peaks(989 * TERA, 494 * TERA, 67 * TERA, 3.35 * TERA),
    "NVIDIA A100-SXM4-80GB": Peaks(312 * TERA, 156 * TERA, 19.5 * TERA, 2.0 * TERA),
    "NVIDIA GeForce RTX 4090": Peaks(165 * TERA, 82.6 * TERA, 82.6 * TERA, 1.0 * TERA),
}


def find_peaks(device: torch.device) -> Peaks:
    """By the name of the device; what is not known is measured in less than a second."""
    if device.type == "cuda" and torch.cuda.get_device_name(device) in DATA_SHEETS:
        return DATA_SHEETS[torch.cuda.get_device_name(device)]
    bf16, fp32 = (_product_rate(device, dtype) for dtype in (torch.bfloat16, torch.float32))
    tf32 = bf16 / 2 if device.type == "cuda" else fp32
    return Peaks(bf16, tf32, fp32, _copy_rate(device), measured=True)


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    side = 4096 if device.type == "cuda" else 768
    a = torch.ones(side, side, dtype=dtype, device=device)
    return 2 * side**3 / _best(lambda: a @ a, device)


def _copy_rate(device: torch.device) -> float:
    source = torch.ones(2**28 if device.type == "cuda" else 2**25, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _best(lambda: target.copy_(source), device)


def _best(call: object, device: torch.device) -> float:
    """Seconds of the fastest of some calls, the first left out."""
    assert callable(call)
    times = []
    for _ in range(6):
        synchronize(device)
        began = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - began)
    return min(times[1:])
