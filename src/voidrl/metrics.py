"""Metrics: device scalars → one host read per row → `metrics.jsonl`, TensorBoard, W&B."""

from __future__ import annotations

import errno
import json
import math
import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from voidrl.errors import ConfigError, MissingExtraError, RunFolderError

FILE_NAME = "metrics.jsonl"


class Accumulator:
    """Means of device scalars between two log rows, kept on the device until `flush`.

    All scalars live on one device. Adds with the same keys share one vector, which is never reallocated: an
    add may be part of a captured CUDA graph. It costs three small kernels for any number of metrics.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Tensor] = {}  # (keys,) each
        self._adds: dict[tuple[str, ...], Tensor] = {}  # (1,) each

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Add 0-d tensors without a host read; a key may be missing from some adds."""
        if not metrics:
            return
        for key, value in metrics.items():
            if value.ndim:
                raise ConfigError(
                    f"metric {key!r} has shape {tuple(value.shape)}: expected a single number; reduce it "
                    "first, for instance with .mean()"
                )
        keys = tuple(metrics)
        row = torch.stack([value.detach() for value in metrics.values()])  # (keys,)
        if keys not in self._sums:
            self._sums[keys] = torch.zeros_like(row, dtype=torch.float64)
            self._adds[keys] = torch.zeros(1, dtype=torch.float64, device=row.device)
        self._sums[keys] += row
        self._adds[keys] += 1

    def flush(self) -> dict[str, float]:
        """Return the mean of every key since the last flush and start over; NaN and infinity are kept."""
        if not self._sums:
            return {}
        values = iter(torch.cat([*self._adds.values(), *self._sums.values()]).tolist())  # the one host read
        counts = {keys: next(values) for keys in self._adds}
        sums: dict[str, float] = {}
        adds: dict[str, float] = {}
        for keys, count in counts.items():
            for key in keys:
                sums[key] = sums.get(key, 0.0) + next(values)
                adds[key] = adds.get(key, 0.0) + count
        for buffer in (*self._sums.values(), *self._adds.values()):
            buffer.zero_()
        return {key: total / adds[key] for key, total in sums.items() if adds[key]}


class MetricsWriter:
    """Appends rows to `metrics.jsonl` and optionally to TensorBoard (`tb/`) and Weights & Biases.

    A resumed run passes the `offset` and the step of its checkpoint as `resume_bytes` and `step`: rows
    written after the checkpoint are removed, because the resumed run writes them again.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        tensorboard: bool = True,
        wandb_project: str | None = None,
        resume_bytes: int | None = None,
        step: int = 0,
    ) -> None:
        folder = Path(folder)
        wandb = import_wandb() if wandb_project else None  # fails before anything is removed or created
        path = folder / FILE_NAME
        folder.mkdir(parents=True, exist_ok=True)
        _truncate(path, resume_bytes)
        self._file = path.open("ab", buffering=0)  # closing has nothing left to write
        self._offset = path.stat().st_size
        self._tensorboard: Any = None
        self._wandb: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter  # takes a second to import

            # Hide the events after the checkpoint, but not those of its own step.
            purge_step = None if resume_bytes is None else step + 1
            self._tensorboard = SummaryWriter(str(folder / "tb"), purge_step=purge_step)
        if wandb is not None:
            self._wandb = _start_wandb(wandb, folder, wandb_project, resumed=resume_bytes is not None)

    def write(self, step: int, row: Mapping[str, float | int | str | None]) -> None:
        """Write one row: `step`, then the keys of `row` in order; NaN and infinity become null."""
        assert "step" not in row, "step is a separate argument"
        record = {"step": int(step)} | {key: _plain(row[key]) for key in sorted(row)}
        self._append(json.dumps(record, allow_nan=False).encode() + b"\n")
        numeric = {key: float(row[key]) for key in sorted(row) if _is_number(row[key])}  # type: ignore[arg-type]
        if self._tensorboard is not None:
            for key, value in numeric.items():
                self._tensorboard.add_scalar(key, value, step)
            self._tensorboard.flush()  # a kill must not lose rows before the checkpoint
        if self._wandb is not None:
            self._wandb.log(numeric, step=step)

    def _append(self, line: bytes) -> None:
        try:
            written = self._file.write(line)
            if written < len(line):  # a full disk may write part of a line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RunFolderError(
                f"cannot write to {self._file.name} ({error.strerror or error}); free some space, then "
                f"`voidrl resume` continues from the last checkpoint"
            ) from error
        self._offset += written

    @property
    def offset(self) -> int:
        """Size of `metrics.jsonl` after the last row, for the checkpoint."""
        if not self._file.closed:
            os.fsync(self._file.fileno())  # a checkpoint must never point past the end of the file
        return self._offset

    def close(self) -> None:
        """Close all outputs; closing twice does nothing."""
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()
        self._tensorboard = self._wandb = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _truncate(path: Path, resume_bytes: int | None) -> None:
    """Truncate the file at the checkpoint's offset or, without one, after its last whole line."""
    data = path.read_bytes() if path.exists() else b""
    keep = data.rfind(b"\n") + 1 if resume_bytes is None else resume_bytes
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
    if keep < len(data):
        os.truncate(path, keep)


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


def import_wandb() -> Any:
    """Import wandb, or raise an error that says how to install it."""
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("wandb", "wandb", "logging to Weights & Biases") from None
    return wandb


def _start_wandb(wandb: Any, folder: Path, project: str | None, *, resumed: bool) -> Any:
    """Start a W&B run, or continue the one whose id the folder keeps; W&B itself skips the repeated steps."""
    id_path = folder / "wandb" / "run_id.txt"
    run_id = id_path.read_text().strip() if resumed and id_path.exists() else None
    run = wandb.init(project=project, name=folder.resolve().name, dir=str(folder), id=run_id, resume="allow")
    id_path.parent.mkdir(exist_ok=True)
    id_path.write_text(run.id)
    return run
