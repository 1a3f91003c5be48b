"""Runs the cells of a plan, each in its own process, through an executor.

Any number of commands may work in one folder. A cell belongs to the process that holds its lock; one that
another process holds is looked at again until it is done, or until its lock is free and it is not.
"""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from voidrl.config import to_json
from voidrl.errors import RunInterrupted, VoidrlError
from voidrl.experiments.board import Board
from voidrl.experiments.cell import DONE, HELD
from voidrl.experiments.executors.base import (
    INTERRUPTED,
    POLL_SECONDS,
    Ended,
    Executor,
    Job,
    import_paths,
    log_path,
)
from voidrl.experiments.planner import Cell, Plan
from voidrl.experiments.record import try_to_write_record
from voidrl.experiments.state import require_same_settings, state_of
from voidrl.runs import locks
from voidrl.runs.experiment_record import clear_failure, read_failure, write_failure
from voidrl.system.terminal.signals import StopSignals
from voidrl.system.units import human_seconds, plural

if TYPE_CHECKING:
    from voidrl.experiments.tune import Tuner

APPEAR_SECONDS = 60.0  # until another node's files are visible here, on a network file system
RETRY_SECONDS = 1.0  # between two looks at a cell that another process holds
MAX_LOSSES = 3  # of a cell, without a new checkpoint: the cell itself must be the cause


class Outcome(NamedTuple):
    """Cells that failed or could not start."""

    failed: dict[str, str]
    """Folders of failed cells, and why they failed."""
    waiting: dict[str, str]
    """Folders of cells that did not start, and of the failed ones that they wait for."""

    @property
    def ok(self) -> bool:
        """Whether everything is done."""
        return not self.failed


def run_plan(
    plan: Plan,
    executor: Executor,
    *,
    command: Sequence[str],
    board: Board,
    tuner: Tuner | None = None,
) -> Outcome:
    """Run the missing cells; returns when none is left that can be run. A tuner adds cells."""
    with StopSignals() as stop, board:
        executor.say = board.say
        with executor:
            try:
                return Scheduler(plan, executor, command, board, tuner).work(stop)
            finally:
                if sys.exc_info()[0] is KeyboardInterrupt and not executor.detaches:
                    executor.kill()


