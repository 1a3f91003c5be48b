"""Copies between device and host that the host does not wait for at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Mark:
    """A place among the launches on a device, for which the host can wait; elsewhere it does nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def set(self) -> None:
        """Mark the end of what has been launched so far."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Wait for what was launched before the mark; host synchronization."""
        if self._event is not None:
            self._event.synchronize()


class HostCopy:
    """A copy of a tensor on its way to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self.on_host = not tensor.is_cuda
        """Whether the tensor was on the host all along."""
        self._tensor, self._arrived = tensor, Mark(tensor.device)
        if tensor.is_cuda:
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._arrived.set()

    def numpy(self) -> np.ndarray:
        """Wait for the copy, not for what was launched after it."""
        self._arrived.wait()
        return self._tensor.numpy()
