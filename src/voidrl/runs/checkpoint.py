"""Checkpoints that survive a kill at any moment: safetensors files and a manifest with their hashes.

    <root>/step_000000012345/agent.safetensors   one file per group of tensors
                             manifest.json       format, version, step, meta; size, sha256 and tag of files

Everything is written and synced under a hidden name; the final rename makes the checkpoint visible. A step
that is saved again becomes `step_….1`, which outranks `step_…` until it can take its name, so a valid
checkpoint exists at every moment. This module knows nothing about agents.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from voidrl import __version__
from voidrl.errors import CheckpointError, ConfigError, shown
from voidrl.runs.tensor_files import FileEntry, read_tensors, serialize, write_synced
from voidrl.system.files import MAX_JSON_BYTES, parse_json, read_text
from voidrl.system.machine import free_disk
from voidrl.system.units import human_bytes

T = TypeVar("T")
FORMAT = 5
MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"  # prefix of files that are being written
READ_TRIES = 5  # a run that trains deletes old checkpoints while others read them
BLOCK_ON_DISK = 4096  # at most, beyond a file's content
# Hashes of files that this process wrote or read, by device, inode, size and modification time. With them a
# save neither links a damaged file into later checkpoints nor reads gigabytes again to rule that out.
_hashed: dict[tuple[int, int, int, int], str] = {}


@dataclass(frozen=True)
class Group:
    """The tensors of one file, or a function that returns them, called only if the file is written."""

    tensors: Mapping[str, Tensor] | Callable[[], Mapping[str, Tensor]]
    tag: str | None = None
    """A file whose tag is unchanged since the previous checkpoint is linked, not rewritten. Equal tags must
    mean equal tensors, even after resuming from an older step."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files have all been verified."""

    path: Path
    step: int
    meta: dict[str, Any]
    files: dict[str, FileEntry]

    def tensors(self, name: str, *required: str) -> dict[str, Tensor]:
        """Read the tensors of one file onto the CPU, among which the required ones must be."""
        if name not in self.files:
            raise CheckpointError(f"checkpoint {self.path} has no {name!r}, only {sorted(self.files)}")
        found = read_tensors(self.path / name)
        for each in required:
            if each not in found:
                raise CheckpointError(
                    f"{self.path / name} is damaged, or not voidrl's: it has no tensor {each!r}"
                )
        return found

    def count(self, name: str) -> int:
        """A whole number in the meta, which must be there."""
        return require_field(self.path / MANIFEST, self.meta, name, int)


def save(
    root: Path,
    step: int,
    files: Mapping[str, Group],
    meta: Mapping[str, Any],
    *,
    keep_last: int,
) -> Path:
    """Write a checkpoint, delete all but the last `keep_last` valid ones, and return its folder.

    Only one process at a time may save into a root, which the lock of its run ensures. If saving fails,
    earlier checkpoints are unchanged.
    """
    if keep_last < 1:
        raise ConfigError(f"keep_last = {keep_last} cannot be used: expected 1 or more")
    assert 0 <= step < 10**12, step
    assert all(Path(name).name == name != MANIFEST for name in files), list(files)
    plain: dict[str, Any] = json.loads(_dumps(dict(meta), "the meta of a checkpoint"))  # before gigabytes
    try:
        root.mkdir(parents=True, exist_ok=True)
        path = _write_checkpoint(root, step, files, plain)
        return _expire(path, step, keep_last)
    except OSError as e:
        raise CheckpointError(
            f"cannot save step {step} in {root}: {e.strerror or e}; choose a writable folder"
        ) from e


