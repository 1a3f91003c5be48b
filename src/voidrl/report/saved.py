"""What a report takes from a run's newest checkpoint, and what it keeps of it under RUN/report/.

A checkpoint can hold gigabytes of replay. Only the one small file that is needed is read and checked.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voidrl.checkpoint import FORMAT, MANIFEST, read_json, require_format
from voidrl.errors import CheckpointError

CACHE = "report"
LOOP = "loop.safetensors"


@dataclass(frozen=True)
class Saved:
    """A checkpoint of which the manifest is whole."""

    path: Path
    step: int
    files: dict[str, Any]
    key: str
    """Hash of the manifest, which holds the hashes of all files."""


def newest(run: Path) -> Saved | None:
    """The newest checkpoint with a readable manifest; None where there is no checkpoint at all."""
    root = run / "checkpoints"
    names = [
        path
        for path in (root.iterdir() if root.is_dir() else ())
        if re.fullmatch(r"step_\d{12}(\.\d+)?", path.name)
    ]
    problem: CheckpointError | None = None
    for path in sorted(names, reverse=True):
        try:
            return _open(path)
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
    """How often each cell was entered, (cells,); empty where the environment does not tell."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = saved.path / LOOP
    try:
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != saved.files[LOOP]["sha256"]:
            raise CheckpointError(f"{LOOP} of its checkpoint {saved.path.name} is damaged: no heat map")
        visits = load(data)["visits"]
    except (OSError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(
            f"{LOOP} of its checkpoint {saved.path.name} cannot be read: {error}"
        ) from error
    return np.asarray(visits, np.int64).reshape(-1)


def read_kept(run: Path, kind: str, key: str) -> bytes | None:
    """What was kept for a checkpoint, if it is there; `kind` is a file name with `{}` for the key."""
    try:
        return (run / CACHE / kind.format(key)).read_bytes()
    except OSError:
        return None


def drop_kept(run: Path, kind: str, key: str) -> None:
    """Of no use: it is torn, or somebody else's."""
    with suppress(OSError):
        (run / CACHE / kind.format(key)).unlink()


def keep(run: Path, kind: str, key: str, data: bytes) -> None:
    """Keep it for the next report, in place of what an older checkpoint had; not in a read-only folder."""
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
