"""The part of a run's newest checkpoint that reports show, and the cache of reports under RUN/report/.

A checkpoint can hold gigabytes of replay: only the one small file that is needed is read and checked.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
from torch import Tensor

from voidrl.errors import CheckpointError
from voidrl.runs.checkpoint import Checkpoint, check_file, list_steps, read_manifest, seal

CACHE = "report"
LOOP = "loop.safetensors"


def newest(run: Path) -> Checkpoint | None:
    """The newest checkpoint with a readable manifest; None where there is no checkpoint at all."""
    problem: CheckpointError | None = None
    for step in reversed(list_steps(run / "checkpoints")):
        try:
            return read_manifest(run / "checkpoints" / f"step_{step:012d}")
        except CheckpointError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return None


def key_of(saved: Checkpoint) -> str:
    """A name for the content of a checkpoint."""
    return seal({"step": saved.step, "files": saved.files})[:16]


def read_part(saved: Checkpoint, name: str) -> dict[str, Tensor]:
    """The tensors of one file, after checking it."""
    if name in saved.files:
        check_file(saved.path / name, saved.files[name])
    return saved.tensors(name)


def read_visits(saved: Checkpoint) -> np.ndarray:
    """Visits of each cell, (cells,); empty where the environment does not report cells."""
    tensors = read_part(saved, LOOP)
    if "visits" not in tensors:
        raise CheckpointError(f"its checkpoint {saved.path.name} has no counts of visits")
    visits: np.ndarray = tensors["visits"].long().numpy()
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
