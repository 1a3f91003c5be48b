"""Do the cells of a plan, each in its own process, several at a time.

Any number of commands may work in one folder. A cell belongs to the process that holds its lock; one that
another process holds is looked at again until it is done, or until its lock is free and it is not.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from voidrl.config import to_json
from voidrl.device import pick_device
from voidrl.errors import RunFolderError, RunInterrupted, VoidrlError
from voidrl.experiments import cell as cell_module
from voidrl.experiments.board import Board
from voidrl.experiments.cell import DONE, INTERRUPTED, Job
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.record import update_record
from voidrl.experiments.state import CellState, differences, state_of
from voidrl.machine import whole_cores
from voidrl.platforms import require_workers
from voidrl.runs import locks
from voidrl.runs.experiment_record import clear_failure, read_failure, write_failure
from voidrl.terminal.signals import StopSignals, end_with_process
from voidrl.units import human_seconds

POLL_SECONDS = 0.1
RETRY_SECONDS = 1.0  # between two looks at a cell that another process holds


@dataclass(frozen=True)
class Outcome:
    """What could not be done."""

    failed: dict[str, str]
    """Folders of failed cells, and why they failed."""
    waiting: dict[str, str]
    """Folders of cells that did not start, and of the failed ones that they wait for."""

    @property
    def ok(self) -> bool:
        """Whether everything is done."""
        return not self.failed


def run_plan(plan: Plan, *, jobs: int = 1, command: Sequence[str], board: Board) -> Outcome:
    """Run the missing cells; returns when none is left that can be run."""
    require_workers("an experiment", "start its runs one by one with voidrl pretrain, finetune and train")
    device = pick_device(plan.request.device)
    threads = plan.experiment.threads
    if threads is None and device.type == "cpu" and jobs > 1:
        threads = max(1, whole_cores() // jobs)
    runner = _Runner(plan, jobs, command, board, threads)
    with StopSignals() as stop, board:
        try:
            return runner.work(stop)
        finally:
            runner.end(kill=sys.exc_info()[0] is KeyboardInterrupt)


class _Child:
    """The process of a cell."""

    def __init__(
        self, cell: Cell, plan: Plan, command: Sequence[str], threads: int | None, lock: int
    ) -> None:
        self.cell, self.root = cell, plan.out
        self.log = plan.out / "logs" / f"{cell.folder}.log"
        self.started = time.monotonic()
        clear_failure(plan.out, cell.folder)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        job: Job = {
            "command": [*command],
            "root": str(plan.out),
            "cell": cell.folder,
            "phase": cell.phase,
            "config": to_json(cell.config),
            "source": None if cell.source is None else str(plan.path(cell.source)),
            "evaluation": cell.evaluation,
            "threads": threads,
            "lock": lock,
        }
        variables = {"PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)}
        if plan.experiment.threads is not None:  # otherwise `threads` is a limit, within which a run chooses
            variables["OMP_NUM_THREADS"] = str(threads)
        with self.log.open("ab") as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {shlex.join(command)}\n".encode())
            log.flush()
            # In its own session: a terminal's Ctrl-C goes to the parent alone, which passes it on.
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", cell_module.__name__],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                env={**os.environ, **variables},
                start_new_session=True,
            )
        end_with_process(self.process, group=True)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, and its exit status says how
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Close the pipe, which asks the process to stop."""
        with suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()

    def failure(self) -> str:
        """Why it ended, in one sentence: its own, or about the signal or exit status that ended it."""
        code = self.process.returncode
        if code == INTERRUPTED:
            return "a signal stopped its process, which wrote a checkpoint if it was training"
        if code >= 0 and (own := read_failure(self.root, self.cell.folder)):
            return own
        why = f"its process ended with exit status {code}"
        if code < 0:
            hint = "; the kernel does that when memory runs out" if code == -signal.SIGKILL else ""
            why = f"its process was ended by {signal.Signals(-code).name}{hint}"
        with suppress(VoidrlError, OSError):
            write_failure(self.root, self.cell.folder, why)
        return why


