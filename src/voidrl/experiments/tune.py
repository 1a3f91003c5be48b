"""`--tune N`: Optuna chooses points of the grid, and prunes those that fall behind.

Each method with a grid has a study in `study.journal`. A trial is a point of the grid: its cells in all tasks
and with all seeds, which the scheduler runs like any others. A trial that is open when the command ends stays
in the study, and repeating the command resumes its cells. A trial of one run is pruned: its process reports
metrics to the study and stops when the study's pruner gives it up.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from voidrl.errors import ConfigError, RunFolderError
from voidrl.experiments.grid import Axis
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.record import try_to_write_record
from voidrl.experiments.state import cell_value, require_same_settings
from voidrl.report.scores.measures import is_evaluated
from voidrl.runs import locks
from voidrl.runs.status import is_pruned

if TYPE_CHECKING:
    from voidrl.experiments.run import Scheduler

FILE_NAME = "study.journal"
STARTUP_TRIALS = 4  # before which none is pruned
WARMUP = 0.25  # the part of a run before which it is not pruned
MOST_OPEN = 16  # trials at a time where an executor takes any number of cells
# Columns of evaluations during training, in the units of the measures of the evaluation after it.
COLUMNS = {
    "return": "eval/return",
    "success": "eval/success",
    "human_normalized": "eval/human_normalized",
}


@dataclass
class PointTrial:
    """A point that Optuna has chosen."""

    arm: str
    handle: Any
    """The `optuna.Trial`."""
    cells: list[Cell]

    @property
    def final(self) -> list[Cell]:
        """The cells that are measured."""
        return [cell for cell in self.cells if cell.is_final]


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

        assert plan.request.tune is not None
        self.plan, self.number = plan, plan.request.tune
        self.axes = {arm: axes for arm, axes in plan.axes.items() if axes}
        self.counts = dict.fromkeys(self.axes, 0)
        """Trials of each method, open or ended."""
        self.open: list[PointTrial] = []
        self.pruned: set[str] = set()
        """Folders of pruned cells."""
        self._unpruned: set[str] = set()
        """Methods whose trials cannot be pruned, and for which this was reported."""
        for arm in self.axes:
            self._require_measured(arm)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path = plan.out / FILE_NAME
        try:
            _cut_torn_line(path)
            storage = _storage(path)
            self.studies = {arm: self._study(storage, arm) for arm in self.axes}
        except (OSError, json.JSONDecodeError, KeyError) as error:
            raise RunFolderError(
                f"{path} cannot be read as an Optuna study ({error}): remove it to start the search again, "
                f"which keeps the runs, or use another --out"
            ) from error
        for arm, study in self.studies.items():
            self._restore(arm, study)

    # Studies

    def metric(self, arm: str) -> str:
        """The metric by which the trials of a method are judged."""
        return self.plan.experiment.tune.metric or self.plan.experiment.arms[arm].measures[0]

    def _require_measured(self, arm: str) -> None:
        spec = self.plan.experiment.arms[arm]
        if is_evaluated(self.metric(arm)) and spec.evaluation is None:
            raise ConfigError(
                f"--tune {self.number} cannot compare points of method {arm!r} by {self.metric(arm)!r}, as "
                f"its runs are not evaluated: set metric in [tune] to a column of metrics.jsonl, such as "
                f'"coverage/cells" or "episode/return"'
            )

    def _study(self, storage: Any, arm: str) -> Any:
        import optuna

        direction: Any = self.plan.experiment.tune.direction
        study = optuna.create_study(storage=storage, study_name=arm, direction=direction, load_if_exists=True)
        about = {
            "grid": [repr(axis) for axis in self.axes[arm]],
            "metric": self.metric(arm),
            "direction": direction,
        }
        for key, value in about.items():
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

    def _restore(self, arm: str, study: Any) -> None:
        """Add the cells of earlier trials to the plan; open ones are resumed."""
        import optuna

        for frozen in study.get_trials(deepcopy=False):
            if frozen.state == optuna.trial.TrialState.FAIL or len(frozen.params) < len(self.axes[arm]):
                continue
            trial = self._add(arm, optuna.trial.Trial(study, frozen._trial_id))
            if frozen.state.is_finished():
                self.open.remove(trial)
            if frozen.state == optuna.trial.TrialState.PRUNED:
                self.pruned |= {cell.folder for cell in trial.final}

    def _add(self, arm: str, handle: Any) -> PointTrial:
        """Open a trial, and add its cells to the plan."""
        point = {axis.name: _value(axis, handle.params[axis.name]) for axis in self.axes[arm]}
        trial = PointTrial(arm, handle, self.plan.cells_at(arm, point))
        known = {cell.folder for cell in self.plan.cells}
        new = [cell for cell in trial.cells if cell.folder not in known]
        require_same_settings(self.plan, new)
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
        work.board.add(len(new))
        work.left |= {cell.folder: cell for cell in new}
        text = _point_text(handle.params)
        work.board.say(f"{arm}: trial {handle.number + 1} of {self.number}: {text}")
        if not new:  # a point that was chosen before
            self._judge(trial, work)

    def _has_room(self, work: Scheduler) -> bool:
        """Whether a new trial would be started at once: the later it is chosen, the more is known."""
        busy = {*work.running, *work.failed, *work.elsewhere}
        waiting = [f for f, cell in work.left.items() if f not in busy and cell.source not in work.left]
        active = [trial for trial in self.open if _is_active(trial, work)]
        takes_more = work.executor.has_room() and not work.executor.has_queue()
        return not waiting and len(active) < MOST_OPEN and takes_more

    def _judge(self, trial: PointTrial, work: Scheduler) -> None:
        """End a trial that is done or was pruned."""
        if not _is_active(trial, work) or any(cell.folder in work.running for cell in trial.final):
            return
        if any(is_pruned(self.plan.path(cell)) for cell in trial.final):
            self._tell(trial, None)
            work.board.say(f"{trial.arm}: trial {trial.handle.number + 1} is pruned")
            for cell in trial.final:
                work.left.pop(cell.folder, None)
            return
        if any(cell.folder in work.left for cell in trial.cells):
            return
        metric = self.metric(trial.arm)
        values = [cell_value(cell, self.plan.path(cell), metric) for cell in trial.final]
        known = [float(value) for value in values if value is not None]
        if len(known) == len(values):
            self._tell(trial, float(np.mean(known)))
            return
        cell = trial.final[values.index(None)]
        work.failed[cell.folder] = f"its metrics have no {metric!r}: set metric in [tune] to one of theirs"
        work.board.fail(f"{cell.folder}: {work.failed[cell.folder]}")

    def _tell(self, trial: PointTrial, value: float | None) -> None:
        """Tell the study how a trial ended; None if it was pruned."""
        import optuna

        state = optuna.trial.TrialState.PRUNED if value is None else None
        self.studies[trial.arm].tell(trial.handle, value, state=state)
        self.pruned |= set() if value is not None else {cell.folder for cell in trial.final}
        self.open.remove(trial)

    # Pruning

    def reported_trial(self, cell: Cell, work: Scheduler) -> dict[str, Any] | None:
        """The trial that the run of a cell reports to, as in `Job`; None where it cannot be pruned."""
        trial = next((each for each in self.open if cell in each.final), None)
        if trial is None or self.plan.experiment.tune.pruner == "none":
            return None
        metric = self.metric(trial.arm)
        column = pruning_column(cell, metric)
        if len(trial.final) == 1 and column is not None:
            return {"study": trial.arm, "id": trial.handle._trial_id, "metric": column}
        if trial.arm not in self._unpruned:
            self._unpruned.add(trial.arm)
            why = f"each has {len(trial.final)} runs"
            if column is None:
                why = (
                    f"metrics do not show {metric!r} during training: set log.eval_every_steps below the "
                    f"steps of a run, or metric in [tune] to a column of metrics.jsonl"
                )
            work.board.say(f"{trial.arm}: no trial is pruned, as {why}")
        return None


def _is_active(trial: PointTrial, work: Scheduler) -> bool:
    """Whether none of its cells has failed; a failed one is tried again by the next command."""
    return not any(cell.folder in work.failed or cell.source in work.failed for cell in trial.cells)


def pruning_column(cell: Cell, metric: str) -> str | None:
    """The column of the metrics that shows a measure, in its unit, during training; None where none does."""
    evaluates = bool(cell.config.log.eval_every_steps)
    if not is_evaluated(metric):
        return metric if evaluates or not metric.startswith("eval/") else None
    if evaluates:
        return COLUMNS.get(metric)
    return "episode/return" if metric == "return" else None


def open_trial(root: Path, trial: Mapping[str, Any], steps: int) -> Any:
    """A trial, in the process of its run of so many steps, which reports to it and asks whether to stop."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.load_study(study_name=trial["study"], storage=_storage(root / FILE_NAME))
    study.pruner = optuna.pruners.MedianPruner(STARTUP_TRIALS, int(WARMUP * steps))
    return optuna.trial.Trial(study, trial["id"])


