"""`status.json`: the state of a run as data, written atomically.

On this machine the lock on its folder decides whether a run is alive; the kernel releases it when the process
ends. A run whose file says `running` but whose lock is free was killed before it could write: it reads as
`interrupted`. Locks of other machines may not be visible here, so their runs are alive while their heartbeats
are fresh. A thread writes these, whatever the training loop is doing.
"""

from __future__ import annotations

import dataclasses
import math
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from voidrl import dist
from voidrl.errors import (
    CheckpointError,
    RunFolderError,
    UnreadableError,
    VoidrlError,
    VoidrlWarning,
    printable,
)
from voidrl.runs import locks
from voidrl.runs.checkpoint import Shape, read_json, require_shape, write_json_atomic
from voidrl.system.units import Rates

FILE_NAME = "status.json"
HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 120.0  # age of the heartbeat of a dead run, where its lock cannot be seen
EVALUATED = "eval/"  # begins the names of scores that were evaluated
RATE_SECONDS = 60.0  # over which steps per second are averaged
PRUNING = "OptunaPruning"
"""The callback that ends a run when the pruner of an Optuna study gives its trial up."""
State = Literal["starting", "running", "stopped", "failed", "done", "interrupted"]
SHAPE: Shape = {
    **dict.fromkeys(("state", "heartbeat", "host?", "device?", "score_name?"), str),
    **dict.fromkeys(("steps?", "total_steps?", "ranks?"), int),
    **dict.fromkeys(("rate?", "score?", "score_step?", "checkpoint?"), int | float | None),
}


@dataclass(frozen=True)
class RunStatus:
    """The state of a run."""

    state: State
    """`interrupted` is never written; it is reported if the process ended without writing a final state."""
    steps: int = 0
    """Environment steps at the last heartbeat; exact once the run has stopped, failed or is done."""
    total_steps: int = 0
    checkpoint: int | None = None
    """Step of the newest checkpoint, whether or not its files are still there."""
    signal: str | None = None
    """Signal that stopped it: SIGINT, SIGTERM or SIGHUP."""
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
    rate: float | None = None
    """Environment steps per second in the last minute before the heartbeat, None until updates have begun;
    of a run that has ended, in its last process."""
    score_name: str = ""
    """The metric that is the score: `eval/return`, `eval/success`, `episode/return` or one of coverage."""
    score: float | None = None
    score_step: int | None = None
    """Environment steps at which the score was logged."""
    device: str = ""
    """Training device: `cpu`, or a GPU by its number on the machine, such as `cuda:1`."""
    ranks: int = 1
    """Processes that train it together."""

    @property
    def is_alive(self) -> bool:
        """Whether a process is working on the run."""
        return self.state in ("starting", "running")

    @property
    def is_pruned(self) -> bool:
        """Whether an Optuna study stopped it before its end, as worse than others at that step."""
        return self.state == "stopped" and self.callback == PRUNING

    @property
    def seconds_left(self) -> float | None:
        """Seconds from the heartbeat to the last step at the current rate; None if that is unknown."""
        if not self.is_alive or not self.rate:
            return None
        return max(0, self.total_steps - self.steps) / self.rate

    def age(self, now: datetime) -> float:
        """Seconds since the heartbeat; 0 where the clock of its machine is ahead of this one."""
        return max(0.0, (now - datetime.fromisoformat(self.heartbeat)).total_seconds())