def _write_checkpoint(root: Path, step: int, files: Mapping[str, Group], meta: dict[str, Any]) -> Path:
    """Write all files under a hidden name and rename the whole, after comparing its size with the disk."""
    for leftover in (*root.glob(".trash-*"), *root.glob(f"{TEMPORARY}*")):
        shutil.rmtree(leftover, ignore_errors=True)
    previous = next(intact(root), None)
    known = {} if previous is None else previous.files
    same = {
        name
        for name, group in files.items()
        if group.tag is not None and name in known and group.tag == known[name]["tag"]
    }
    serialized = {
        name: serialize(group.tensors() if callable(group.tensors) else group.tensors, name)
        for name, group in files.items()
        if name not in same
    }
    needed = sum(size for size, _ in serialized.values()) + BLOCK_ON_DISK * (len(files) + 2)
    free = free_disk(root)
    if free is not None and free < needed:
        raise _disk_full(root, step, needed, free)
    tmp = root / f"{TEMPORARY}{os.getpid()}-{platform.node()}"
    try:
        tmp.mkdir()
        entries: dict[str, FileEntry] = {}
        for name, group in files.items():
            if previous is not None and name in same:
                _link(previous.path / name, tmp / name)
                entries[name] = known[name]
                continue
            size, blocks = serialized.pop(name)
            sha256 = write_synced(tmp / name, blocks)
            _hashed[_identity(tmp / name)] = sha256
            entries[name] = {"sha256": sha256, "bytes": size, "tag": group.tag}
        manifest = {"format": FORMAT, "voidrl": __version__, "step": step, "meta": meta, "files": entries}
        write_synced(
            tmp / MANIFEST, [_dumps({**manifest, "sha256": seal(manifest)}, MANIFEST, indent=2).encode()]
        )
        _sync(tmp)
        revisions = [revision for other, revision, _ in _find(root) if other == step]
        name = f"step_{step:012d}"
        path = tmp.rename(root / (f"{name}.{revisions[0] + 1}" if revisions else name))
        _sync(root)
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(root, step, needed, free, str(e.strerror)) from e
        raise
    finally:
        shutil.rmtree(tmp, ignore_errors=True)  # already renamed if the save succeeded
    return path


def _disk_full(
    root: Path, step: int, needed: int, free: int | None, why: str = "too little disk space"
) -> CheckpointError:
    there = "" if free is None else f" and {human_bytes(free)} were free"
    missing = max(needed - (free or 0), BLOCK_ON_DISK) * 1.01  # still enough if it is rounded down
    return CheckpointError(
        f"cannot save step {step} in {root}: {why}; the whole checkpoint needs {human_bytes(needed)}{there}: "
        f"free at least {human_bytes(missing)}"
    )


def _expire(path: Path, step: int, keep_last: int) -> Path:
    """Delete the checkpoints that a new one replaces and any beyond `keep_last`; returns its final name."""
    root, final = path.parent, path.with_name(f"step_{step:012d}")
    with suppress(OSError):  # the new one is durable; the next save tries again to delete old ones
        for other, _, replaced in _find(root):
            if other == step and replaced != path:
                _discard(replaced)
        path = path.rename(final)
        older = [found for found in _find(root) if found[0] < step]
        kept = [final, *(checkpoint.path for checkpoint in islice(_valid(older), keep_last - 1))]
        for _, _, expired in older if len(kept) == keep_last else ():
            if expired.name < kept[-1].name:  # damaged ones among those kept stay, for inspection
                _discard(expired)
        _sync(root)
    return path


def load(path: Path) -> Checkpoint:
    """Open one checkpoint after checking the size and sha256 of each of its files."""
    return _open(path, trust=False)


def load_step(root: Path, step: int) -> Checkpoint:
    """Open the checkpoint of a step as `load` does."""
    for other, _, path in _find(root):
        if other == step:
            return load(path)
    raise CheckpointError(f"there is no checkpoint of step {step} in {root}")


def latest(
    root: Path, warn: Callable[[str], None], check: Callable[[Checkpoint], None] = lambda found: None
) -> Checkpoint:
    """The newest valid checkpoint under a root; `warn` is called for newer ones that are damaged."""
    return read_latest(root, warn, lambda found: found, check)


