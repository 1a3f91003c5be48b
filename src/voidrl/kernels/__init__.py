"""Triton kernels. Each has a plain PyTorch counterpart for the CPU, the reference in tests.

Importing this package does not import Triton; its modules do.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

_TRITON = importlib.util.find_spec("triton") is not None  # it comes with PyTorch for CUDA


def usable(tensor: Tensor) -> bool:
    """Whether the kernels work on this tensor: it is on a CUDA device, and Triton works."""
    return _TRITON and tensor.is_cuda


def check(device: torch.device, say: Callable[[str], None]) -> None:
    """Try a tiny kernel: without a C compiler or on an old GPU, Triton is installed but does not work."""
    global _TRITON
    if not _TRITON:
        return
    try:
        from voidrl.kernels.images import images

        pixel = torch.zeros(1, 1, 1, 1, dtype=torch.uint8, device=device)
        made = images(pixel, None, None, None, 0.0, 1, 1, torch.float32)
        if made.item() != -0.5:  # host synchronization, once
            raise RuntimeError(f"a black pixel became {made.item()}")
    except Exception as error:
        _TRITON = False
        say(f"kernels: plain PyTorch, which is slower, because Triton does not work here ({error!r})")
