"""Checkpoints that outlive a kill at any moment: safetensors files under a manifest of their hashes.

    <root>/step_000000012345/agent.safetensors   one file per group of tensors
                             manifest.json       step, meta, and the size, sha256 and tag of every file

All is written and synced under a hidden name; the rename that follows is the moment at which the checkpoint
exists. A step that is saved again becomes `step_….1`, which outranks `step_…` until it can take its name, so
that a valid one is found at every moment. Nothing here knows about agents.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from voidrl.errors import CheckpointError, ConfigError

FORMAT = 1
MANIFEST = "manifest.json"
BLOCK_BYTES = 8 << 20
_DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64",
    torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64",
}  # fmt: skip
# What this process wrote or hashed, by device, inode, size and time of change. A save must not link a damaged
# file into every later checkpoint, nor read gigabytes again to know that one is sound.
_hashed: dict[tuple[int, int, int, int], str] = {}


@dataclass(frozen=True)
class Group:
    """The tensors of one file, or a function that makes them once they are needed."""

    tensors: Mapping[str, Tensor] | Callable[[], Mapping[str, Tensor]]
    tag: str | None = None
    """A file with the tag it had in the previous checkpoint is linked from there, not written again: equal
    tags must mean equal tensors, also after a resume from an older step."""


class FileEntry(TypedDict):
    """What the manifest says about one file."""

    sha256: str
    bytes: int
    tag: str | None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were all found whole."""

    path: Path
    step: int
    meta: dict[str, Any]
    files: dict[str, FileEntry]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Reads the tensors of one file, on the CPU."""
        if name not in self.files:
            raise CheckpointError(f"checkpoint {self.path} has no {name!r}, only {sorted(self.files)}")
        return read_tensors(self.path / name)


def save(
    root: Path, step: int, files: Mapping[str, Group], meta: Mapping[str, Any], *, keep_last: int
) -> Path:
    """Writes a checkpoint, then deletes those before the last `keep_last` valid ones; returns its folder.

    One process at a time saves into a root. If this fails, the earlier checkpoints are as they were.
    """
    if keep_last < 1:
        raise ConfigError(f"keep_last is {keep_last}; at least 1 checkpoint has to be kept")
    assert 0 <= step < 10**12, step
    assert all(Path(name).name == name != MANIFEST for name in files), list(files)
    meta = json.loads(_dumps(dict(meta), "the meta of a checkpoint"))  # refused before gigabytes are written
    needed_bytes = 0
    tmp = root / f".tmp-{os.getpid()}-{platform.node()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        previous = next(_valid(_find(root)), None)
        tmp.mkdir()
        entries: dict[str, FileEntry] = {}
        for name, group in files.items():
            known = previous.files.get(name) if previous else None
            if previous and known and group.tag is not None and group.tag == known["tag"]:
                _link(previous.path / name, tmp / name)
                entries[name] = known
                continue
            size, blocks = _serialize(group.tensors() if callable(group.tensors) else group.tensors, name)
            needed_bytes += size
            sha256 = _write(tmp / name, blocks)
            _hashed[_identity(tmp / name)] = sha256
            entries[name] = {"sha256": sha256, "bytes": size, "tag": group.tag}
        manifest = {"format": FORMAT, "step": step, "meta": meta, "files": entries}
        _write(tmp / MANIFEST, [_dumps({**manifest, "sha256": seal(manifest)}, MANIFEST, indent=2).encode()])
        _sync(tmp)
        revisions = [(revision, path) for other, revision, path in _find(root) if other == step]
        final = root / f"step_{step:012d}"
        path = tmp.rename(final.with_name(f"{final.name}.{revisions[0][0] + 1}") if revisions else final)
        _sync(root)
    except OSError as e:
        full = e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = f"make room for at least {needed_bytes} bytes" if full else "choose a folder open to writing"
        raise CheckpointError(f"cannot save step {step} in {root}: {e.strerror or e}; {hint}") from e
    finally:
        shutil.rmtree(tmp, ignore_errors=True)  # has moved already where all went well
    with suppress(OSError):  # the new one is durable; what cannot be deleted is tried again at the next save
        for _, replaced in revisions:
            _discard(replaced)
        path = path.rename(final)
        older = [found for found in _find(root) if found[0] < step]
        kept = [final, *(checkpoint.path for checkpoint in islice(_valid(older), keep_last - 1))]
        for _, _, expired in older if len(kept) == keep_last else ():
            if expired.name < kept[-1].name:  # a damaged one among those kept stays, for its owner to look at
                _discard(expired)
        _sync(root)
    return path


def load(path: Path) -> Checkpoint:
    """Opens one checkpoint after reading every file of it against its size and sha256."""
    return _open(path, trust=False)


def latest(root: Path, warn: Callable[[str], None]) -> Checkpoint:
    """The newest valid checkpoint under a root; newer ones that cannot be used are named through `warn`."""
    problems = []
    for _, _, path in _find(root):
        try:
            return load(path)
        except CheckpointError as e:
            problems.append(f"{path.name} ({e})")
            warn(f"skipped {path.name}: {e}")
    raise CheckpointError(f"no valid checkpoint in {root}; found {', '.join(problems) or 'none at all'}")


def list_steps(root: Path) -> list[int]:
    """The steps that have a checkpoint under a root, oldest first, unverified."""
    return sorted({step for step, _, _ in _find(root)})


def discard(root: Path, step: int) -> None:
    """Deletes what a root holds of a step."""
    for other, _, path in _find(root):
        if other == step:
            _discard(path)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileEntry:
    """Writes and syncs one safetensors file. Equal tensors make equal bytes, and so an equal sha256."""
    size, blocks = _serialize(tensors, path.name)
    return {"sha256": _write(path, blocks), "bytes": size, "tag": None}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Reads the tensors of one file, on the CPU."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as e:
        raise CheckpointError(f"{path} cannot be read: {e}") from e


def write_json_atomic(path: Path, obj: Any) -> None:
    """Writes strict JSON such that a reader, or a restart after a kill, sees the old file or the new one."""
    write_text_atomic(path, _dumps(obj, str(path), indent=2) + "\n")


def write_text_atomic(path: Path, text: str) -> None:
    """The same for any text."""
    tmp = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        _write(tmp, [text.encode()])
        tmp.replace(path)
        _sync(path.parent)
    except OSError as e:
        with suppress(OSError):
            tmp.unlink()
        raise CheckpointError(f"cannot write {path}: {e.strerror or e}") from e


def read_json(path: Path, what: str) -> Any:
    """Reads strict JSON; `what` names the file in an error, as in "the config"."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON value")

    try:
        return json.loads(path.read_text("utf-8"), parse_constant=refuse)
    except FileNotFoundError:
        raise CheckpointError(f"{what} is missing: there is no {path}") from None
    except (OSError, ValueError) as e:
        raise CheckpointError(f"{what} cannot be read: {path} is damaged or no JSON ({e})") from e


