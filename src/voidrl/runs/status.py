"""`status.json`: the state of a run as data, written atomically.

The lock on its folder decides whether a run is alive; the kernel releases it when the process ends. A run
whose file says `running` but whose lock is free was killed before it could write: it reads as `interrupted`.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from voidrl.checkpoint import read_json, write_json_atomic
from voidrl.errors import CheckpointError, RunFolderError, VoidrlError, VoidrlWarning
from voidrl.runs import locks

FILE_NAME = "status.json"
HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 600.0  # age of the heartbeat of a dead run, where the file system has no locks
State = Literal["starting", "running", "stopped", "failed", "done", "interrupted"]


@dataclass(frozen=True)
class RunStatus:
    """What a run is doing, or how it ended."""

    state: State
    """`interrupted` is never written; it is reported if the process ended without writing a final state."""
    steps: int = 0
    """Environment steps at the last heartbeat; exact once the run has stopped, failed or is done."""
    total_steps: int = 0
    checkpoint: int | None = None
    """Step of the newest checkpoint, whether or not its files are still there."""
    signal: str | None = None
    """What stopped it: SIGINT, SIGTERM or SIGHUP."""
    callback: str | None = None
    """The callback that stopped it."""
    error: str | None = None
    """Why it failed, in one sentence."""
    pid: int = 0
    host: str = ""
    started: str = ""
    """When this process acquired the run, in UTC; with host and pid it identifies the process uniquely."""
    heartbeat: str = ""
    """When the file was last written, in UTC."""

    @property
    def is_alive(self) -> bool:
        """Whether a process is working on the run."""
        return self.state in ("starting", "running")


class StatusWriter:
    """Keeps the `status.json` of a run up to date; only the process that holds its lock writes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._status = RunStatus("starting", pid=os.getpid(), host=socket.gethostname())
        self._last_write = 0.0
        self._warned = False

    @property
    def is_done(self) -> bool:
        """Whether this process has completed the run."""
        return self._status.state == "done"

    def start(self, total_steps: int, steps: int = 0) -> None:
        """`starting`: this process has acquired the run, at the checkpoint of `steps` if there is one."""
        fresh = {"signal": None, "callback": None, "error": None, "pid": os.getpid(), "started": utc_now()}
        self._update("starting", steps=steps, total_steps=total_steps, checkpoint=steps or None, **fresh)
        self._write()  # nothing is lost yet: a folder that cannot be written is refused here

    def beat(self, steps: int) -> None:
        """`running`: called with every logged row, written every `HEARTBEAT_SECONDS`."""
        if self._status.state != "running" or time.monotonic() - self._last_write > HEARTBEAT_SECONDS:
            self._try_write("running", steps=steps)

    def saved(self, steps: int) -> None:
        """`running`, with a new checkpoint."""
        self._try_write("running", steps=steps, checkpoint=steps)

    def stop(self, steps: int, *, signal: str | None = None, callback: str | None = None) -> None:
        """`stopped`: by a signal or by a callback, after a checkpoint."""
        self._try_write("stopped", steps=steps, signal=signal, callback=callback)

    def fail(self, error: Exception, steps: int) -> None:
        """`failed`: with the error's sentence."""
        self._try_write("failed", steps=steps, error=sentence_of(error))

    def finish(self, steps: int) -> None:
        """`done`: all steps were taken, and a checkpoint written."""
        self._try_write("done", steps=steps)

    def complete(self, total_steps: int, steps: int) -> None:
        """`done`, of a run that had taken all its steps before: what failed came afterwards."""
        with suppress(RunFolderError):  # a damaged status is replaced
            before = read_status(self._path.parent)
            if before is not None and before.state == "done":
                return
        fresh = {"total_steps": total_steps, "checkpoint": steps, "started": utc_now()}
        self._try_write("done", steps=steps, **fresh)

    def _try_write(self, state: State, **changes: Any) -> None:
        """Write if possible: a file for others must neither stop a run nor hide why one failed."""
        self._update(state, **changes)
        try:
            self._write()
        except CheckpointError as error:
            self._last_write = time.monotonic()
            if not self._warned:
                self._warned = True
                warnings.warn(f"{error}; others may see an old state of the run", VoidrlWarning, stacklevel=3)

    def _update(self, state: State, **changes: Any) -> None:
        changes |= {"state": state, "heartbeat": utc_now("microseconds")}
        self._status = dataclasses.replace(self._status, **changes)

    def _write(self) -> None:
        write_json_atomic(self._path, dataclasses.asdict(self._status))
        self._last_write = time.monotonic()


def read_status(folder: Path) -> RunStatus | None:
    """Read the status of the run in a folder as of now; None where nothing was ever written."""
    # The lock is tried before the file is read: a run that starts in between has a newer heartbeat.
    looked_at = datetime.now(UTC)
    held = locks.is_held(folder / locks.RUN_LOCK)
    path = folder / FILE_NAME
    if not path.is_file():
        return RunStatus("starting") if held else None
    try:
        status = RunStatus(**read_json(path, "the status of the run"))
        heartbeat = datetime.fromisoformat(status.heartbeat)
        if status.state not in get_args(State) or heartbeat.tzinfo is None:
            raise ValueError(status.state)
    except (CheckpointError, TypeError, ValueError):
        raise RunFolderError(f"{path} is damaged: remove it; the run can be resumed without it") from None
    if held and status.state in ("stopped", "failed"):  # being resumed
        return dataclasses.replace(status, state="starting")
    oldest = looked_at - timedelta(seconds=STALE_SECONDS if held is None else 0)
    if status.is_alive and not held and heartbeat < oldest:
        return dataclasses.replace(status, state="interrupted")
    return status


def sentence_of(error: Exception) -> str:
    """Return the message of one of our errors, which is a sentence; any other with the name of its class."""
    return str(error) if isinstance(error, VoidrlError) else f"{type(error).__name__}: {error}"


def utc_now(timespec: str = "seconds") -> str:
    """The time in UTC, as files have it."""
    return datetime.now(UTC).isoformat(timespec=timespec)
