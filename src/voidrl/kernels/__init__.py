"""Triton kernels. Each has a plain PyTorch counterpart for the CPU, the reference in tests.

Importing this package does not import Triton; its modules do.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable

import torch
from torch import Tensor

_TRITON = importlib.util.find_spec("triton") is not None  # it comes with PyTorch for CUDA


def usable(tensor: Tensor) -> bool:
    """Whether the kernels work on this tensor: it is on a CUDA device, and Triton works."""
    return _TRITON and tensor.is_cuda


def check(device: torch.device, say: Callable[[str], None]) -> None:
    """Try two tiny kernels: without a C compiler or on an old GPU, Triton is installed but does not work."""
    global _TRITON
    if not _TRITON:
        return
    try:
        from voidrl.kernels.accumulate import accumulate
        from voidrl.kernels.images import images

        pixel = torch.zeros(1, 1, 1, 1, dtype=torch.uint8, device=device)
        images(pixel, None, None, None, 0.0, 1, 1, torch.float32)
        numbers = [[2.0, math.inf], [1, 1], [3, 3]]
        row, sums, finite = torch.tensor(numbers, dtype=torch.float64, device=device)
        accumulate(row, sums, finite)
        if [*sums.tolist(), *finite.tolist()] != [3.0, math.inf, 4.0, 3.0]:  # host synchronization, once
            raise RuntimeError(f"sums of {sums.tolist()} and counts of {finite.tolist()}")
    except Exception as error:
        _TRITON = False
        say(f"kernels: plain PyTorch, which is slower, because Triton does not work here ({error!r})")