class Scheduler:
    """Decides which cell runs next, and judges how it ended."""

    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        command: Sequence[str],
        board: Board,
        tuner: Tuner | None = None,
    ) -> None:
        self.plan, self.executor, self.command, self.board = plan, executor, command, board
        self.tuner = tuner
        attached = executor.attach([cell.folder for cell in plan.cells])
        due = [cell for cell in plan.cells if state_of(cell, plan.path(cell)).kind != "done"]
        self.left = {cell.folder: cell for cell in due}
        self.running = {folder: time.monotonic() for folder in self.left if folder in attached}
        """Submitted cells, and their times of submission."""
        self.unseen: dict[str, tuple[Ended, float]] = {}
        """Cells whose processes report success, and until when their results may appear here."""
        self.failed: dict[str, str] = {}
        self.elsewhere: dict[str, float] = {}  # when to look again
        self.losses: dict[str, tuple[int, int]] = {}  # how often, and at which step
        board.start(len(plan.cells), len(plan.cells) - len(self.left))
        for folder in self.running:
            board.say(f"{folder}: submitted by an earlier command")

    def work(self, stop: StopSignals) -> Outcome:
        """Run the missing cells, until none is left that can be run."""
        while True:
            self.reap(stopping=bool(stop.requested))
            if stop.requested:
                self._end(stop)
            more = self.tuner is not None and self.tuner.refill(self)
            self.launch()
            waiting = {name: cell.source for name, cell in self.left.items() if cell.source in self.failed}
            if not more and not self.running and not {*self.left} - {*waiting} - {*self.failed}:
                return Outcome(self.failed, {name: source or "" for name, source in waiting.items()})
            self.board.draw([(self.left[folder], self.plan.path(folder)) for folder in self.running])
            time.sleep(POLL_SECONDS)

    def reap(self, *, stopping: bool = False) -> None:
        """Judge the cells whose processes have ended; while stopping, some are to be resumed later."""
        now, unseen = time.monotonic(), {folder: ended for folder, (ended, _) in self.unseen.items()}
        for folder, ended in {**unseen, **self.executor.poll()}.items():
            if folder not in self.running:  # attached, but done before
                continue
            cell = self.left[folder]
            state = state_of(cell, self.plan.path(cell))
            unseen_until = self.unseen.setdefault(folder, (ended, now + APPEAR_SECONDS))[1]
            if ended.code == DONE and state.kind != "done" and now < unseen_until:
                continue
            self.unseen.pop(folder, None)
            seconds = now - self.running.pop(folder)
            interrupted, lost = ended.code == INTERRUPTED, ended.lost or (ended.code or 0) < 0
            if state.kind == "done" and (ended.code == DONE or interrupted or lost):
                self._done(folder, f" in {human_seconds(seconds)}")
            elif ended.code == HELD:
                self._leave(folder)
            # A scheduler signals the runs as well: they may stop before this process asks them to.
            elif stopping and (interrupted or lost):
                continue
            elif lost:
                self._lose(cell, ended, state.steps)
            else:
                self._fail(cell, self._describe_end(folder, ended))

    def launch(self) -> None:
        """Submit ready cells while there is room."""
        now = time.monotonic()
        for folder, cell in [*self.left.items()]:
            if folder in self.running or folder in self.failed or self.elsewhere.get(folder, 0.0) > now:
                continue
            if cell.source is not None and cell.source in self.left:
                continue  # not pre-trained yet
            if not self.executor.has_room():
                return
            try:
                self._start(cell)
            except (VoidrlError, OSError) as error:
                self.failed[folder] = str(error)
                self.board.fail(f"{folder}: failed: {error}")

    def _start(self, cell: Cell) -> None:
        """Submit a cell, if no other process has it, and judge it again: another may have done it."""
        folder = self.plan.path(cell)
        lock = locks.acquire(locks.cell_lock_path(self.plan.out, cell.folder))
        if lock is None:
            self._leave(cell.folder)
            return
        locks.release(lock)  # its process takes it, wherever that is
        taken_over = ", taken over" if self.elsewhere.pop(cell.folder, None) is not None else ""
        state = state_of(cell, folder)
        if state.kind == "done":
            self._done(cell.folder, " by another process")
            return
        require_same_settings(cell, folder)
        clear_failure(self.plan.out, cell.folder)
        self.executor.submit(self.make_job(cell))
        self.running[cell.folder] = time.monotonic()
        what = f"{cell.phase}, {cell.config.steps} steps"
        if state.steps:
            what = f"resuming at step {state.steps} of {cell.config.steps}"
        self.board.say(f"{cell.folder}: {what}{taken_over}")

    def make_job(self, cell: Cell) -> Job:
        """The request for the process of a cell."""
        return {
            "command": [*self.command],
            "root": str(self.plan.out.absolute()),
            "cell": cell.folder,
            "config": to_json(cell.config),
            "source": cell.source,
            "evaluation": cell.evaluation,
            "zero_shot": cell.zero_shot,
            "threads": self.plan.experiment.threads,
            "paths": import_paths(),
        }

    def _leave(self, folder: str) -> None:
        """Check again later: another process is working on the cell."""
        if folder not in self.elsewhere:
            holder = locks.holder(locks.cell_lock_path(self.plan.out, folder))
            self.board.say(f"{folder}: left to process {holder}, which is working on it")
        self.elsewhere[folder] = time.monotonic() + RETRY_SECONDS

    def _done(self, folder: str, how: str) -> None:
        del self.left[folder]
        self.elsewhere.pop(folder, None)
        self.board.done(f"{folder}: done{how}")
        try_to_write_record(self.plan, self.command, say=self.board.say)

    def _lose(self, cell: Cell, ended: Ended, steps: int) -> None:
        """Have a cell submitted again, unless it gets no further."""
        losses, before = self.losses.get(cell.folder, (0, -1))
        losses = losses + 1 if steps <= before else 1
        self.losses[cell.folder] = losses, steps
        why = ended.why
        if not why:
            name = signal.Signals(-(ended.code or 0)).name
            hint = "; the kernel does that when memory runs out" if name == "SIGKILL" else ""
            why = f"its process was ended by {name}{hint}"
        if losses < MAX_LOSSES:
            self.board.say(f"{cell.folder}: {why}; it is submitted again")
        else:
            self._fail(cell, f"{why}, {losses} times without a new checkpoint since step {steps}")

    def _fail(self, cell: Cell, why: str) -> None:
        with suppress(VoidrlError, OSError):  # of a full disk
            write_failure(self.plan.out, cell.folder, why)
        self.failed[cell.folder] = f"{why}; see {log_path(self.plan.out, cell.folder)}"
        self.board.fail(f"{cell.folder}: failed: {why}")

    def _describe_end(self, folder: str, ended: Ended) -> str:
        """Why a process ended, in one sentence: its own, or about the exit status."""
        if ended.code == INTERRUPTED:
            return "a signal stopped its process, which wrote a checkpoint if it was training"
        if ended.code is not None and (own := read_failure(self.plan.out, folder)):
            return own
        if ended.code == DONE:
            missing = f"its results are not in {self.plan.path(folder)}"
            return f"its process says that it is done, but {missing}: run the same command again"
        if ended.code is None:
            return ended.why or "its process ended, and nobody knows how"
        return f"its process ended with exit status {ended.code}"

    def _end(self, signals: StopSignals) -> None:
        """Stop all runs with checkpoints, or leave them to their cluster; then raise."""
        resume = f"to resume, run the same command again: {shlex.join(self.command)}"
        number = plural(len(self.running), "run")
        if self.executor.detaches:
            resume += f"; {number} left in the cluster" if self.running else ""
        else:
            if self.running:
                self.board.say(f"stopping {number} with checkpoints; once more stops at once")
            self.executor.stop()
            while self.running:
                self.reap(stopping=True)
                time.sleep(POLL_SECONDS)
        done = f"{len(self.plan.cells) - len(self.left)} of {len(self.plan.cells)} runs done"
        raise RunInterrupted(f"stopped by {signals.requested} with {done}; {resume}")