class StatusWriter:
    """Keeps the `status.json` of a run up to date; only the process that holds its lock writes.

    From `start` to the final state, or to `close`, a thread writes a heartbeat every `HEARTBEAT_SECONDS`:
    compilation, an evaluation or a long time between two rows must not make a run look dead. The writer of a
    rank other than the first is silent.
    """

    def __init__(self, folder: Path, *, is_silent: bool = False) -> None:
        self._path, self._is_silent = folder / FILE_NAME, is_silent
        self._status = RunStatus("starting")
        self._warned = False
        self._writing = threading.RLock()  # between the heartbeats and the training loop
        self._ended = threading.Event()
        self._count_steps: Callable[[], int] | None = None
        self._warmup_steps = self._start_steps = 0
        self._first = self._recent = Rates(RATE_SECONDS, 0.0, 0)

    @property
    def is_done(self) -> bool:
        """Whether this process has completed the run."""
        return self._status.state == "done"

    def start(self, total_steps: int, steps: int = 0) -> None:
        """`starting`: this process has acquired the run, at the checkpoint of `steps` if there is one."""
        scored = self._status
        with suppress(RunFolderError):
            before = load_status(self._path) if steps else None
            scored = before if before is not None and (before.score_step or 0) <= steps else scored
        kept = {name: getattr(scored, name) for name in ("score_name", "score", "score_step")}
        self._status = RunStatus(
            "starting", total_steps=total_steps, checkpoint=steps or None, pid=os.getpid(),
            host=socket.gethostname(), started=utc_now(), ranks=dist.current().size, **kept,
        )  # fmt: skip
        self._write("starting", steps=steps)  # nothing is lost yet: an unwritable folder is refused here
        self.close()  # the heartbeats of an earlier start
        self._ended = threading.Event()
        if not self._is_silent:
            self._start_heartbeats()

    def _start_heartbeats(self) -> None:
        name, beat = "voidrl-status", self._beat_until
        threading.Thread(target=beat, args=(self._ended,), name=name, daemon=True).start()

    def track(self, count_steps: Callable[[], int], device: str, warmup_steps: int = 0) -> None:
        """Count the steps with this function from now on, also between two rows.

        The `warmup_steps` before the first update are faster and not part of the rate.
        """
        with self._writing:
            self._count_steps, self._warmup_steps = count_steps, warmup_steps
            now, steps = time.monotonic(), count_steps()
            self._start_steps = steps
            self._first, self._recent = (Rates(each, now, steps) for each in (math.inf, RATE_SECONDS))
            self._status = dataclasses.replace(self._status, device=physical_device(device))

    def beat(self, steps: int) -> None:
        """`running`: called with every logged row; written at once if that is new, else with a heartbeat."""
        if self._status.state != "running":
            self._try_write("running", steps=steps)

    def score(self, name: str, value: float, steps: int) -> None:
        """The latest score, written with the next heartbeat; only another one replaces an evaluation."""
        evaluated = self._status.score_name.startswith(EVALUATED)
        if math.isfinite(value) and (name.startswith(EVALUATED) or not evaluated):
            with self._writing:
                scored = {"score_name": name, "score": value, "score_step": steps}
                self._status = dataclasses.replace(self._status, **scored)  # type: ignore[arg-type]

    def saved(self, steps: int) -> None:
        """`running`, with a new checkpoint."""
        self._try_write("running", steps=steps, checkpoint=steps)

    def end(self, state: State, steps: int, **why: str | None) -> None:
        """`done`, `stopped` by a `signal` or a `callback`, or `failed` with an `error`, as in `RunStatus`."""
        self.close()  # nothing may overwrite the final state
        self._try_write(state, steps=steps, **why)

    def complete(self, total_steps: int, steps: int) -> None:
        """`done`, of a run that had already taken all its steps: the failure came afterwards."""
        with suppress(RunFolderError):  # a damaged status is replaced
            before = load_status(self._path)
            if before is not None and before.state == "done":
                return
        self.start(total_steps, steps)
        self.end("done", steps)

    def close(self) -> None:
        """End the heartbeats: the process gives the run up, whether or not it has written a final state."""
        with self._writing:
            self._ended.set()

    def _beat_until(self, ended: threading.Event) -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            with self._writing, suppress(CheckpointError):  # which the training loop's next one reports
                if ended.is_set():
                    return
                state, steps = self._status.state, self._status.steps
                if self._count_steps is not None:
                    steps = self._count_steps()
                    state = "running" if steps > self._start_steps else state
                self._write(state, steps=steps)

    def _try_write(self, state: State, **changes: Any) -> None:
        """Write if possible: a file for others must neither stop a run nor hide why one failed."""
        try:
            with self._writing:
                self._write(state, **changes)
        except CheckpointError as error:
            if not self._warned:
                self._warned = True
                message = f"{error}; others may see an old state of the run"
                warnings.warn(message, VoidrlWarning, stacklevel=3)

    def _write(self, state: State, **changes: Any) -> None:
        changes |= {"state": state, "heartbeat": utc_now("microseconds")}
        if self._count_steps is not None:
            # Steps per second lately, so that a run that hangs has 0; of one that has ended, all along.
            now, steps = time.monotonic(), changes["steps"]
            rates = self._recent if state in ("starting", "running") else self._first
            if rates is self._recent and steps < self._warmup_steps:
                self._recent, changes["rate"] = Rates(RATE_SECONDS), None
            else:
                changes["rate"] = rates.add(now, steps)[0]
        self._status = dataclasses.replace(self._status, **changes)
        if not self._is_silent:
            write_json_atomic(self._path, dataclasses.asdict(self._status))


