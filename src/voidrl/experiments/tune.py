"""`--tune N`: Optuna chooses points of the grid, and prunes those that fall behind.

The cells of a trial are run by the scheduler and its executor like any others. A trial of one run is pruned:
its process reports metrics to the study and stops when the study's pruner gives it up.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from voidrl.errors import VoidrlError
from voidrl.experiments.cell import Job
from voidrl.experiments.measures import cell_value
from voidrl.experiments.plan import Cell
from voidrl.experiments.record import write_record
from voidrl.experiments.run import Scheduler
from voidrl.experiments.study import PointTrial, Tuner
from voidrl.report.scores.measures import is_evaluated
from voidrl.runs.status import is_pruned

LOOK_SECONDS = 1.0  # between two looks at running trials
MOST_OPEN = 16  # trials at a time where an executor takes any number of cells
# Columns of evaluations during training, in the units of the measures of the evaluation after it.
COLUMNS = {
    "return": "eval/return",
    "success": "eval/success",
    "human_normalized": "eval/human_normalized",
}


class TuneScheduler(Scheduler):
    """A scheduler that chooses its cells while it runs."""

    def __init__(self, tuner: Tuner, *arguments: Any) -> None:
        self.tuner = tuner
        self._looked = 0.0
        self._unpruned: set[str] = set()
        """Arms whose trials cannot be pruned, and for which this was reported."""
        super().__init__(*arguments)
        for folder in tuner.pruned & ({*self.left} - {*self.running}):
            del self.left[folder]

    def make_job(self, cell: Cell, lock: int) -> Job:
        """Let the run of a trial that has no other report to the study."""
        job = super().make_job(cell, lock)
        for trial in self.tuner.open:
            if cell in trial.final and (column := self._reported(trial)) is not None:
                job["trial"] = {"study": trial.arm, "id": trial.handle._trial_id, "metric": column}
                break
        return job

    def _reported(self, trial: PointTrial) -> str | None:
        """The column that a trial's run reports; None if it cannot be pruned, which is said once."""
        metric = self.tuner.metric(trial.arm)
        column = pruning_column(trial.final[0], metric)
        if self.plan.experiment.tune.pruner == "none":
            return None
        if len(trial.final) == 1 and column is not None:
            return column
        if trial.arm not in self._unpruned:
            self._unpruned.add(trial.arm)
            why = f"each has {len(trial.final)} runs"
            if column is None:
                why = (
                    f"metrics do not show {metric!r} during training: set log.eval_every_steps below the "
                    f"steps of a run, or metric in [tune] to a column of metrics.jsonl"
                )
            self.board.say(f"{trial.arm}: no trial is pruned, as {why}")
        return None

    def refill(self) -> bool:
        """Judge running trials, and ask for new ones as far as there is room."""
        tuner = self.tuner
        now, open_before = time.monotonic(), [*tuner.open]
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            for trial in [*tuner.open]:
                self._judge(trial)
        for arm in tuner.arms:
            while tuner.may_ask(arm) and self._has_room():
                new = tuner.ask(arm)
                self.board.add(len(new))
                self.left |= {cell.folder: cell for cell in new}
                handle = tuner.open[-1].handle
                self.board.say(
                    f"{arm}: trial {handle.number + 1} of {tuner.number}: {_point_text(handle.params)}"
                )
                if not new:  # a point that was chosen before
                    self._judge(tuner.open[-1])
        if tuner.open != open_before:
            self._write_record()
        return any(self._is_active(trial) for trial in tuner.open) or any(map(tuner.may_ask, tuner.arms))

    def _write_record(self) -> None:
        """Let others see which cells there are."""
        try:
            write_record(self.plan, self.command)
        except VoidrlError as error:  # the runs themselves exist
            self.board.say(str(error))

    def _has_room(self) -> bool:
        """Whether a new trial would be started at once: the later it is chosen, the more is known."""
        waiting = [
            cell
            for folder, cell in self.left.items()
            if folder not in self.running
            and folder not in self.failed
            and folder not in self.elsewhere
            and (cell.source is None or cell.source not in self.left)
        ]
        active = [trial for trial in self.tuner.open if self._is_active(trial)]
        takes_more = self.executor.has_room() and not self.executor.has_queue()
        return not waiting and len(active) < MOST_OPEN and takes_more

    def _is_active(self, trial: PointTrial) -> bool:
        """Whether none of its cells has failed; a failed one is tried again by the next command."""
        return not any(cell.folder in self.failed or cell.source in self.failed for cell in trial.cells)

    def _judge(self, trial: PointTrial) -> None:
        """End a trial that is done or was pruned."""
        if not self._is_active(trial) or any(cell.folder in self.running for cell in trial.final):
            return
        if any(is_pruned(self.plan.path(cell)) for cell in trial.final):
            self.tuner.tell(trial, None)
            self.board.say(f"{trial.arm}: trial {trial.handle.number + 1} is pruned")
            for cell in trial.final:
                self.left.pop(cell.folder, None)
            return
        if any(cell.folder in self.left for cell in trial.cells):
            return
        metric = self.tuner.metric(trial.arm)
        values = [cell_value(cell, self.plan.path(cell), metric) for cell in trial.final]
        known = [float(value) for value in values if value is not None]
        if len(known) == len(values):
            self.tuner.tell(trial, float(np.mean(known)))
            return
        cell = trial.final[values.index(None)]
        self.failed[cell.folder] = f"its metrics have no {metric!r}: set metric in [tune] to one of theirs"
        self.board.fail(f"{cell.folder}: {self.failed[cell.folder]}")


def pruning_column(cell: Cell, metric: str) -> str | None:
    """The column of the metrics that shows a measure, in its unit, during training; None where none does."""
    evaluates = bool(cell.config.log.eval_every_steps)
    if not is_evaluated(metric):
        return metric if evaluates or not metric.startswith("eval/") else None
    if evaluates:
        return COLUMNS.get(metric)
    return "episode/return" if metric == "return" else None


def _point_text(params: Mapping[str, Any]) -> str:
    texts = {name: f"{v:.4g}" if isinstance(v, float) else str(v) for name, v in params.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items())
