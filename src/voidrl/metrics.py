"""Metrics: device scalars → one host read per row → `metrics.jsonl`, TensorBoard, W&B."""

from __future__ import annotations

import errno
import json
import math
import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from voidrl.errors import ConfigError, MissingExtraError, RunFolderError

FILE_NAME = "metrics.jsonl"
CHECK = "check/"  # before the keys of what is only checked to be finite, and not logged


class NonFinite(NamedTuple):
    """A metric that became NaN or infinite since the last flush."""

    variant: int
    """The variant of the update that it belongs to."""
    key: str
    finite_adds: int
    """Number of adds of this variant before the first that was not finite."""
    order: int
    """Position of the key in its update, whose metrics are in the order in which they are computed."""


class Accumulator:
    """Means of device scalars between two log rows, kept on the device until `flush`.

    All scalars live on one device. Adds of the same variant with the same keys share one vector, which is
    never reallocated: an add may be part of a captured CUDA graph. It costs five small kernels for any number
    of metrics. Besides the sums it counts the adds before the first that was not finite, so that NaN can be
    blamed on the metric where it began, although it has reached all others by the time the host reads them.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[int, tuple[str, ...]], Tensor] = {}  # (keys,) each
        self._finite: dict[tuple[int, tuple[str, ...]], Tensor] = {}  # (keys,) each, adds with finite sums
        self.non_finite: list[NonFinite] = []
        """What was not finite at the last flush."""

    def add(self, metrics: Mapping[str, Tensor], variant: int = 0) -> None:
        """Add 0-d tensors without a host read; a key may be missing from some adds."""
        if not metrics:
            return
        for key, value in metrics.items():
            if value.ndim:
                raise ConfigError(
                    f"metric {key!r} has shape {tuple(value.shape)}: expected a single number; reduce it "
                    "first, for instance with .mean()"
                )
        group = variant, tuple(metrics)
        row = torch.stack([value.detach() for value in metrics.values()])  # (keys,)
        if group not in self._sums:
            self._sums[group] = torch.zeros_like(row, dtype=torch.float64)
            self._finite[group] = torch.zeros_like(row, dtype=torch.float64)
        sums = self._sums[group]
        sums += row
        self._finite[group] += sums - sums == 0  # once NaN or infinite, a sum stays so

    def flush(self) -> dict[str, float]:
        """Return the mean of every key since the last flush and start over; NaN and infinity are kept."""
        self.non_finite = []
        if not self._sums:
            return {}
        values = torch.cat([*self._sums.values(), *self._finite.values()]).tolist()  # the one host read
        sums: dict[str, float] = {}
        adds: dict[str, float] = {}
        keys = [(variant, i, key) for variant, keys in self._sums for i, key in enumerate(keys)]
        for (variant, order, key), total, finite in zip(
            keys, values[: len(keys)], values[len(keys) :], strict=True
        ):
            sums[key] = sums.get(key, 0.0) + total
            adds[key] = adds.get(key, 0.0) + finite
            if not math.isfinite(total):
                self.non_finite.append(NonFinite(variant, key, int(finite), order))
        for buffer in self.buffers():
            buffer.zero_()
        return {k: v / adds[k] if math.isfinite(v) else v for k, v in sums.items() if adds[k] or v}

    def buffers(self) -> list[Tensor]:
        """The tensors that an add changes."""
        return [*self._sums.values(), *self._finite.values()]


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