# Optuna's storage and distributions


def _storage(path: Path) -> Any:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    return optuna.storages.JournalStorage(JournalFileBackend(str(path)))


def _cut_torn_line(path: Path) -> None:
    """Drop the end of a journal whose last line is not complete, to which Optuna would append the next.

    A command that was killed, or a full disk, leaves such a line. The trial that it is about is still
    running in what is left, and so ends again.
    """
    if not path.is_file():
        return
    with path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)


def _distribution(axis: Axis) -> Any:
    """The distribution of a field in Optuna."""
    from optuna import distributions

    if axis.is_range:
        kind: Any = distributions.IntDistribution if axis.whole else distributions.FloatDistribution
        return kind(axis.low, axis.high, log=axis.log)
    return distributions.CategoricalDistribution(_choices(axis))


def _value(axis: Axis, param: Any) -> Any:
    """The value of a field that Optuna's parameter stands for."""
    return axis.tidy(param) if axis.is_range else axis.values[_choices(axis).index(param)]


def _choices(axis: Axis) -> Sequence[Any]:
    """The values of a list, or their indices where Optuna does not take them, such as lists."""
    plain = all(isinstance(value, bool | int | float | str) for value in axis.values)
    return axis.values if plain else range(len(axis.values))


def _point_text(params: Mapping[str, Any]) -> str:
    texts = {name: f"{v:.4g}" if isinstance(v, float) else str(v) for name, v in params.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items())
