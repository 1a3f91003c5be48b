"""The part of a run's newest checkpoint that reports show, and the cache of videos under RUN/report/.

A checkpoint can hold gigabytes of replay: only the one small file that is needed is read and checked.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from voidrl.errors import CheckpointError
from voidrl.runs.checkpoint import Checkpoint, check_file, list_steps, read_manifest, seal

CACHE = "report"


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


def check_part(saved: Checkpoint, name: str) -> None:
    """Check one file of a checkpoint, if it is in the manifest."""
    if name in saved.files:
        check_file(saved.path / name, saved.files[name])


def read_visits(saved: Checkpoint) -> np.ndarray:
    """Visits of each cell, (cells,); empty where the environment does not report cells."""
    check_part(saved, "loop.safetensors")
    tensors = saved.tensors("loop.safetensors")
    if "visits" not in tensors:
        raise CheckpointError(f"its checkpoint {saved.path.name} has no counts of visits")
    visits: np.ndarray = tensors["visits"].long().numpy()
    return visits.reshape(-1)


def cache_path(run: Path, saved: Checkpoint, kind: str) -> Path:
    """The cached file of a checkpoint; `kind` is a file name with `{}` for its content."""
    content = seal({"step": saved.step, "files": saved.files})[:16]
    return run / CACHE / kind.format(content)


def keep(path: Path, data: bytes) -> None:
    """Cache data for the next report, in place of an older checkpoint's, unless the folder is read-only."""
    tmp = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    if path.parent.is_symlink():  # of a stranger's run, to a folder of the user
        return
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        tmp.write_bytes(data)
        tmp.replace(path)
        for older in path.parent.glob(f"{path.name.partition('-')[0]}-*{path.suffix}"):
            if older != path:
                older.unlink()
    with suppress(OSError):
        tmp.unlink(missing_ok=True)
