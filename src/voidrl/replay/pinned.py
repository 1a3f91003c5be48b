"""Main memory that kernels on a CUDA device read and write directly, over PCIe.

Pinned pages have the same address on the host and on the device (unified addressing): the memory can be
wrapped as a tensor of either. The device's one takes part in CUDA graphs like any other.
"""

from __future__ import annotations

import math
import mmap
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voidrl.errors import ReplayMemoryError
from voidrl.system.units import GIB

PORTABLE, MAPPED = 1, 2  # cudaHostRegisterPortable, cudaHostRegisterMapped


def pinned_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Zeros in main memory, as a tensor of the host and as one of the CUDA `device`.

    The host's accesses are not ordered with the device's: synchronize before them. torch's own pinned memory
    would be rounded up to a power of two.
    """
    size = math.prod(shape) * dtype.itemsize
    # Zeros, on pages of their own.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A fork would copy what is pinned, and either side could then lose what the device writes.
    memory.madvise(mmap.MADV_DONTFORK)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)  # fewer pages are pinned sooner
    array = np.frombuffer(memory, str(dtype).removeprefix("torch.")).reshape(shape)
    with torch.cuda.device(device):  # whose tensor it will be
        status = int(torch.cuda.cudart().cudaHostRegister(_address(array), array.nbytes, PORTABLE | MAPPED))
    if status:
        raise ReplayMemoryError(
            f"{array.nbytes / GIB:.2f} GiB of main memory could not be pinned for {device} (CUDA error "
            f"{status}): lower replay.capacity_steps"
        )
    return torch.from_numpy(array), torch.as_tensor(_Registered(array, device), device=device)


class _Registered:
    """An array that stays pinned while a tensor of the device refers to it."""

    def __init__(self, array: np.ndarray, device: torch.device) -> None:
        self._array = array
        # Not at the end of the process, when the driver unpins everything itself.
        weakref.finalize(self, _unregister, _address(array), device).atexit = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory as torch reads it; the tensor keeps this object."""
        array = self._array
        data = _address(array), False  # not read-only
        return {"shape": array.shape, "typestr": array.dtype.str, "data": data, "version": 3}


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _unregister(address: int, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # what was launched may still read it
    torch.cuda.cudart().cudaHostUnregister(address)
