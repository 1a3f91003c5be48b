"""Rows of metrics: `metrics.jsonl`, and copies of it for TensorBoard and Weights & Biases."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

from voidrl.errors import MissingExtraError, RunFolderError
from voidrl.runs.metrics import FILE_NAME, MAX_LINE_BYTES
from voidrl.system.files import open_regular, read_text, why_refused

# W&B's own limits would be 90 seconds for the start and none for the end. Its environment variables win.
WANDB_SECONDS = {"WANDB_INIT_TIMEOUT": "5", "WANDB_FINISH_TIMEOUT": "15"}
MAX_ID_BYTES = 1000


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

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Write one row: `step`, then the keys of `row` in order; NaN and infinity become null."""
        assert "step" not in row, "step is a separate argument"
        row = {key: row[key] for key in sorted(row)}
        numeric = {k: float(v) for k, v in row.items() if isinstance(v, Real) and not isinstance(v, bool)}
        null = dict.fromkeys(key for key, value in numeric.items() if not math.isfinite(value))
        record = {"step": int(step), **row, **null}
        line = json.dumps(record, allow_nan=False, default=lambda scalar: scalar.item()).encode() + b"\n"
        with self._explained():
            if self._file.write(line) < len(line):  # a full disk may write part of a line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
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


class TensorBoard:
    """An event file in a folder.

    torch's `SummaryWriter` would report a full disk from a background thread: with a traceback on the
    terminal, and again at a later call.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._record_writer = event_pb2.Event, RecordWriter
        make_inside(folder)
        stamp = f"{time.time_ns() // 10**9:010d}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        self._file = (folder / f"events.out.tfevents.{stamp}").open("xb", buffering=0)
        self._append(file_version="brain.Event:2")
        if purge_step is not None:  # hides the events of a run that was resumed at an earlier step
            self._append(step=purge_step, session_log={"status": event_pb2.SessionLog.START})

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Append one event, unbuffered: a kill must not lose rows before the checkpoint."""
        values = [{"tag": key, "simple_value": value} for key, value in row.items()]
        self._append(step=step, summary={"value": values})

    def _append(self, **fields: Any) -> None:
        record = io.BytesIO()
        self._record_writer(record).write(self._event(wall_time=time.time(), **fields).SerializeToString())
        if self._file.write(record.getvalue()) < record.tell():
            raise OSError("the disk is full")

    def close(self) -> None:
        """Close the file, which has nothing left to write."""
        self._file.close()


class WeightsAndBiases:
    """A run on W&B, which uploads from a process of its own.

    A resumed run continues the one whose id the folder keeps; W&B itself skips the repeated steps.
    """

    def __init__(self, folder: Path, project: str, *, resumed: bool) -> None:
        wandb = import_wandb()
        for name, seconds in WANDB_SECONDS.items():
            os.environ.setdefault(name, seconds)
        make_inside(folder / "wandb")
        id_path = folder / "wandb" / "run_id.txt"
        run_id = read_text(id_path, MAX_ID_BYTES).strip() if resumed and id_path.exists() else None
        name = folder.resolve().name
        terminal, sys.stdin = sys.stdin, io.StringIO()  # without a key, W&B would wait for someone to type it
        try:
            self._run = wandb.init(project=project, name=name, dir=str(folder), id=run_id, resume="allow")
        finally:
            sys.stdin = terminal
        with os.fdopen(open_regular(id_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
            file.write(self._run.id)

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Hand over one row."""
        self._run.log(row, step=step)

    def close(self) -> None:
        """Upload what is left."""
        self._run.finish()


def make_inside(folder: Path) -> None:
    """Make a folder of a run; a link would lead out of the run."""
    if folder.is_symlink():
        raise OSError(f"{folder} is a link: remove it")
    folder.mkdir(exist_ok=True)


def import_wandb() -> Any:
    """Import wandb, or raise an error that says how to install it."""
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("wandb", "wandb", "logging to Weights & Biases") from None
    return wandb
