"""TensorBoard and Weights & Biases: copies of `metrics.jsonl`."""

from __future__ import annotations

import io
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voidrl.errors import MissingExtraError

# W&B's own limits would be 90 seconds for the start and none for the end. Its environment variables win.
WANDB_SECONDS = {"WANDB_INIT_TIMEOUT": "5", "WANDB_FINISH_TIMEOUT": "15"}


class TensorBoard:
    """An event file in a folder.

    torch's `SummaryWriter` would report a full disk from a background thread: with a traceback on the
    terminal, and again at a later call.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(exist_ok=True)
        stamp = f"{time.time_ns() // 10**9:010d}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        self._file = (folder / f"events.out.tfevents.{stamp}").open("xb", buffering=0)
        self._append(file_version="brain.Event:2")
        if purge_step is not None:  # hides the events of a run that was resumed at an earlier step
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._append(step=purge_step, session_log=start)

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Append one event, unbuffered: a kill must not lose rows before the checkpoint."""
        values = [self._summary.Value(tag=key, simple_value=value) for key, value in row.items()]
        self._append(step=step, summary=self._summary(value=values))

    def _append(self, **fields: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = io.BytesIO()
        RecordWriter(record).write(self._event(wall_time=time.time(), **fields).SerializeToString())
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
        id_path = folder / "wandb" / "run_id.txt"
        run_id = id_path.read_text().strip() if resumed and id_path.exists() else None
        name = folder.resolve().name
        terminal, sys.stdin = sys.stdin, io.StringIO()  # without a key, W&B would wait for someone to type it
        try:
            self._run = wandb.init(project=project, name=name, dir=str(folder), id=run_id, resume="allow")
        finally:
            sys.stdin = terminal
        id_path.parent.mkdir(exist_ok=True)
        id_path.write_text(self._run.id)

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Hand over one row."""
        self._run.log(row, step=step)

    def close(self) -> None:
        """Upload what is left."""
        self._run.finish()


def import_wandb() -> Any:
    """Import wandb, or raise an error that says how to install it."""
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("wandb", "wandb", "logging to Weights & Biases") from None
    return wandb
