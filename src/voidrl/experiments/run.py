"""Has the cells of a plan done, each by a process of its own, several at a time; what is done is left alone.

Any number of these may work in one folder. A cell belongs to whoever holds its lock. One that another process
holds is left to it and looked at again until it is done, or until its lock comes free and it is not.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from voidrl.config import to_json
from voidrl.device import pick_device
from voidrl.errors import RunFolderError, RunInterrupted, VoidrlError
from voidrl.experiments import cell as child_module
from voidrl.experiments.board import Board, Running
from voidrl.experiments.cell import DONE, INTERRUPTED, Job
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.state import State, differences, state_of
from voidrl.loop import StopSignals
from voidrl.machine import whole_cores
from voidrl.runs import locks
from voidrl.units import human_seconds

POLL_SECONDS = 0.1
RETRY_SECONDS = 1.0  # between two looks at a cell that another process holds
LOGS = "logs"


@dataclass(frozen=True)
class Failure:
    """A cell that could not be done."""

    cell: Cell
    why: str
    log: Path | None


@dataclass(frozen=True)
class Outcome:
    """How it went."""

    failed: list[Failure] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    """Cells that were not begun, by folder, and the folder of the failed one that they wait for."""

    @property
    def ok(self) -> bool:
        """Whether all is done."""
        return not self.failed


def log_path(out: Path, folder: str) -> Path:
    """What the process of a cell prints."""
    return out / LOGS / f"{folder}.log"


def run_plan(plan: Plan, *, jobs: int = 1, command: Sequence[str], board: Board) -> Outcome:
    """Do what is missing; returns when nothing is left that could be done."""
    place = pick_device(plan.request.device)
    threads = plan.experiment.threads
    if threads is None and place.type == "cpu" and jobs > 1:
        threads = max(1, whole_cores() // jobs)
    runner = _Runner(plan, jobs, command, board, threads)
    with StopSignals() as stop, board:
        try:
            return runner.work(stop)
        finally:
            runner.end(at_once=sys.exc_info()[0] is KeyboardInterrupt)


class _Child:
    """The process of a cell."""

    def __init__(
        self, cell: Cell, plan: Plan, command: Sequence[str], threads: int | None, lock: int
    ) -> None:
        self.cell, self.folder = cell, plan.path(cell)
        self.log, self.closed = log_path(plan.out, cell.folder), False
        self.began = time.monotonic()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        job: Job = {
            "command": [*command],
            "folder": str(self.folder),
            "phase": cell.phase,
            "config": to_json(cell.config),
            "source": None if cell.source is None else str(plan.path(cell.source)),
            "evaluation": cell.evaluation,
            "threads": threads,
            "lock": lock,
            "path": sys.path,
        }
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        if threads is not None:
            variables["OMP_NUM_THREADS"] = str(threads)
        with self.log.open("ab") as log:
            head = f"{datetime.now(UTC).isoformat(timespec='seconds')} {shlex.join(command)}\n"
            log.write(head.encode())
            log.flush()
            self.log_began = log.tell()
            # A session of its own: a terminal's Ctrl-C comes to the parent alone, which passes it on.
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", child_module.__name__],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                env={**os.environ, **variables},
                start_new_session=True,
            )
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already: its exit status tells
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Let go of the pipe by which it knows that we live and want it to go on."""
        self.closed = True
        with suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()

    def failure(self) -> str:
        """Why it ended, in a sentence: its own, or that of the signal that ended it."""
        code = self.process.returncode
        if code < 0:
            name = signal.Signals(-code).name
            hint = "; the kernel does that when memory runs out" if code == -signal.SIGKILL else ""
            return f"its process was ended by {name}{hint}"
        with self.log.open("rb") as log:
            log.seek(self.log_began)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
        said = [line.removeprefix("voidrl: ") for line in lines if line.startswith("voidrl: ")]
        last = next((line for line in reversed(lines) if line), f"it ended with exit status {code}")
        return said[-1] if said else last


