"""Checksums of tensors, computed where they are."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

CHECKSUM_WORDS = 2**20  # in a block of `block_sums`


def checksum(tensors: Iterable[Tensor]) -> int:
    """32 bits of what tensors hold; of tensors on a device, little comes to the host."""
    total = 0
    for tensor in tensors:
        content = tensor.reshape(-1).view(torch.uint8)
        total = zlib.crc32(len(content).to_bytes(8, "little"), total)
        digest = content if content.device.type == "cpu" else block_sums(content).cpu()  # the host waits
        total = zlib.crc32(digest.numpy().data, total)
    return total


def block_sums(content: Tensor) -> Tensor:
    """Σ wᵢ xᵢ mod 2⁶⁴ over the words of 32 bits in each block of bytes, with random weights w.

    Blocks that differ have the same sum with a probability of 2⁻³³ at most: multilinear hashing (Carter and
    Wegman 1979).
    """
    weights, found = _weights(content.device), []
    for block in content.split(4 * len(weights)):
        words = F.pad(block, (0, -len(block) % 4)).view(torch.int32)
        found.append((words * weights[: len(words)]).sum())
    return torch.stack(found)


@cache
def _weights(device: torch.device) -> Tensor:
    random = np.random.PCG64(0).random_raw(CHECKSUM_WORDS).view(np.int64)
    return torch.from_numpy(random).to(device)
