"""Rows of metrics: `metrics.jsonl`, and from there TensorBoard and W&B."""

from __future__ import annotations

import errno
import json
import math
import numbers
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from voidrl.errors import RunFolderError
from voidrl.training.metrics.loggers import Guarded, TensorBoard, WeightsAndBiases, import_wandb

FILE_NAME = "metrics.jsonl"


class MetricsWriter:
    """Appends rows to `metrics.jsonl` and passes them on to TensorBoard (`tb/`) and Weights & Biases.

    A resumed run passes the `offset` and the step of its checkpoint as `resume_bytes` and `step`: rows
    written after the checkpoint are removed, because the resumed run writes them again. A logger that fails
    is a sentence for `say`; only `metrics.jsonl` itself can stop the run.
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
        path = folder / FILE_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _truncate(path, resume_bytes)
            self._file = path.open("ab", buffering=0)  # closing has nothing left to write
            self._offset = path.stat().st_size
        except OSError as error:
            raise RunFolderError(
                f"cannot write to {path} ({error.strerror or error}); make it writable, or choose another "
                f"folder for the run"
            ) from error
        self._loggers: list[Guarded] = []
        resumed = resume_bytes is not None
        if tensorboard:
            # Hide the events after the checkpoint, but not those of its own step.
            make_tensorboard = partial(TensorBoard, folder / "tb", step + 1 if resumed else None)
            self._loggers.append(Guarded("TensorBoard", make_tensorboard, say))
        if wandb_project:
            make_wandb = partial(WeightsAndBiases, folder, wandb_project, resumed=resumed)
            self._loggers.append(Guarded("Weights & Biases", make_wandb, say))

    def write(self, step: int, row: Mapping[str, float | int | str | None]) -> None:
        """Write one row: `step`, then the keys of `row` in order; NaN and infinity become null."""
        assert "step" not in row, "step is a separate argument"
        record = {"step": int(step)} | {key: _plain(row[key]) for key in sorted(row)}
        self._append(json.dumps(record, allow_nan=False).encode() + b"\n")
        numeric = {key: float(row[key]) for key in sorted(row) if _is_number(row[key])}  # type: ignore[arg-type]
        for logger in self._loggers:
            logger.write(step, numeric)

    def _append(self, line: bytes) -> None:
        try:
            written = self._file.write(line)
            if written < len(line):  # a full disk may write part of a line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._unwritable(error) from error
        self._offset += written

    @property
    def offset(self) -> int:
        """Size of `metrics.jsonl` after the last row, for the checkpoint."""
        if not self._file.closed:
            try:
                os.fsync(self._file.fileno())  # a checkpoint must never point past the end of the file
            except OSError as error:
                raise self._unwritable(error) from error
        return self._offset

    def _unwritable(self, error: OSError) -> RunFolderError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return RunFolderError(
            f"cannot write to {self._file.name} ({error.strerror or error}); "
            f"{'free some space' if full else 'make it writable again'}, then `voidrl resume` continues from "
            f"the last checkpoint"
        )

    def close(self) -> None:
        """Close all outputs; closing twice does nothing."""
        self._file.close()
        for logger in self._loggers:
            logger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def require_rows(folder: Path, resume_bytes: int) -> None:
    """Refuse a `metrics.jsonl` that no longer holds the rows before a checkpoint."""
    path = folder / FILE_NAME
    _kept_bytes(path, _read(path), resume_bytes)


def _truncate(path: Path, resume_bytes: int | None) -> None:
    """Truncate the file at the checkpoint's offset or, without one, after its last whole line."""
    data = _read(path)
    keep = data.rfind(b"\n") + 1 if resume_bytes is None else _kept_bytes(path, data, resume_bytes)
    if keep < len(data):
        os.truncate(path, keep)


def _read(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise RunFolderError(f"{path} is no ordinary file; remove it, or choose another folder for the run")
    return path.read_bytes() if path.exists() else b""


def _kept_bytes(path: Path, data: bytes, keep: int) -> int:
    """`keep`, if that is the end of a row."""
    if keep > len(data):
        raise RunFolderError(
            f"{path} holds {len(data)} bytes but the checkpoint was made at byte {keep}; restore the file or "
            "start a new run"
        )
    if keep and data[keep - 1 : keep] != b"\n":
        raise RunFolderError(
            f"{path} was changed after the checkpoint was made (byte {keep} is not the end of a row); "
            "restore the file or start a new run"
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
