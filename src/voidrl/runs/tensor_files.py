"""Files of tensors, and files that are written as a whole: synced, with the sha256 of the intended bytes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from voidrl.errors import CheckpointError

BLOCK_BYTES = 8 << 20
_DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
    torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64",
}  # fmt: skip


class FileEntry(TypedDict):
    """Size, hash and tag of a file, as a manifest has them."""

    sha256: str
    bytes: int
    tag: str | None


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileEntry:
    """Write and sync one safetensors file. Equal tensors give equal bytes and an equal sha256."""
    size, blocks = serialize(tensors, path.name)
    return {"sha256": write_synced(path, blocks), "bytes": size, "tag": None}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of one file onto the CPU."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as e:
        raise CheckpointError(f"{path} cannot be read: {e}") from e


class TensorHeader(NamedTuple):
    """Shape and type of a tensor in a file."""

    shape: tuple[int, ...]
    dtype: str
    """Its name in safetensors, such as F32."""

    @classmethod
    def of(cls, tensor: Tensor) -> TensorHeader:
        """The header for a tensor, which may be on the meta device."""
        return cls(tuple(tensor.shape), _DTYPES[tensor.dtype])

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


def read_headers(path: Path) -> dict[str, TensorHeader]:
    """Read names, shapes and types of the tensors in a file, and none of their values."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: TensorHeader(tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except (OSError, SafetensorError) as e:
        raise CheckpointError(f"{path} cannot be read: {e}") from e


def serialize(tensors: Mapping[str, Tensor], file: str) -> tuple[int, Iterator[Any]]:
    """The size of a safetensors file, and its bytes block by block.

    `safetensors.torch.save_file` would lose three things: it copies all CUDA tensors of a file to the host at
    once (a replay has gigabytes), it reports a full disk as text without an errno, and its file would have to
    be read back to hash it, which misses damage on the way to the disk. The format is simple (a
    length, a JSON header, raw bytes), so we stream it and hash the bytes before they are written.
    """
    spans = []
    for name, t in tensors.items():
        if t.dtype not in _DTYPES or t.layout != torch.strided or t.is_meta:
            raise CheckpointError(f"{file}: {name!r} cannot be saved as {t.dtype}, {t.layout}, on {t.device}")
        if t.numel():
            reach = 1 + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))
            spans.append((str(t.device), t.data_ptr(), t.data_ptr() + reach * t.element_size(), name))
    # Tied weights would come back untied. Views of one buffer that do not overlap are fine.
    for (device, _, end, a), (other, start, _, b) in pairwise(sorted(spans)):
        if device == other and start < end:
            raise CheckpointError(
                f"{file}: {a!r} and {b!r} share memory, which loading would undo: save only one of them"
            )

    # Widest elements first, as the library does, so that each tensor is aligned in the mapped file.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, end = {}, 0
    for name, t in ordered:
        start, end = end, end + t.numel() * t.element_size()
        header[name] = {"dtype": _DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def blocks() -> Iterator[Any]:
        yield len(text).to_bytes(8, "little") + text
        for _, t in ordered:
            if not t.numel():  # from numpy it may have a stride of 0, which cannot be viewed as bytes
                continue
            flat = t.detach().contiguous().reshape(-1).view(torch.uint8)  # (bytes,), still on its device
            for block in flat.split(BLOCK_BYTES):
                yield block.cpu().numpy()  # host synchronization, one block at a time

    return 8 + len(text) + end, blocks()


def write_synced(path: Path, blocks: Iterable[Any]) -> str:
    """Write and sync one file; return the sha256 of the intended bytes, whatever the disk stores."""
    sha256 = hashlib.sha256()
    with path.open("wb") as file:
        for block in blocks:
            sha256.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return sha256.hexdigest()
