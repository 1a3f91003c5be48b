"""Triton kernels: each has a plain PyTorch counterpart that is the reference and serves the CPU.

They are tested equal. Importing this package imports no Triton; its modules do.
"""

from __future__ import annotations

import importlib.util

from torch import Tensor

_TRITON = importlib.util.find_spec("triton") is not None  # it comes with PyTorch for CUDA


def usable(tensor: Tensor) -> bool:
    """Whether kernels can work on this tensor: it lies on a CUDA device, and Triton is there."""
    return _TRITON and tensor.is_cuda