def read_latest(
    root: Path,
    warn: Callable[[str], None],
    read: Callable[[Checkpoint], T],
    check: Callable[[Checkpoint], None] = lambda found: None,
) -> T:
    """Read something from the newest valid checkpoint under a root, with `warn` for newer, damaged ones.

    One for which `check` raises `CheckpointError` is damaged too. If a run that trains deletes the checkpoint
    meanwhile, its newest is read instead.
    """
    problems: dict[Path, str] = {}
    for path in _newest_first(root, problems):
        opened = None
        try:
            found = load(path)
            check(found)
            opened = found
            return read(opened)
        except CheckpointError as e:
            if not path.exists():
                continue
            if opened is not None:
                raise  # it is intact, and does not fit its reader
            problems[path] = f"{path.name} ({e})"
            warn(f"skipped {path.name}: {e}")
    raise CheckpointError(
        f"no valid checkpoint in {root}; found {', '.join(problems.values()) or 'none at all'}"
    )


def _newest_first(root: Path, problems: Mapping[Path, str]) -> Iterator[Path]:
    """Checkpoints without known problems; it starts again once one has been deleted, for newer ones."""
    for _ in range(READ_TRIES):
        for _, _, path in _find(root):
            if path not in problems:
                yield path
                if not path.exists():
                    break
        else:
            return


def list_steps(root: Path) -> list[int]:
    """Return the steps with a checkpoint under a root, oldest first, without verifying them."""
    return sorted({step for step, _, _ in _find(root)})


def intact(root: Path) -> Iterator[Checkpoint]:
    """The valid checkpoints under a root, newest first; files that this process has hashed are trusted."""
    return _valid(_find(root))


