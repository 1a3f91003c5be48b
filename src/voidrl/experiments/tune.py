"""`--tune N`: Optuna chooses points of the grid.

Each method with a grid has a study in `study.journal`. A trial is a point of the grid: its cells in all tasks
and with all seeds, which the scheduler runs like any others. A trial that is open when the command ends stays
in the study, and repeating the command resumes its cells.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from voidrl.errors import ConfigError, RunFolderError, VoidrlError
from voidrl.experiments.grid import Axis
from voidrl.experiments.planner import Cell, Plan
from voidrl.experiments.record import try_to_write_record
from voidrl.experiments.state import cell_value, require_same_settings
from voidrl.runs import locks
from voidrl.runs.evaluations import is_evaluated
from voidrl.system.units import value_text

if TYPE_CHECKING:
    from voidrl.experiments.run import Scheduler

FILE_NAME = "study.journal"
STARTUP_TRIALS = 4  # drawn at random, at least
MOST_OPEN = 16  # trials at a time where an executor takes any number of cells


class PointTrial(NamedTuple):
    """A point that Optuna has chosen."""

    arm: str
    handle: Any
    """The `optuna.Trial`."""
    cells: list[Cell]


@contextmanager
def open_tuner(plan: Plan) -> Iterator[Tuner]:
    """Tune in the plan's folder, as the only command that does."""
    lock = locks.acquire(locks.cell_lock_path(plan.out, "tune"))
    if lock is None:
        raise RunFolderError(
            f"another command with --tune is working in {plan.out}: wait for it, or use another --out"
        )
    try:
        yield Tuner(plan)
    finally:
        locks.release(lock)


