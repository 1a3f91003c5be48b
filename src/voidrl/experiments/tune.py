"""`--tune N`: Optuna chooses points of the grid, and prunes those that fall behind.

The cells of a trial are run by the scheduler and its executor like any others. This process reads their
metrics, reports them to the study, and asks the cells of a pruned trial to end.

A pruner sees a trial with several cells as one curve: the cells follow each other in their order,
each at its own steps after those before it, with the mean over the ends of those before and its own value so
far. All of these values are of one column of the metrics, in the unit of the measure.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from voidrl.errors import VoidrlError
from voidrl.experiments.measures import cell_value
from voidrl.experiments.plan import Cell
from voidrl.experiments.prune import request_prune
from voidrl.experiments.record import write_record
from voidrl.experiments.run import Scheduler
from voidrl.experiments.study import PointTrial, Tuner
from voidrl.report.scores.measures import is_evaluated
from voidrl.runs.metrics import read_metrics

LOOK_SECONDS = 1.0  # between two looks at the metrics of running trials
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
        self._drop_pruned()
        for folder in tuner.pruned & {*self.running}:  # in a cluster, by a command that was killed
            self._request_prune(folder)

    def _drop_pruned(self) -> None:
        """Forget pruned cells, except those that are still running."""
        for folder in self.tuner.pruned & ({*self.left} - {*self.running}):
            del self.left[folder]
            self.elsewhere.pop(folder, None)

    def _write_record(self) -> None:
        """Let others see which cells there are."""
        try:
            write_record(self.plan, self.command)
        except VoidrlError as error:  # the runs themselves exist
            self.board.say(str(error))

    def refill(self) -> bool:
        """Judge running trials, and ask for new ones as far as there is room."""
        tuner = self.tuner
        now, open_before = time.monotonic(), [*tuner.open]
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            for trial in [*tuner.open]:
                self._judge(trial)
        self._drop_pruned()
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
            self.board.add(-tuner.drop_unstarted())
            self._write_record()
        return any(self._is_active(trial) for trial in tuner.open) or any(map(tuner.may_ask, tuner.arms))

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
        takes_more = self.executor.has_room("") and not self.executor.has_queue()
        return not waiting and len(active) < MOST_OPEN and takes_more

    def _is_active(self, trial: PointTrial) -> bool:
        """Whether none of its cells has failed; a failed one is tried again by the next command."""
        return not any(cell.folder in self.failed or cell.source in self.failed for cell in trial.cells)

    def _judge(self, trial: PointTrial) -> None:
        """Report a trial's new values; end it if it is done or falls behind."""
        if not self._is_active(trial):
            return
        metric, done = self.tuner.metric(trial.arm), all(cell.folder not in self.left for cell in trial.cells)
        if any(cell.folder in self.tuner.pruned for cell in trial.final):  # this point was pruned before
            self.tuner.prune(trial)
            return
        if done:
            values = [cell_value(cell, self.plan.path(cell), metric) for cell in trial.final]
            known = [float(value) for value in values if value is not None]
            if len(known) == len(values):
                for step, value in self._curve(trial, metric):  # rows since the last look
                    self._report(trial, step, value)
                if trial.reported < 0:
                    self._say_unpruned(trial.arm)
                self.tuner.complete(trial, float(np.mean(known)))
                return
            cell = trial.final[values.index(None)]
            self.failed[cell.folder] = (
                f"its metrics have no {metric!r}: set metric in [tune] to one of theirs"
            )
            self.board.fail(f"{cell.folder}: {self.failed[cell.folder]}")
            return
        end = sum(cell.config.steps for cell in trial.final)
        for step, value in self._curve(trial, metric):
            # At its end, there is nothing left to prune.
            if self._report(trial, step, value) and step < end and trial.handle.should_prune():
                self._prune(trial)
                return

    def _report(self, trial: PointTrial, step: int, value: float) -> bool:
        """Report a value to the study, if it is a new one."""
        if step <= trial.reported:
            return False
        trial.handle.report(value, step)
        trial.reported = step
        return True

    def _prune(self, trial: PointTrial) -> None:
        self.tuner.prune(trial)
        self.board.say(
            f"{trial.arm}: trial {trial.handle.number + 1} is pruned at step {int(trial.reported)}"
        )
        for folder in self.tuner.pruned & {*self.running}:
            self._request_prune(folder)

    def _say_unpruned(self, arm: str) -> None:
        """Say once that no trial of an arm can be judged before its end."""
        if arm in self._unpruned or self.plan.experiment.tune.pruner == "none":
            return
        self._unpruned.add(arm)
        metric = self.tuner.metric(arm)
        self.board.say(
            f"{arm}: no trial is pruned, as metrics do not show {metric!r} during training: set "
            f"log.eval_every_steps below the steps of a run, or metric in [tune] to a column of metrics.jsonl"
        )

    def _request_prune(self, folder: str) -> None:
        try:
            request_prune(self.plan.out, folder)
        except OSError as error:  # it then runs to its end
            self.board.say(f"{folder} cannot be asked to stop ({error})")

    def _curve(self, trial: PointTrial, metric: str) -> Iterator[tuple[int, float]]:
        """The steps and values of a trial so far, one cell after the other."""
        before: list[float] = []
        start = 0
        for cell in trial.final:
            folder = self.plan.path(cell)
            column = _column(cell, metric)
            if column is None:
                self._say_unpruned(trial.arm)
                return
            path = folder / "metrics.jsonl"
            size = path.stat().st_size if path.is_file() else 0
            if trial.sizes.get(cell.folder) != size:
                trial.sizes[cell.folder] = size
                for step, value in _values(cell, column, folder):
                    trial.latest[cell.folder] = value
                    yield start + step, float(np.mean([*before, value]))
            if cell.folder in self.left or cell.folder not in trial.latest:
                return
            before.append(trial.latest[cell.folder])
            start += cell.config.steps


def _column(cell: Cell, metric: str) -> str | None:
    """The column of the metrics that shows a measure, in its unit, during training; None where none does."""
    if not is_evaluated(metric):
        return metric
    if cell.config.log.eval_every_steps:
        return COLUMNS.get(metric)
    return "episode/return" if metric == "return" else None


def _values(cell: Cell, column: str, folder: Path) -> list[tuple[int, float]]:
    """The values of a column by step."""
    rows: list[dict[str, Any]] = []
    with suppress(VoidrlError):  # nothing is logged yet
        rows = read_metrics(folder)
    return [
        (min(row["step"], cell.config.steps), float(row[column]))
        for row in rows
        # At step 0 a fine-tuning evaluates the pre-trained agent.
        if row["step"] > 0 and isinstance(row.get(column), int | float)
    ]


def _point_text(params: Mapping[str, Any]) -> str:
    texts = {name: f"{v:.4g}" if isinstance(v, float) else str(v) for name, v in params.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items())
