"""The part of a run's newest checkpoint that reports show, and the cache of reports under RUN/report/.

A checkpoint can hold gigabytes of replay: only the one small file that is needed is read and checked.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voidrl.errors import CheckpointError
from voidrl.runs.checkpoint import (
    FORMAT,
    MANIFEST,
    check_file,
    list_steps,
    read_json,
    require_format,
)
from voidrl.runs.tensor_files import read_tensors

CACHE = "report"
LOOP = "loop.safetensors"


@dataclass(frozen=True)
class Saved:
    """A checkpoint with a whole manifest."""

    path: Path
    step: int
    files: dict[str, Any]
    key: str
    """Hash of the manifest, which holds the hashes of all files."""


def newest(run: Path) -> Saved | None:
    """The newest checkpoint with a readable manifest; None where there is no checkpoint at all."""
    problem: CheckpointError | None = None
    for step in reversed(list_steps(run / "checkpoints")):
        try:
            return _open(run / "checkpoints" / f"step_{step:012d}")
        except CheckpointError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return None


def _open(path: Path) -> Saved:
    manifest = read_json(path / MANIFEST, "the manifest of the checkpoint")
    require_format(path / MANIFEST, manifest if isinstance(manifest, dict) else {}, FORMAT)
    try:
        step, files = int(manifest["step"]), dict(manifest["files"])
        key = hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()[:16]
    except (KeyError, TypeError, ValueError, OSError):
        raise CheckpointError(f"the manifest of its checkpoint {path.name} is damaged") from None
    return Saved(path, step, files, key)


def read_visits(saved: Saved) -> np.ndarray:
    """Visits of each cell, (cells,); empty where the environment does not report cells."""
    try:
        check_file(saved.path / LOOP, saved.files[LOOP])
        visits: np.ndarray = read_tensors(saved.path / LOOP)["visits"].long().numpy()
    except (KeyError, TypeError):
        raise CheckpointError(f"its checkpoint {saved.path.name} has no counts of visits") from None
    return visits.reshape(-1)


def read_kept(run: Path, kind: str, key: str) -> bytes | None:
    """Return a cached file of a checkpoint; `kind` is a file name with `{}` for the key."""
    try:
        return (run / CACHE / kind.format(key)).read_bytes()
    except OSError:
        return None


def keep(run: Path, kind: str, key: str, data: bytes) -> None:
    """Cache data for the next report, in place of an older checkpoint's; a read-only folder has no cache."""
    folder = run / CACHE
    path = folder / kind.format(key)
    tmp = folder / f".tmp-{os.getpid()}-{path.name}"
    with suppress(OSError):
        folder.mkdir(exist_ok=True)
        tmp.write_bytes(data)
        tmp.replace(path)
        for older in folder.glob(f"{kind.partition('-')[0]}-*{path.suffix}"):
            if older != path:
                older.unlink()
    with suppress(OSError):
        tmp.unlink(missing_ok=True)
