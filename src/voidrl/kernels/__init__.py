"""Triton kernels: each has a plain PyTorch counterpart that is the reference and serves the CPU.

They are tested equal. Importing this package imports no Triton; its modules do.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

_TRITON = importlib.util.find_spec("triton") is not None  # it comes with PyTorch for CUDA


def usable(tensor: Tensor) -> bool:
    """Whether kernels can work on this tensor: it lies on a CUDA device, and Triton is there."""
    return _TRITON and tensor.is_cuda


def check(device: torch.device, say: Callable[[str], None]) -> None:
    """Try the smallest kernel: without a C compiler, or on an old GPU, Triton is there and does not work."""
    global _TRITON
    if not _TRITON:
        return
    try:
        from voidrl.kernels.images import images

        pixel = torch.zeros(1, 1, 1, 1, dtype=torch.uint8, device=device)
        images(pixel, None, None, None, 0.0, 1, 1, torch.float32)
    except Exception as error:
        _TRITON = False
        say(f"kernels: plain PyTorch, which is slower, since Triton does not work here ({error!r})")
