"""Optuna's studies of an experiment: each method with a grid has one, all in `study.journal`.

A trial is a point of the grid: its cells in all tasks and with all seeds. One that is still running when the
command ends stays in the study, and repeating the command resumes its cells.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voidrl.errors import ConfigError, RunFolderError
from voidrl.experiments.grid import Axis, Point
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.state import differing_settings
from voidrl.report.scores.measures import is_evaluated
from voidrl.runs import locks

FILE_NAME = "study.journal"
STARTUP_TRIALS = 4  # before which none is pruned
WARMUP = 0.25  # the part of a run before which it is not pruned


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


class Tuner:
    """The studies of an experiment, and the trials that are running."""

    def __init__(self, plan: Plan) -> None:
        import optuna

        assert plan.request.tune is not None
        self.plan, self.number = plan, plan.request.tune
        self.arms = {arm: [*axes] for arm, axes in plan.axes.items() if axes}
        for arm in self.arms:
            self._require_measured(arm)
        self.first = {arm: plan.cells_at(arm, self._first(arm)) for arm in self.arms}
        """The cells of the first point of the grid, by which a search can be judged before it has any."""
        self.studies: dict[str, Any] = {}
        self.open: list[PointTrial] = []
        self.ended: list[PointTrial] = []
        self.pruned: set[str] = set()
        """Folders of pruned cells."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._lock = self._take_lock()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        path = self.plan.out / FILE_NAME
        try:
            _cut_torn_line(path)
            storage = _storage(path)
            self.studies = {arm: self._study(storage, arm) for arm in self.arms}
        except (OSError, json.JSONDecodeError, KeyError) as error:
            raise RunFolderError(
                f"{path} cannot be read as an Optuna study ({error}): remove it to start the search again, "
                f"which keeps the runs, or use another --out"
            ) from error
        for arm, study in self.studies.items():
            self._restore(arm, study)

    def _take_lock(self) -> int:
        lock = locks.acquire(locks.cell_lock_path(self.plan.out, "tune"))
        if lock is None:
            raise RunFolderError(
                f"another command with --tune is working in {self.plan.out}: wait for it, or use "
                f"another --out"
            )
        return lock

    def close(self) -> None:
        """Let other commands tune in this folder."""
        locks.release(self._lock)

    def metric(self, arm: str) -> str:
        """The metric by which the trials of an arm are judged."""
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

        spec = self.plan.experiment.tune
        steps = max(cell.config.steps for cell in self.first[arm] if cell.is_final)
        about = {
            "grid": [repr(axis) for axis in self.arms[arm]],
            "metric": self.metric(arm),
            "direction": spec.direction,
            "warmup_steps": None if spec.pruner == "none" else int(WARMUP * steps),
        }
        direction: Any = spec.direction
        study = optuna.create_study(storage=storage, study_name=arm, direction=direction, load_if_exists=True)
        for key, value in about.items():
            if study.user_attrs.setdefault(key, value) != value:
                raise RunFolderError(
                    f"{self.plan.out / FILE_NAME} holds a study of {arm!r} with another {key}: use another "
                    f"--out, or the same {key} as before"
                )
            study.set_user_attr(key, value)
        seed = len(study.trials)  # a fixed seed would draw the same point again
        startup = min(10, max(STARTUP_TRIALS, self.number // 3))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            if spec.sampler == "random":
                study.sampler = optuna.samplers.RandomSampler(seed=seed)
            else:
                study.sampler = optuna.samplers.TPESampler(
                    seed=seed, n_startup_trials=startup, constant_liar=True
                )
        return study

    def _first(self, arm: str) -> Point:
        return {axis.name: axis.values[0] for axis in self.arms[arm]}

    def _restore(self, arm: str, study: Any) -> None:
        """Add the cells of earlier trials to the plan; running ones are resumed."""
        import optuna

        for frozen in study.get_trials(deepcopy=False):
            if frozen.state == optuna.trial.TrialState.FAIL or len(frozen.params) < len(self.arms[arm]):
                continue
            handle = optuna.trial.Trial(study, frozen._trial_id)
            trial = PointTrial(arm, handle, self._cells(arm, frozen.params))
            self._add(trial)
            (self.ended if frozen.state.is_finished() else self.open).append(trial)
            if frozen.state == optuna.trial.TrialState.PRUNED:
                self.pruned |= {cell.folder for cell in trial.final}

    def _cells(self, arm: str, params: Mapping[str, Any]) -> list[Cell]:
        point = {axis.name: _value(axis, params[axis.name]) for axis in self.arms[arm]}
        return self.plan.cells_at(arm, point)

    def _add(self, trial: PointTrial) -> list[Cell]:
        """Add the cells of a trial to the plan; returns those that it did not have."""
        known = {cell.folder for cell in self.plan.cells}
        new = [cell for cell in trial.cells if cell.folder not in known]
        for cell in new:
            if differ := differing_settings(cell, self.plan.path(cell)):
                raise RunFolderError(
                    f"{self.plan.path(cell)} holds a run with other settings: {', '.join(differ)}; ask for "
                    f"the same, or use another --out"
                )
        self.plan.cells.extend(new)
        return new

    def may_ask(self, arm: str) -> bool:
        """Whether an arm has fewer trials than were asked for."""
        return sum(trial.arm == arm for trial in (*self.open, *self.ended)) < self.number

    def ask(self, arm: str) -> list[Cell]:
        """Have Optuna choose a point; returns its new cells."""
        handle = self.studies[arm].ask({axis.name: _distribution(axis) for axis in self.arms[arm]})
        trial = PointTrial(arm, handle, self._cells(arm, handle.params))
        self.open.append(trial)
        return self._add(trial)

    def tell(self, trial: PointTrial, value: float | None) -> None:
        """Tell the study how a trial ended; None if it was pruned."""
        import optuna

        if value is None:
            self.studies[trial.arm].tell(trial.handle, state=optuna.trial.TrialState.PRUNED)
            self.pruned |= {cell.folder for cell in trial.final}
        else:
            self.studies[trial.arm].tell(trial.handle, value)
        self.open.remove(trial)
        self.ended.append(trial)

    @property
    def is_complete(self) -> bool:
        """Whether all trials are done."""
        return not self.open and not any(self.may_ask(arm) for arm in self.arms)


def open_trial(root: Path, study_name: str, trial_id: int) -> Any:
    """A trial, in the process of its run, which reports to it and asks whether to stop."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.load_study(study_name=study_name, storage=_storage(root / FILE_NAME))
    study.pruner = optuna.pruners.MedianPruner(STARTUP_TRIALS, study.user_attrs["warmup_steps"])
    return optuna.trial.Trial(study, trial_id)


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
    indices = tuple(range(len(axis.values)))
    return distributions.CategoricalDistribution(indices if _is_indexed(axis) else axis.values)


def _value(axis: Axis, param: Any) -> Any:
    """The value of a field that Optuna's parameter stands for."""
    if axis.is_range:
        return axis.tidy(param)
    return axis.values[param] if _is_indexed(axis) else param


def _is_indexed(axis: Axis) -> bool:
    """Whether Optuna, which takes no lists, chooses the index of a value."""
    return not all(isinstance(value, bool | int | float | str) for value in axis.values)
