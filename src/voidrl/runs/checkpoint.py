"""Checkpoints that survive a kill at any moment: safetensors files and a manifest with their hashes.

    <root>/step_000000012345/agent.safetensors   one file per group of tensors
                             manifest.json       format, version, step, meta; size, sha256 and tag of files

Everything is written and synced under a hidden name; the final rename makes the checkpoint visible. A step
that is saved again is first renamed to `step_….0`, which counts until its successor is there, so a valid
checkpoint exists at every moment. This module knows nothing about agents.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar

from torch import Tensor

from voidrl import __version__
from voidrl.errors import CheckpointError, ConfigError, UnreadableError, shown
from voidrl.runs.tensor_files import FileEntry, read_tensors, serialize, write_synced
from voidrl.system.files import MAX_JSON_BYTES, parse_json, read_text, why_refused
from voidrl.system.machine import free_disk
from voidrl.system.units import human_bytes

T = TypeVar("T")
Shape = type | UnionType | dict[str, Any] | list[Any]
FORMAT = 5
MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"  # prefix of files that are being written
READ_TRIES = 5  # a run that trains deletes old checkpoints while others read them
BLOCK_ON_DISK = 4096  # at most, beyond a file's content
FILE_SHAPE: Shape = {"sha256": str, "bytes": int, "tag?": str | None}
MANIFEST_SHAPE: Shape = {"step": int, "meta": dict, "files": {"*": FILE_SHAPE}}
# The last checkpoint of each root that this process has verified or written: unchanged files are links to it.
_sources: dict[Path, Checkpoint] = {}


@dataclass(frozen=True)
class Group:
    """The tensors of one file, or a function that returns them, called only if the file is written."""

    tensors: Mapping[str, Tensor] | Callable[[], Mapping[str, Tensor]]
    tag: str | None = None
    """A file whose tag is unchanged since the previous checkpoint is linked, not rewritten. Equal tags must
    mean equal tensors, even after resuming from an older step."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint by its manifest; `load` has verified all of its files."""

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


# Saving


def save(
    root: Path,
    step: int,
    files: Mapping[str, Group],
    meta: Mapping[str, Any],
    *,
    keep_last: int,
) -> Path:
    """Write a checkpoint, delete all but the last `keep_last`, and return its folder.

    Only one process at a time may save into a root, which the lock of its run ensures. If saving fails,
    earlier checkpoints are unchanged.
    """
    if keep_last < 1:
        raise ConfigError(f"keep_last = {keep_last} cannot be used: expected 1 or more")
    assert 0 <= step < 10**12, step
    plain: dict[str, Any] = json.loads(_dumps(dict(meta), "the meta of a checkpoint"))  # before gigabytes
    try:
        root.mkdir(parents=True, exist_ok=True)
        path = _write_checkpoint(root, step, files, plain)
    except OSError as e:
        why, remedy = why_refused(e, root, "choose a writable folder")
        raise CheckpointError(f"cannot save step {step} in {root}: {why}; {remedy}") from e
    with suppress(OSError, CheckpointError):  # the new one is durable; the next save deletes old ones
        replaced = [other for same, other in _find(root) if same == step and other != path]
        older = [other for earlier, other in _find(root) if earlier < step]
        for expired in replaced + older[keep_last - 1 :]:
            _discard(expired)
        _sync(root)
    return path