class Tuner:
    """The studies of an experiment, and the trials that are open."""

    def __init__(self, plan: Plan) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend

        assert plan.request.tune is not None
        self.plan, self.number, self.metric = plan, plan.request.tune, plan.experiment.measures[0]
        self.axes = {arm: axes for arm, axes in plan.axes.items() if axes}
        self.counts = dict.fromkeys(self.axes, 0)
        """Trials of each method, open or ended."""
        self.open: list[PointTrial] = []
        for arm in self.axes:
            if is_evaluated(self.metric) and plan.experiment.arms[arm].evaluation is None:
                raise ConfigError(
                    f"--tune {self.number} cannot compare points of method {arm!r} by {self.metric!r}, as "
                    f"its runs are not evaluated: set measures to a column of metrics.jsonl, such as "
                    f'["coverage/cells"] or ["episode/return"]'
                )
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path = plan.out / FILE_NAME
        try:
            _cut_torn_line(path)
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
            self.studies = {arm: self._study(storage, arm) for arm in self.axes}
        except VoidrlError:
            raise
        except Exception as error:  # whatever Optuna raises where it did not write the content
            raise RunFolderError(
                f"{path} cannot be read as an Optuna study ({error}): remove it to start the search again, "
                f"which keeps the runs, or use another --out"
            ) from error
        for arm, study in self.studies.items():  # earlier trials: open ones are resumed
            for frozen in study.get_trials(deepcopy=False):
                if frozen.state != optuna.trial.TrialState.FAIL and len(frozen.params) == len(self.axes[arm]):
                    trial = self._add(arm, optuna.trial.Trial(study, frozen._trial_id))
                    if frozen.state.is_finished():
                        self.open.remove(trial)

    def _study(self, storage: Any, arm: str) -> Any:
        import optuna

        direction: Any = self.plan.experiment.direction
        study = optuna.create_study(storage=storage, study_name=arm, direction=direction, load_if_exists=True)
        grid = [repr(axis) for axis in self.axes[arm]]
        for key, value in {"grid": grid, "metric": self.metric, "direction": direction}.items():
            if study.user_attrs.setdefault(key, value) != value:
                raise RunFolderError(
                    f"{self.plan.out / FILE_NAME} holds a study of {arm!r} with another {key}: use another "
                    f"--out, or the same {key} as before"
                )
            study.set_user_attr(key, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.sampler = optuna.samplers.TPESampler(
                seed=len(study.trials),  # a fixed seed would draw the same point again
                n_startup_trials=min(10, max(STARTUP_TRIALS, self.number // 3)),
                constant_liar=True,
            )
        return study

    def _add(self, arm: str, handle: Any) -> PointTrial:
        """Open a trial, and add its cells to the plan."""
        point = {axis.name: _value(axis, handle.params[axis.name]) for axis in self.axes[arm]}
        trial = PointTrial(arm, handle, self.plan.cells_at(arm, point))
        known = {cell.folder for cell in self.plan.cells}
        new = [cell for cell in trial.cells if cell.folder not in known]
        for cell in new:
            require_same_settings(cell, self.plan.path(cell))
        self.plan.cells.extend(new)
        self.open.append(trial)
        self.counts[arm] += 1
        return trial

    @property
    def is_complete(self) -> bool:
        """Whether all trials have ended."""
        return not self.open and all(count >= self.number for count in self.counts.values())

    # Scheduling

    def refill(self, work: Scheduler) -> bool:
        """Judge open trials, and ask for new ones while there is room; returns whether more may follow."""
        before = [*self.open]
        for trial in before:
            self._judge(trial, work)
        for arm in self.axes:
            while self.counts[arm] < self.number and self._has_room(work):
                self._ask(arm, work)
        if self.open != before:
            try_to_write_record(self.plan, work.command, say=work.board.say)
        unasked = any(count < self.number for count in self.counts.values())
        return unasked or any(_is_active(trial, work) for trial in self.open)

    def _ask(self, arm: str, work: Scheduler) -> None:
        """Have Optuna choose a point."""
        known = len(self.plan.cells)
        handle = self.studies[arm].ask({axis.name: _distribution(axis) for axis in self.axes[arm]})
        trial = self._add(arm, handle)
        new = self.plan.cells[known:]
        work.board.total += len(new)
        work.left |= {cell.folder: cell for cell in new}
        point = ", ".join(f"{name} {value_text(value)}" for name, value in handle.params.items())
        work.board.say(f"{arm}: trial {handle.number + 1} of {self.number}: {point}")
        if not new:  # a point that was chosen before
            self._judge(trial, work)

    def _has_room(self, work: Scheduler) -> bool:
        """Whether a new trial would be started at once: the later it is chosen, the more is known."""
        busy = {*work.running, *work.failed, *work.elsewhere}
        waiting = [f for f, cell in work.left.items() if f not in busy and cell.source not in work.left]
        active = [trial for trial in self.open if _is_active(trial, work)]
        return not waiting and len(active) < MOST_OPEN and work.executor.has_room()

    def _judge(self, trial: PointTrial, work: Scheduler) -> None:
        """Tell the study the value of a trial whose cells are done."""
        if not _is_active(trial, work) or any(cell.folder in work.left for cell in trial.cells):
            return
        values = []
        for cell in (cell for cell in trial.cells if cell.is_final):
            value = cell_value(cell, self.plan.path(cell), self.metric)
            if value is None:
                work.failed[cell.folder] = f"its metrics have no {self.metric!r}: give measures one of theirs"
                work.board.fail(f"{cell.folder}: {work.failed[cell.folder]}")
                return
            values.append(value)
        self.studies[trial.arm].tell(trial.handle, statistics.fmean(values))
        self.open.remove(trial)


def _is_active(trial: PointTrial, work: Scheduler) -> bool:
    """Whether none of its cells has failed; a failed one is tried again by the next command."""
    return not any(cell.folder in work.failed or cell.source in work.failed for cell in trial.cells)


def _cut_torn_line(path: Path) -> None:
    """Drop the last line of a journal if a kill or a full disk tore it: Optuna would append to it."""
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")  # a pipe would be waited for
    if path.is_file():
        with path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def _distribution(axis: Axis) -> Any:
    """The distribution of a field in Optuna."""
    from optuna import distributions

    if axis.is_range:
        kind: Any = distributions.IntDistribution if axis.is_whole else distributions.FloatDistribution
        return kind(axis.low, axis.high, log=axis.log)
    return distributions.CategoricalDistribution([*map(value_text, axis.values)])


def _value(axis: Axis, param: Any) -> Any:
    """The value of a field that Optuna's parameter stands for."""
    return axis.tidy(param) if axis.is_range else {value_text(value): value for value in axis.values}[param]