def read_status(folder: Path) -> RunStatus | None:
    """Read the status of the run in a folder as of now; None where none was ever written."""
    path, here = folder / FILE_NAME, ("", socket.gethostname())
    status, looked_at = load_status(path), datetime.now(UTC)
    if status is not None:
        elsewhere = status.host not in here and status.age(looked_at) <= STALE_SECONDS
        if status.state == "done" or (status.is_alive and elsewhere):  # the lock says no more
            return status
    # The lock is tried before the file is read again: a process that ends in between has written its state,
    # and one that starts in between has a newer heartbeat.
    held = locks.is_held(folder / locks.RUN_LOCK)
    status = load_status(path)
    if status is None:
        return RunStatus("starting") if held else None
    if held and status.state in ("stopped", "failed"):  # being resumed
        return dataclasses.replace(status, state="starting")
    if status.is_alive and not held:
        visible = held is not None and status.host in here
        age = (looked_at - datetime.fromisoformat(status.heartbeat)).total_seconds()
        if age > (0 if visible else STALE_SECONDS):
            return dataclasses.replace(status, state="interrupted")
    return status


def load_status(path: Path) -> RunStatus | None:
    """Read a `status.json` as it was written; None where there is none."""
    try:
        if not path.is_file():
            return None
        data = read_json(path, "the status of the run")
        require_shape(path, data, SHAPE)
        if data["state"] not in get_args(State) or datetime.fromisoformat(data["heartbeat"]).tzinfo is None:
            raise ValueError(data["state"])
        data |= {name: printable(text) for name, text in data.items() if isinstance(text, str)}
        return RunStatus(**data)
    except UnreadableError:
        raise
    except PermissionError as error:  # of its folder
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    except (CheckpointError, TypeError, ValueError):
        raise RunFolderError(f"{path} is damaged: remove it; the run can be resumed without it") from None


def physical_device(device: str) -> str:
    """`cuda:0` as the machine numbers it, where the process was given only some of its GPUs."""
    kind, _, index = device.partition(":")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if kind == "cuda" and int(index or 0) < len(visible) and visible[int(index or 0)].isdecimal():
        return f"cuda:{visible[int(index or 0)]}"
    return device


def sentence_of(error: Exception) -> str:
    """Return the message of one of our errors, which is a sentence; any other with the name of its class."""
    return str(error) if isinstance(error, VoidrlError) else f"{type(error).__name__}: {error}"


def utc_now(timespec: str = "seconds") -> str:
    """The time in UTC, as files have it."""
    return datetime.now(UTC).isoformat(timespec=timespec)