def _dumps(obj: Any, what: str, indent: int | None = None) -> str:
    try:
        return json.dumps(obj, allow_nan=False, indent=indent)
    except (TypeError, ValueError) as e:
        raise CheckpointError(f"{what} cannot be written as JSON: {e}") from e


def seal(manifest: Mapping[str, Any]) -> str:
    """The manifest's own hash: with a flipped digit in `meta` it would still be JSON."""
    return hashlib.sha256(_dumps(manifest, MANIFEST).encode()).hexdigest()


def _find(root: Path) -> list[tuple[int, int, Path]]:
    """Step, revision and path of all that is named like a checkpoint, newest first."""
    paths = root.iterdir() if root.is_dir() else ()
    matches = ((re.fullmatch(r"step_(\d{12})(?:\.(\d+))?", path.name), path) for path in paths)
    return sorted(((int(m[1]), int(m[2] or 0), path) for m, path in matches if m), reverse=True)


def _valid(found: Iterable[tuple[int, int, Path]]) -> Iterator[Checkpoint]:
    for _, _, path in found:
        with suppress(CheckpointError):
            yield _open(path, trust=True)


def _open(path: Path, *, trust: bool) -> Checkpoint:
    manifest = read_json(path / MANIFEST, "the manifest of the checkpoint")
    fields = manifest if isinstance(manifest, dict) else {}
    version = fields.get("format")
    if isinstance(version, int) and version > FORMAT:  # asked first: a newer format may be sealed otherwise
        raise CheckpointError(f"{path / MANIFEST} has format {version}, newer than {FORMAT}: upgrade voidrl")
    if fields.pop("sha256", None) != seal(fields):
        raise CheckpointError(f"{path / MANIFEST} is damaged: it does not match its own sha256")
    for name, entry in fields["files"].items():
        check_file(path / name, entry, trust=trust)
    return Checkpoint(path, fields["step"], fields["meta"], fields["files"])