def _write_checkpoint(root: Path, step: int, files: Mapping[str, Group], meta: dict[str, Any]) -> Path:
    """Write all files under a hidden name and rename the whole, after comparing its size with the disk."""
    for leftover in (*root.glob(".trash-*"), *root.glob(f"{TEMPORARY}*")):
        _remove(leftover)
    source = _sources.get(root.absolute())
    known = source.files if source is not None and source.path.is_dir() else {}
    same = {
        name
        for name, group in files.items()
        if group.tag is not None and name in known and group.tag == known[name].get("tag")
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
    tmp = root / f"{TEMPORARY}{os.getpid()}"
    try:
        tmp.mkdir()
        entries: dict[str, FileEntry] = {}
        for name, group in files.items():
            if source is not None and name in same:
                try:
                    (tmp / name).hardlink_to(source.path / name)
                except OSError:  # the file system has no hard links, or too many to this file
                    shutil.copyfile(source.path / name, tmp / name)
                    _sync(tmp / name)
                entries[name] = known[name]
                continue
            size, blocks = serialized.pop(name)
            entries[name] = {"sha256": write_synced(tmp / name, blocks), "bytes": size, "tag": group.tag}
        manifest = {"format": FORMAT, "voidrl": __version__, "step": step, "meta": meta, "files": entries}
        text = _dumps({**manifest, "sha256": seal(manifest)}, MANIFEST, indent=2)
        write_synced(tmp / MANIFEST, [text.encode()])
        _sync(tmp)
        path = root / f"step_{step:012d}"
        if os.path.lexists(path):  # a link to nothing too
            replaced = path.with_name(f"{path.name}.0")
            if os.path.lexists(replaced):
                _discard(replaced)
            path.rename(replaced)
        tmp.rename(path)
        _sync(root)
    except OSError as e:
        why, _ = why_refused(e, root, "")
        if e.errno in (errno.ENOSPC, errno.EDQUOT) and why == e.strerror:
            raise _disk_full(root, step, needed, free, why) from e
        raise
    finally:
        shutil.rmtree(tmp, ignore_errors=True)  # already renamed if the save succeeded
    _sources[root.absolute()] = Checkpoint(path, step, meta, entries)
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


def discard(root: Path, step: int) -> None:
    """Delete the checkpoint of a step."""
    for path in _paths(root, step):
        _discard(path)


# Loading


def load(path: Path) -> Checkpoint:
    """Open one checkpoint after checking the size and sha256 of each of its files."""
    found = read_manifest(path)
    for name, entry in found.files.items():
        check_file(path / name, entry)
    _sources[path.parent.absolute()] = found
    return found


def read_manifest(path: Path) -> Checkpoint:
    """Open one checkpoint without reading its files, which may be gigabytes."""
    file = path / MANIFEST
    fields = read_json(file, "the manifest of the checkpoint")
    require_format(file, fields, FORMAT)  # before the hash, which other formats may compute differently
    if fields.pop("sha256", None) != seal(fields):
        raise CheckpointError(f"{file} is damaged: it does not match its own sha256")
    require_shape(file, fields, MANIFEST_SHAPE)
    for name in fields["files"]:
        if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):  # such as ../../other
            raise CheckpointError(f"{file} names the file {shown(name)}: expected one next to it")
    return Checkpoint(path, fields["step"], fields["meta"], fields["files"])


def load_step(root: Path, step: int) -> Checkpoint:
    """Open the checkpoint of a step as `load` does."""
    for path in _paths(root, step):
        return load(path)
    raise CheckpointError(f"there is no checkpoint of step {step} in {root}")


def latest(
    root: Path,
    warn: Callable[[str], None],
    check: Callable[[Checkpoint], object] = lambda found: None,
    read: Callable[[Checkpoint], Any] = lambda found: found,
) -> Any:
    """The newest valid checkpoint under a root, or what `read` makes of it; `warn` names newer, damaged ones.

    One for which `check` raises `CheckpointError` is damaged too. If a run that trains deletes the checkpoint
    meanwhile, its newest is read instead.
    """
    problems: dict[Path, str] = {}
    for _ in range(READ_TRIES):
        for path in [path for _, path in _find(root) if path not in problems]:
            is_valid = False
            try:
                found = load(path)
                check(found)
                is_valid = True
                return read(found)
            except CheckpointError as e:
                if not os.path.lexists(path):  # deleted meanwhile
                    break
                if is_valid:  # it does not fit its reader
                    raise
                problems[path] = f"{path.name} ({e})"
                warn(f"skipped {path.name}: {e}")
        else:
            break
    raise CheckpointError(
        f"no valid checkpoint in {root}; found {', '.join(problems.values()) or 'none at all'}"
    )


def list_steps(root: Path) -> list[int]:
    """Return the steps with a checkpoint under a root, oldest first, without verifying them."""
    return sorted({step for step, _ in _find(root)})


def bytes_on_disk(root: Path) -> int:
    """Return the size of all checkpoints under a root, files that they share counted once.

    Those that a run deletes meanwhile do not count.
    """
    sizes: dict[tuple[int, int], int] = {}
    for _, path in _find(root):
        for file in path.glob("*.safetensors"):
            with suppress(FileNotFoundError):
                stat = file.stat()
                sizes[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(sizes.values())


def require_readable(folder: Path) -> None:
    """Refuse a folder whose newest checkpoint has another format, before anything else of it is parsed."""
    for _, path in _find(folder)[:1]:
        with suppress(OSError, ValueError):
            fields = parse_json(read_text(path / MANIFEST, MAX_JSON_BYTES))
            if isinstance(fields, dict) and isinstance(fields.get("format"), int):
                require_format(path / MANIFEST, fields, FORMAT)


def require_regular(path: Path) -> None:
    """Refuse what would be read without end, such as a pipe."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path} cannot be read: it is not a regular file")


def check_file(path: Path, entry: FileEntry) -> None:
    """Check a file's size and sha256."""
    try:
        require_regular(path)
        found, expected = path.stat().st_size, entry["bytes"]
        if found != expected:
            wrong = "truncated" if found < expected else "too long"
            raise CheckpointError(f"{path} is {wrong}: {expected} bytes expected, {found} found")
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror or e}") from e
    if sha256 != entry["sha256"]:
        raise CheckpointError(f"{path} is damaged: its sha256 is not the one in the manifest")