class _Runner:
    def __init__(
        self, plan: Plan, jobs: int, command: Sequence[str], board: Board, threads: int | None
    ) -> None:
        self.plan, self.jobs, self.command, self.board, self.threads = plan, jobs, command, board, threads
        states = {cell.folder: state_of(cell, plan.path(cell)) for cell in plan.cells}
        self.left = {cell.folder: cell for cell in plan.cells if states[cell.folder].kind != "done"}
        self.running: dict[str, _Child] = {}
        self.failed: dict[str, str] = {}
        self.elsewhere: dict[str, float] = {}  # when to look again
        board.start(len(plan.cells), len(plan.cells) - len(self.left))

    def work(self, stop: StopSignals) -> Outcome:
        while True:
            self._reap(stop)
            if stop.requested:
                self._stop(stop)
            self._launch()
            sources = {name: cell.source or "" for name, cell in self.left.items()}
            waiting = {name: source for name, source in sources.items() if source in self.failed}
            if not self.running and not {*self.left} - {*waiting} - {*self.failed}:
                return Outcome(self.failed, waiting)
            running = [(child.cell, self.plan.path(child.cell)) for child in self.running.values()]
            self.board.draw(running, len(self.elsewhere))
            time.sleep(POLL_SECONDS)

    def _reap(self, stop: StopSignals) -> None:
        for folder, child in [*self.running.items()]:
            if child.process.poll() is None:
                continue
            del self.running[folder]
            child.close()
            interrupted = child.process.returncode == INTERRUPTED
            is_done = interrupted and state_of(child.cell, self.plan.path(child.cell)).kind == "done"
            if is_done or child.process.returncode == DONE:
                self._done(folder, f" in {human_seconds(time.monotonic() - child.started)}")
            # A scheduler signals the runs as well: they may stop before this process asks them to.
            elif not (interrupted and stop.requested):
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
                self._start(cell)
            except (VoidrlError, OSError) as error:
                self._fail(cell, str(error), None)

    def _start(self, cell: Cell) -> None:
        """Take a cell, if no other process has it, and judge it again: another may have done it."""
        path, folder = locks.cell_lock_path(self.plan.out, cell.folder), self.plan.path(cell)
        lock = locks.acquire(path)
        if lock is None:
            if cell.folder not in self.elsewhere:
                self.board.say(f"{cell.folder}: left to process {locks.holder(path)}, which is working on it")
            self.elsewhere[cell.folder] = time.monotonic() + RETRY_SECONDS
            return
        try:
            taken_over = self.elsewhere.pop(cell.folder, None) is not None
            state = state_of(cell, folder)
            if state.kind == "done":
                self._done(cell.folder, " by another process")
                return
            if differ := differences(cell, folder):
                raise RunFolderError(f"{folder} holds a run with other settings: {', '.join(differ)}")
            self.running[cell.folder] = _Child(cell, self.plan, self.command, self.threads, lock)
            self.board.say(f"{cell.folder}: {_describe(cell, state)}{', taken over' if taken_over else ''}")
        finally:
            locks.release(lock)

    def _done(self, folder: str, how: str) -> None:
        del self.left[folder]
        self.elsewhere.pop(folder, None)
        self.board.done(f"{folder}: done{how}")
        try:
            update_record(self.plan)
        except VoidrlError as error:  # the run is done all the same
            self.board.say(str(error))

    def _fail(self, cell: Cell, why: str, log: Path | None) -> None:
        self.failed[cell.folder] = why if log is None else f"{why}; see {log}"
        self.board.fail(f"{cell.folder}: failed: {why}")

    def _stop(self, stop: StopSignals) -> None:
        """Let every run write a checkpoint, then raise; the same command resumes them."""
        if self.running:
            self.board.say(f"stopping: {len(self.running)} runs write checkpoints; once more stops at once")
        for child in self.running.values():
            child.close()
        while self.running:
            self._reap(stop)
            time.sleep(POLL_SECONDS)
        done = len(self.plan.cells) - len(self.left)
        raise RunInterrupted(
            f"stopped by {stop.requested} with {done} of {len(self.plan.cells)} runs done; to resume, run "
            f"the same command again: {shlex.join(self.command)}"
        )

    def end(self, *, kill: bool) -> None:
        """Leave no child behind, whatever happened here."""
        for child in self.running.values():
            if kill:
                child.process.kill()
            child.close()
        for child in self.running.values():
            child.process.wait()


def _describe(cell: Cell, state: CellState) -> str:
    if state.kind == "trained":
        return "evaluating"
    if state.steps:
        return f"resuming at step {state.steps} of {cell.config.steps}"
    return f"{cell.phase}, {cell.config.steps} steps"