class _Runner:
    def __init__(
        self, plan: Plan, jobs: int, command: Sequence[str], board: Board, threads: int | None
    ) -> None:
        self.plan, self.jobs, self.command, self.board, self.threads = plan, jobs, command, board, threads
        states = {cell.folder: state_of(cell, plan.path(cell)) for cell in plan.cells}
        self.left = {cell.folder: cell for cell in plan.cells if states[cell.folder].kind != "done"}
        self.running: dict[str, _Child] = {}
        self.failed: dict[str, Failure] = {}
        self.elsewhere: dict[str, float] = {}  # when to look again
        board.begin(len(plan.cells), len(plan.cells) - len(self.left))

    def work(self, stop: StopSignals) -> Outcome:
        while True:
            self._reap()
            if stop.requested:
                return self._stop(stop)
            self._launch()
            if not self.running and not self._can_go_on():
                break
            self._draw()
            time.sleep(POLL_SECONDS)
        waiting = {folder: source for folder in self.left if (source := self._broken_source(folder))}
        return Outcome([*self.failed.values()], waiting)

    def _can_go_on(self) -> bool:
        return any(folder not in self.failed and not self._broken_source(folder) for folder in self.left)

    def _broken_source(self, folder: str) -> str | None:
        source = self.left[folder].source
        return source if source in self.failed else None

    def _reap(self) -> None:
        for folder, child in [*self.running.items()]:
            if child.process.poll() is None:
                continue
            del self.running[folder]
            asked_to_stop = child.closed
            child.close()
            if child.process.returncode == DONE:
                self._done(folder, f" in {human_seconds(time.monotonic() - child.began)}")
            elif not (asked_to_stop and child.process.returncode == INTERRUPTED):
                self._fail(child.cell, child.failure(), child.log)

    def _launch(self) -> None:
        now = time.monotonic()
        for folder, cell in [*self.left.items()]:
            if len(self.running) >= self.jobs:
                return
            if folder in self.running or folder in self.failed or self.elsewhere.get(folder, 0.0) > now:
                continue
            if cell.source is not None and cell.source in self.left:
                continue  # not pre-trained yet
            try:
                self._begin(cell)
            except (VoidrlError, OSError) as error:
                self._fail(cell, str(error), None)

    def _begin(self, cell: Cell) -> None:
        """Take a cell, if no other process has it, and see again what is there: it may have been done."""
        path, folder = locks.lock_path(self.plan.out, cell.folder), self.plan.path(cell)
        lock = locks.take(path)
        if lock is None:
            if cell.folder not in self.elsewhere:
                self.board.say(f"{cell.folder}: left to process {locks.holder(path)}, which is at it")
            self.elsewhere[cell.folder] = time.monotonic() + RETRY_SECONDS
            return
        try:
            taken_over = self.elsewhere.pop(cell.folder, None) is not None
            state = state_of(cell, folder)
            if state.kind == "done":
                self._done(cell.folder, " by another process")
                return
            config = folder / "config.json"
            if config.is_file() and (differ := differences(cell, config)):
                raise RunFolderError(f"{folder} holds a run with other settings: {', '.join(differ)}")
            self.running[cell.folder] = _Child(cell, self.plan, self.command, self.threads, lock)
            self.board.say(f"{cell.folder}: {_how(cell, state)}{', taken over' if taken_over else ''}")
        finally:
            locks.release(lock)

    def _done(self, folder: str, how: str) -> None:
        del self.left[folder]
        self.elsewhere.pop(folder, None)
        self.board.done(f"{folder}: done{how}")

    def _fail(self, cell: Cell, why: str, log: Path | None) -> None:
        self.failed[cell.folder] = Failure(cell, why, log)
        self.board.fail(f"{cell.folder}: failed: {why}")

    def _draw(self) -> None:
        running = [Running(child.cell, child.folder) for child in self.running.values()]
        self.board.draw(running, len(self.elsewhere))

    # The end

    def _stop(self, stop: StopSignals) -> Outcome:
        """Children save what they have; the same command goes on from there."""
        if self.running:
            self.board.say(f"stopping: {len(self.running)} runs write checkpoints; once more stops at once")
        for child in self.running.values():
            child.close()
        while self.running:
            self._reap()
            time.sleep(POLL_SECONDS)
        done = len(self.plan.cells) - len(self.left)
        raise RunInterrupted(
            f"stopped by {stop.requested} with {done} of {len(self.plan.cells)} runs done; the same command "
            f"goes on: {shlex.join(self.command)}"
        )

    def end(self, *, at_once: bool) -> None:
        """Whatever happened here, no child is left behind."""
        for child in self.running.values():
            if at_once:
                child.process.kill()
            child.close()
        for child in self.running.values():
            child.process.wait()


def _how(cell: Cell, state: State) -> str:
    if state.kind == "trained":
        return "evaluating"
    if state.step:
        return f"going on at step {state.step} of {cell.config.steps}"
    return f"{cell.phase}, {cell.config.steps} steps"
