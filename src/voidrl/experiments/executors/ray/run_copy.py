"""Copies of runs between the experiment's folder and nodes that do not share it.

The folder can be resumed from at every moment, even if this process is killed: a checkpoint becomes visible
with its last file, metrics reach at least as far as the checkpoint, and `status.json`, which says that a run
is done, comes last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from voidrl.errors import CheckpointError
from voidrl.experiments.executors.base import log_path
from voidrl.experiments.executors.ray.node import PINNED, STEP, read_json, write_json
from voidrl.runs import checkpoint, locks

CHUNK_BYTES = 8 << 20
Call = Callable[..., Any]
"""Calls a method of a node's agent and returns its answer: `call("read", name, offset, size)`."""


class RunCopy:
    """The copy of one cell in the experiment's folder.

    Args:
        out: The experiment's folder.
        cell: The run folder, relative to it.
        attempt: Number of the attempt at the cell.
    """

    def __init__(self, out: Path, cell: str, attempt: str) -> None:
        self._out, self._cell, self._attempt = out, cell, attempt
        self._known: dict[str, tuple[int, int, int]] = {}
        self._lock: int | None = None

    def send(self, call: Call, source: str | None) -> None:
        """Send a node the cell's inputs: its own partial folder, and its source's."""
        if source is not None and not call("has", source):
            self._send(call, source)
        if (self._out / self._cell / "config.json").is_file():
            self._send(call, self._cell)

    def _send(self, call: Call, cell: str) -> None:
        folder = self._out / cell
        steps = checkpoint.list_steps(folder / "checkpoints")
        if not steps:
            return  # nothing to resume or to start from: the process replaces or refuses it
        newest = checkpoint.latest(folder / "checkpoints", lambda text: None).path
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            if not path.is_file() or path.name == locks.RUN_LOCK or _is_temporary(inside):
                continue
            if inside.parts[0] == "checkpoints" and inside.parts[1] != newest.name:
                continue
            name, offset = (Path(cell) / inside).as_posix(), 0
            for chunk in _chunks(path):
                call("write", name, offset, chunk)
                offset += len(chunk)
        call("accept", cell)

    def fetch(self, call: Call, *, final: bool = False) -> None:
        """Copy new files; with `final`, after the process has ended, copy all without comparison.

        A checkpoint that is damaged on the node is left out, and the older ones stay; with `final` that is an
        error, after all else is copied except the files that mark the run as done.
        """
        files = call("files", self._cell)
        # In this order: the JSON is then true of the checkpoints that are listed after it, and metrics that
        # are read after a checkpoint was written reach as far as it does.
        small = {name: self._read(call, name) for name in files if name.endswith(".json")}
        pinned = call("pin", self._cell)
        damaged = []
        try:
            for name in files:
                if name not in small:
                    self._copy(call, name, files[name], whole=final)
            for name in sorted(pinned, reverse=True):
                try:
                    self._copy_checkpoint(call, name, pinned[name])
                except CheckpointError:
                    damaged.append(name)
        finally:
            call("unpin", self._cell)
        if final and damaged:
            raise CheckpointError(f"damaged on the node: {', '.join(sorted(damaged))}")
        self._expire([*pinned])
        for name in sorted(small, key=lambda name: name.endswith("/status.json")):
            if self._known.get(name) != files[name]:
                self._write(name, small[name])
                self._known[name] = files[name]
        if self._lock is None and f"{self._cell}/config.json" in files:
            self._lock = locks.acquire(self._out / self._cell / locks.RUN_LOCK)  # it reads as alive

    def close(self) -> None:
        """Release the lock: the cell has ended, or is left to its node."""
        if self._lock is not None:
            locks.unlock(self._lock)
            self._lock = None

    def _read(self, call: Call, name: str) -> bytes:
        data = b""
        while chunk := call("read", name, len(data), CHUNK_BYTES):
            data += chunk
        return data

    def _copy(self, call: Call, name: str, seen: tuple[int, int, int], *, whole: bool) -> None:
        """Copy a file that grows, from where the copy ends."""
        known = self._known.get(name)
        if known == seen and not whole:
            return
        if name == f"logs/{self._cell}.log":
            self._append_log(call, name)
        else:
            target = self._out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            grows = not whole and known is not None and known[2] == seen[2] and known[0] <= seen[0]
            if grows and known is not None and target.is_file() and target.stat().st_size >= known[0]:
                self._append(call, name, target, known[0])
                seen = (target.stat().st_size, seen[1], seen[2])
            else:
                tmp = target.with_name(f"{checkpoint.TEMPORARY}{os.getpid()}-{target.name}")
                tmp.write_bytes(b"")
                size = self._append(call, name, tmp, 0)
                tmp.replace(target)
                seen = (size, seen[1], seen[2])
        self._known[name] = seen

    def _append(self, call: Call, name: str, target: Path, offset: int) -> int:
        with target.open("r+b") as file:
            file.truncate(offset)
            file.seek(offset)
            while chunk := call("read", name, offset, CHUNK_BYTES):
                file.write(chunk)
                offset += len(chunk)
        return offset

    def _append_log(self, call: Call, name: str) -> None:
        """Append the log of this attempt to earlier ones, whose length is recorded."""
        target = log_path(self._out, self._cell)
        target.parent.mkdir(parents=True, exist_ok=True)
        noted = self._out / locks.CELLS / f"{self._cell}.log.json"
        base = read_json(noted)
        if base is None or base.get("attempt") != self._attempt:
            size = target.stat().st_size if target.is_file() else 0
            base = {"attempt": self._attempt, "base": size}
            write_json(noted, base)
        with target.open("ab") as file:
            while chunk := call("read", name, max(0, file.tell() - base["base"]), CHUNK_BYTES):
                file.write(chunk)

    def _copy_checkpoint(self, call: Call, name: str, files: dict[str, int]) -> None:
        """Copy a checkpoint under a hidden name, verify all its files, and make it visible."""
        target = self._out / name
        if checkpoint.MANIFEST not in files:
            raise CheckpointError(f"{name} has no {checkpoint.MANIFEST}")
        manifest = self._read(call, f"{PINNED}/{name}/{checkpoint.MANIFEST}")
        with suppress(OSError):
            if (target / checkpoint.MANIFEST).read_bytes() == manifest:
                return
        tmp = target.parent / f"{checkpoint.TEMPORARY}fetch-{target.name}"
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.mkdir(parents=True)
        try:
            (tmp / checkpoint.MANIFEST).write_bytes(manifest)
            have = self._files_by_hash(target.parent)
            wanted = (read_json(tmp / checkpoint.MANIFEST) or {}).get("files", {})
            for file in files:
                if file == checkpoint.MANIFEST:
                    continue
                same = have.get(wanted.get(file, {}).get("sha256", ""))
                if same is not None and _link(same, tmp / file):
                    continue
                with (tmp / file).open("wb") as opened:
                    offset = 0
                    while chunk := call("read", f"{PINNED}/{name}/{file}", offset, CHUNK_BYTES):
                        opened.write(chunk)
                        offset += len(chunk)
                    opened.flush()
                    os.fsync(opened.fileno())
            checkpoint.load(tmp)
            if target.is_dir():  # an older save of this step: `.1` outranks it until it has its name
                tmp = tmp.rename(target.with_name(f"{target.name}.1"))
                _discard(target)
            tmp.rename(target)
        finally:
            shutil.rmtree(tmp, ignore_errors=True)

    def _files_by_hash(self, folder: Path) -> dict[str, Path]:
        """Files of the checkpoints that are here: unchanged ones are not copied again."""
        found = {}
        for path in folder.glob("step_*"):
            for name, entry in (read_json(path / checkpoint.MANIFEST) or {}).get("files", {}).items():
                found[entry["sha256"]] = path / name
        return found

    def _expire(self, there: list[str]) -> None:
        """Delete checkpoints that the run has deleted, once a newer one is here."""
        kept = {Path(name).name for name in there if Path(name).parent.name == "checkpoints"}
        folder = self._out / self._cell / "checkpoints"
        here = sorted(path for path in folder.glob("step_*") if STEP.fullmatch(path.name))
        if not kept or not here or here[-1].name != max(kept):
            return
        for path in here[:-1]:
            if path.name not in kept:
                _discard(path)

    def _write(self, name: str, data: bytes) -> None:
        target = self._out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(UnicodeDecodeError):
            checkpoint.write_text_atomic(target, data.decode())


def _is_temporary(path: Path) -> bool:
    return any(part.startswith((checkpoint.TEMPORARY, ".trash-")) for part in path.parts)


def _discard(path: Path) -> None:
    """Delete a checkpoint; no half of it is ever visible."""
    shutil.rmtree(path.rename(path.with_name(f".trash-{path.name}")), ignore_errors=True)


def _chunks(path: Path) -> Iterator[bytes]:
    """The content of a file in parts, at least one."""
    with path.open("rb") as file:
        yield file.read(CHUNK_BYTES)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _link(source: Path, target: Path) -> bool:
    try:
        target.hardlink_to(source)
    except OSError:
        return False
    return True
