"""Rows of metrics: `metrics.jsonl`, and from there TensorBoard and W&B."""

from __future__ import annotations

import errno
import json
import math
import numbers
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from voidrl.errors import RunFolderError
from voidrl.runs.metrics import FILE_NAME, MAX_LINE_BYTES
from voidrl.system.files import open_regular, why_refused
from voidrl.training.metrics.loggers import TensorBoard, WeightsAndBiases, import_wandb


class MetricsWriter(AbstractContextManager["MetricsWriter"]):
    """Appends rows to `metrics.jsonl` and passes them on to TensorBoard (`tb/`) and Weights & Biases.

    A resumed run passes the `offset` and the step of its checkpoint as `resume_bytes` and `step`: rows
    written after the checkpoint are removed, because the resumed run writes them again. A logger that fails
    is turned off, with one sentence for `say`; only `metrics.jsonl` itself can stop the run.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        tensorboard: bool = True,
        wandb_project: str | None = None,
        resume_bytes: int | None = None,
        step: int = 0,
        say: Callable[[str], None] = print,
    ) -> None:
        folder = Path(folder)
        if wandb_project:
            import_wandb()  # fails before anything is removed or created
        self._path = folder / FILE_NAME
        with self._explained():
            folder.mkdir(parents=True, exist_ok=True)
            keep = require_rows(folder, resume_bytes)
            rows = open_regular(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self._file = os.fdopen(rows, "ab", buffering=0)  # closing has nothing left to write
            self._file.truncate(keep)
        self._say = say
        self._loggers: dict[str, TensorBoard | WeightsAndBiases] = {}
        resumed = resume_bytes is not None
        if tensorboard:
            with self._guarded("TensorBoard"):
                # Hide the events after the checkpoint, but not those of its own step.
                self._loggers["TensorBoard"] = TensorBoard(folder / "tb", step + 1 if resumed else None)
        if wandb_project:
            with self._guarded(name := "Weights & Biases"):
                self._loggers[name] = WeightsAndBiases(folder, wandb_project, resumed=resumed)

    def write(self, step: int, row: Mapping[str, float | int | str | None]) -> None:
        """Write one row: `step`, then the keys of `row` in order; NaN and infinity become null."""
        assert "step" not in row, "step is a separate argument"
        record = {"step": int(step)} | {key: _plain(row[key]) for key in sorted(row)}
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        with self._explained():
            if self._file.write(line) < len(line):  # a full disk may write part of a line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        numeric = {key: float(row[key]) for key in sorted(row) if _is_number(row[key])}  # type: ignore[arg-type]
        for name, logger in [*self._loggers.items()]:
            with self._guarded(name):
                logger.write(step, numeric)

    @property
    def offset(self) -> int:
        """Size of `metrics.jsonl` after the last row, for the checkpoint."""
        with self._explained():
            os.fsync(self._file.fileno())  # a checkpoint must never point past the end of the file
        return self._file.tell()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "free some space" if full else "make it writable, or choose another folder for the run"
            why, remedy = why_refused(error, self._path.parent, remedy)
            raise RunFolderError(
                f"cannot write to {self._path} ({why}); {remedy}, and `voidrl resume` "
                f"continues from the last checkpoint"
            ) from error

    def __exit__(self, *exc: object) -> None:
        """Close all outputs."""
        self._file.close()
        for name, logger in [*self._loggers.items()]:
            with self._guarded(name):
                logger.close()

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a third party raises: the run does not depend on it
            self._loggers.pop(name, None)
            why = " ".join(str(error).split()) or type(error).__name__
            self._say(f"{name} is turned off ({why}); metrics.jsonl has everything")


def require_rows(folder: Path, resume_bytes: int | None) -> int:
    """The bytes of `metrics.jsonl` to keep: those before a checkpoint, or without one, all whole rows.

    Refuses a file that no longer holds the rows before the checkpoint.
    """
    path = folder / FILE_NAME
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise RunFolderError(f"{path} is no ordinary file; remove it, or choose another folder for the run")
    size = path.stat().st_size if path.exists() else 0
    end = size if resume_bytes is None else resume_bytes
    start, tail = max(end - MAX_LINE_BYTES, 0), b""
    if size:
        with path.open("rb") as file:
            file.seek(start)
            tail = file.read(end - start)
    keep = start + tail.rfind(b"\n") + 1 if resume_bytes is None else resume_bytes
    if keep and tail[keep - start - 1 : keep - start] != b"\n":
        raise RunFolderError(
            f"{path} holds {size} bytes but the checkpoint was made at byte {keep}, the end of a row; "
            f"it was changed after that: restore the file or start a new run"
        )
    return keep


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _plain(value: Any) -> float | int | str | bool | None:
    """Convert to strict JSON: NumPy scalars become Python's, NaN and infinity null."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    value = float(value)
    return value if math.isfinite(value) else None