def _find(root: Path) -> list[tuple[int, Path]]:
    """Return step and path of everything named like a checkpoint, newest first."""
    try:
        names = [path.name for path in root.iterdir()] if root.is_dir() else []
    except OSError as e:
        why, remedy = why_refused(e, root, "make it readable")
        raise CheckpointError(f"the checkpoints in {root} cannot be listed: {why}; {remedy}") from e
    found = [match for match in (re.fullmatch(r"step_(\d{12})(\.0)?", name) for name in names) if match]
    found.sort(key=lambda match: (match[1], match[2] is None), reverse=True)
    return [(int(match[1]), root / match[0]) for match in found]


def _paths(root: Path, step: int) -> list[Path]:
    return [path for other, path in _find(root) if other == step]


def _discard(path: Path) -> None:
    """Delete a checkpoint, renamed first so that a half-deleted one is never mistaken for a valid one."""
    _remove(path.rename(path.with_name(f".trash-{path.name}")))


def _remove(path: Path) -> None:
    """Delete a folder, or what stands in its place."""
    shutil.rmtree(path, ignore_errors=True)  # which follows no link
    with suppress(OSError):
        path.unlink()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# JSON


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
        why, remedy = why_refused(e, path.parent, "make its folder writable, or free some space")
        raise CheckpointError(f"cannot write {path}: {why}; {remedy}") from e


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
    except OSError as e:
        raise UnreadableError(f"{what} cannot be read: {path}: {why_refused(e, path, '')[0]}") from e
    except ValueError as e:
        raise CheckpointError(f"{what} cannot be read: {path} is damaged or not JSON ({e})") from e
    return data


def seal(fields: Mapping[str, Any]) -> str:
    """Return the hash of JSON fields, which would still be valid JSON after a flipped digit."""
    return hashlib.sha256(_dumps(fields, MANIFEST).encode()).hexdigest()


def require_shape(path: Path, data: Any, shape: Shape, name: str = "content") -> None:
    """Refuse JSON without this shape.

    A shape is a type, a list with the shape of all items, or an object with the shapes of its keys, of which
    those with a question mark are optional and `*` stands for all.
    """
    damaged = f"{path} is damaged, or not voidrl's"
    if isinstance(shape, dict) and isinstance(data, dict):
        for key, inner in shape.items():
            for each in data if key == "*" else [key.removesuffix("?")]:
                if each in data:
                    require_shape(path, data[each], inner, each)
                elif not key.endswith("?"):
                    raise CheckpointError(f"{damaged}: it has no {each!r}")
    elif isinstance(shape, list) and isinstance(data, list):
        for each in data:
            require_shape(path, each, shape[0], name)
    elif isinstance(shape, dict | list) or not isinstance(data, shape) or isinstance(data, bool):
        raise CheckpointError(f"{damaged}: its {name} is {shown(data)}")


def require_field(path: Path, fields: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """A field of a JSON file that must be there and of this type."""
    require_shape(path, dict(fields), {name: kind})
    value: T = fields[name]
    return value


def require_format(path: Path, fields: Mapping[str, Any], expected: int) -> None:
    """Refuse a file of an older or newer format, naming the version of voidrl that wrote it."""
    found = require_field(path, fields, "format", int)
    if found < 1:
        raise CheckpointError(f"{path} is damaged, or not voidrl's: its format is {found}")
    if found != expected:
        writer = fields.get("voidrl")
        writer = writer if isinstance(writer, str) and len(writer) < 40 else "of another version"
        remedy = "upgrade voidrl" if found > expected else f"use voidrl {writer}, or train again"
        raise CheckpointError(
            f"{path} was written by voidrl {writer} in format {shown(found)} and cannot be read by voidrl "
            f"{__version__}, which reads format {expected}: {remedy}"
        )


def _dumps(obj: Any, what: str, indent: int | None = None) -> str:
    try:
        return json.dumps(obj, allow_nan=False, indent=indent)
    except (TypeError, ValueError, RecursionError) as e:
        raise CheckpointError(f"{what} cannot be written as JSON: {e}") from e