def check_file(path: Path, entry: FileEntry, *, trust: bool = False) -> None:
    """Reads a file against its size and sha256; one that is `trust`ed only if this process has not yet."""
    try:
        identity = _identity(path)
        found, expected = identity[2], entry["bytes"]
        if found != expected:
            wrong = "truncated" if found < expected else "too long"
            raise CheckpointError(f"{path} is {wrong}: {expected} bytes expected, {found} found")
        if not trust or _hashed.get(identity) != entry["sha256"]:
            with path.open("rb") as file:
                _hashed[identity] = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror or e}") from e
    if _hashed[identity] != entry["sha256"]:
        raise CheckpointError(f"{path} is damaged: its sha256 is not the one that was written down for it")


def _identity(path: Path) -> tuple[int, int, int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _serialize(tensors: Mapping[str, Tensor], file: str) -> tuple[int, Iterator[Any]]:
    """The size of a safetensors file, and its bytes block by block.

    The library's own writer wants the whole file in host memory and hides a full disk in an error of its own.
    The format is a length, a JSON header and raw bytes: streamed here, and hashed on the way.
    """
    spans = []
    for name, t in tensors.items():
        if t.dtype not in _DTYPES or t.layout != torch.strided or t.is_meta:
            raise CheckpointError(f"{file}: {name!r} cannot be saved as {t.dtype}, {t.layout}, on {t.device}")
        if t.numel():
            reach = 1 + sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))
            spans.append((str(t.device), t.data_ptr(), t.data_ptr() + reach * t.element_size(), name))
    # Tied weights would come back untied. Views of one buffer that do not overlap lose nothing, and pass.
    for (device, _, end, a), (other, start, _, b) in pairwise(sorted(spans)):
        if device == other and start < end:
            raise CheckpointError(f"{file}: {a!r} and {b!r} share memory, lost on loading; save one of them")

    # Wide elements first, as the library does: each tensor is aligned in the mapped file.
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


def _write(path: Path, blocks: Iterable[Any]) -> str:
    """Writes and syncs one file; returns the sha256 of the bytes that were meant, whatever the disk made."""
    sha256 = hashlib.sha256()
    with path.open("wb") as file:
        for block in blocks:
            sha256.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return sha256.hexdigest()


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # no links on this file system, or too many to this file
        shutil.copyfile(source, target)
        _sync(target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(path: Path) -> None:
    """Deletes a checkpoint; renamed first, so that half of one is never taken for a whole one."""
    shutil.rmtree(path.rename(path.with_name(f".trash-{path.name}")), ignore_errors=True)


def _sweep(root: Path) -> None:
    """Deletes what killed processes left behind."""
    for path in (*root.glob(".trash-*"), *filter(_is_abandoned, root.glob(".tmp-*"))):
        shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(tmp: Path) -> bool:
    if match := re.fullmatch(rf"\.tmp-(\d+)-{re.escape(platform.node())}", tmp.name):
        if int(match[1]) == os.getpid():  # in containers, all that ever saved here may have been number 7
            return True
        try:
            os.kill(int(match[1]), 0)  # signal 0 only asks whether the process exists
        except OSError as e:
            return e.errno == errno.ESRCH
    # Another machine's process, or a number that was given away again: alive while it makes files.
    return time.time() - tmp.stat().st_mtime > 3600
