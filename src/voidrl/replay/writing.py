"""Writes to the tensors of a replay: several at once, to main memory or to a device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from voidrl.kernels.copies import Mark

Entries = np.ndarray | Tensor
Write = tuple[str, int, Entries]
"""Name of the stored tensor, index of the first entry to write, and the entries.

A tensor on the replay's own device is copied there, without a pass through the host.
"""


def write_directly(stored: dict[str, Tensor], writes: list[Write]) -> None:
    """Writes to tensors in main memory."""
    for name, first, entries in writes:
        if isinstance(entries, Tensor):
            stored[name][first : first + len(entries)].copy_(entries)  # from any device, in any layout
        else:
            stored[name].numpy()[first : first + len(entries)] = entries


class Upload:
    """Writes to tensors on a device: packed in pinned memory, one copy to the device, one kernel there.

    A copy of each would be a dozen launches per step of the environments.
    """

    def __init__(self, stored: dict[str, Tensor]) -> None:
        self._tensors = stored
        self._bytes = {name: tensor.view(-1).view(torch.uint8) for name, tensor in stored.items()}
        self._entry_bytes = {name: tensor[0].nbytes for name, tensor in stored.items()}
        self._dtypes = {name: tensor[:0].cpu().numpy().dtype for name, tensor in stored.items()}
        self._device = stored["positions"].device
        self._packed = self._arrived = torch.empty(0, dtype=torch.uint8)
        self._copied = Mark(self._device)

    def __call__(self, writes: list[Write]) -> None:
        """Copy the entries, so that the caller may change them, and write them after all earlier launches."""
        targets, contents, length = [], [], 0
        for name, first, entries in writes:
            if isinstance(entries, Tensor):
                self._tensors[name][first : first + len(entries)].copy_(entries)
            elif len(entries):
                content = np.ascontiguousarray(entries, self._dtypes[name]).reshape(-1).view(np.uint8)
                begin = first * self._entry_bytes[name]
                targets.append(self._bytes[name][begin : begin + len(content)])
                contents.append((length, content))
                length += -(-len(content) // 16) * 16  # aligned for vectorized copies
        self._copied.wait()  # host synchronization: the last copy has usually already finished
        if len(self._packed) < length:
            self._packed = torch.empty(length, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
            self._arrived = torch.empty(length, dtype=torch.uint8, device=self._device)
        packed = self._packed.numpy()
        for begin, content in contents:
            packed[begin : begin + len(content)] = content
        self._arrived[:length].copy_(self._packed[:length], non_blocking=True)
        self._copied.set()
        sources = [self._arrived[begin : begin + len(content)] for begin, content in contents]
        torch._foreach_copy_(targets, sources)