def bytes_on_disk(root: Path) -> int:
    """Return the size of all checkpoints under a root, files that they share counted once.

    Those that a run deletes meanwhile do not count.
    """
    sizes: dict[tuple[int, int], int] = {}
    for _, _, path in _find(root):
        for file in path.glob("*.safetensors"):
            with suppress(FileNotFoundError):
                stat = file.stat()
                sizes[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(sizes.values())


def discard(root: Path, step: int) -> None:
    """Delete the checkpoint of a step."""
    for other, _, path in _find(root):
        if other == step:
            _discard(path)


def write_json_atomic(path: Path, obj: Any) -> None:
    """Write strict JSON; readers, also after a kill, see either the old file or the new one."""
    write_text_atomic(path, _dumps(obj, str(path), indent=2) + "\n")


def write_text_atomic(path: Path, text: str) -> None:
    """Write text as `write_json_atomic` writes JSON."""
    tmp = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        write_synced(tmp, [text.encode()])
        tmp.replace(path)
        _sync(path.parent)
    except OSError as e:
        with suppress(OSError):
            tmp.unlink()
        raise CheckpointError(f"cannot write {path}: {e.strerror or e}") from e


def remove_leftovers(path: Path) -> None:
    """Delete temporary files of `write_text_atomic` for a path that no other process writes now."""
    with suppress(OSError):
        for leftover in path.parent.glob(f"{TEMPORARY}*-{glob.escape(path.name)}"):
            leftover.unlink()


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read the object of a strict JSON file; `what` names the file in errors, as in "the config"."""
    try:
        data = parse_json(read_text(path, MAX_JSON_BYTES))
        if not isinstance(data, dict):
            raise ValueError(f"it holds a {type(data).__name__}, not an object")
    except FileNotFoundError:
        raise CheckpointError(f"{what} is missing: there is no {path}") from None
    except (OSError, ValueError) as e:
        raise CheckpointError(f"{what} cannot be read: {path} is damaged or not JSON ({e})") from e
    return data


def _dumps(obj: Any, what: str, indent: int | None = None) -> str:
    try:
        return json.dumps(obj, allow_nan=False, indent=indent)
    except (TypeError, ValueError, RecursionError) as e:
        raise CheckpointError(f"{what} cannot be written as JSON: {e}") from e


def seal(manifest: Mapping[str, Any]) -> str:
    """Return the hash of a manifest, which would still be valid JSON after a flipped digit in `meta`."""
    return hashlib.sha256(_dumps(manifest, MANIFEST).encode()).hexdigest()


def _find(root: Path) -> list[tuple[int, int, Path]]:
    """Return step, revision and path of everything named like a checkpoint, newest first."""
    paths = root.iterdir() if root.is_dir() else ()
    matches = ((re.fullmatch(r"step_(\d{12})(?:\.(\d+))?", path.name), path) for path in paths)
    return sorted(((int(m[1]), int(m[2] or 0), path) for m, path in matches if m), reverse=True)


def _valid(found: Iterable[tuple[int, int, Path]]) -> Iterator[Checkpoint]:
    for _, _, path in found:
        with suppress(CheckpointError):
            yield _open(path, trust=True)


def _open(path: Path, *, trust: bool) -> Checkpoint:
    file = path / MANIFEST
    fields = read_json(file, "the manifest of the checkpoint")
    require_format(file, fields, FORMAT)  # before the hash, which other formats may compute differently
    if fields.pop("sha256", None) != seal(fields):
        raise CheckpointError(f"{file} is damaged: it does not match its own sha256")
    step = require_field(file, fields, "step", int)
    meta = require_field(file, fields, "meta", dict)
    files: dict[str, FileEntry] = {}
    for name in require_field(file, fields, "files", dict):
        if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):  # such as ../../other
            raise CheckpointError(f"{file} names the file {shown(name)}: expected one next to it")
        files[name] = file_entry(file, fields["files"], name)
        check_file(path / name, files[name], trust=trust)
    return Checkpoint(path, step, meta, files)


def require_field(path: Path, fields: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """A field of a JSON file that must be there and of this type."""
    value = fields.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        expected = {int: "a whole number", dict: "an object", str: "a text"}[kind]
        raise CheckpointError(
            f"{path} is damaged, or not voidrl's: {_given(fields, name)}, expected {expected}"
        )
    return value


def _given(fields: Mapping[str, Any], name: str) -> str:
    return f"its {name} is {shown(fields[name])}" if name in fields else f"it has no {name!r}"


def file_entry(path: Path, fields: Mapping[str, Any], name: str) -> FileEntry:
    """The size, sha256 and tag of a file, recorded under `name` in the JSON file at `path`."""
    entry = require_field(path, fields, name, dict)
    tag = entry.get("tag")
    return {
        "sha256": require_field(path, entry, "sha256", str),
        "bytes": require_field(path, entry, "bytes", int),
        "tag": tag if isinstance(tag, str) else None,
    }


def require_format(path: Path, fields: Mapping[str, Any], expected: int) -> None:
    """Refuse a file of an older or newer format, naming the version of voidrl that wrote it."""
    found = fields.get("format")
    if type(found) is not int or found < 1:
        raise CheckpointError(
            f"{path} is damaged, or not voidrl's: {_given(fields, 'format')}, expected {expected}"
        )
    if found != expected:
        writer = fields.get("voidrl")
        writer = writer if isinstance(writer, str) and len(writer) < 40 else "of another version"
        remedy = "upgrade voidrl" if found > expected else f"use voidrl {writer}, or train again"
        raise CheckpointError(
            f"{path} was written by voidrl {writer} in format {found} and cannot be read by voidrl "
            f"{__version__}, which reads format {expected}: {remedy}"
        )


def require_readable(folder: Path) -> None:
    """Refuse a folder whose newest checkpoint has another format, before anything else of it is parsed."""
    for step in list_steps(folder)[-1:]:
        path = folder / f"step_{step:012d}" / MANIFEST
        with suppress(OSError, ValueError):
            fields = parse_json(read_text(path, MAX_JSON_BYTES))
            if isinstance(fields, dict) and isinstance(fields.get("format"), int):
                require_format(path, fields, FORMAT)


def check_file(path: Path, entry: FileEntry, *, trust: bool = False) -> None:
    """Check a file's size and sha256; with `trust`, a file that this process has hashed is not read again."""
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
        raise CheckpointError(f"{path} is damaged: its sha256 is not the one in the manifest")


def _identity(path: Path) -> tuple[int, int, int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # the file system has no hard links, or too many to this file
        shutil.copyfile(source, target)
        _sync(target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(path: Path) -> None:
    """Delete a checkpoint, renamed first so that a half-deleted one is never mistaken for a valid one."""
    shutil.rmtree(path.rename(path.with_name(f".trash-{path.name}")), ignore_errors=True)
