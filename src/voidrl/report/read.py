"""Run folders as a report needs them: settings, status, every curve, the final evaluation.

A damaged run is read as far as possible, with notes about omitted parts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from voidrl.config import EnvConfig, flat
from voidrl.envs.ids import DMC
from voidrl.errors import CheckpointError, RunFolderError, VoidrlError, printable
from voidrl.presets.presets import PRESETS
from voidrl.probing.result import final_probe
from voidrl.report.find import Skipped, find_runs, natural_key
from voidrl.report.formatting import count
from voidrl.runs import locks
from voidrl.runs.checkpoint import read_json
from voidrl.runs.evaluations import final_evaluation
from voidrl.runs.experiment_record import CellRecord, ExperimentRecord
from voidrl.runs.metrics import read_metrics
from voidrl.runs.status import RunStatus, read_status
from voidrl.system.files import user_path

Status = Literal["complete", "running", "incomplete", "failed", "pruned"]
Series = tuple[np.ndarray, np.ndarray]
"""Steps, ascending and distinct, and the value at each: (n,) and (n,)."""
PHASES = ("pretrain", "finetune", "train")


@dataclass
class Run:
    """One run folder."""

    path: Path
    name: str
    """Path as reports show it."""
    config: dict[str, Any]
    env: str
    phase: str
    method: str
    seed: int
    asked_steps: int
    steps: int
    """Steps in the last row of its metrics."""
    series: dict[str, Series] = field(repr=False)
    machine: dict[str, Any] = field(repr=False)
    """Content of environment.json: date, command, versions, hardware, git."""
    evaluation: dict[str, Any] | None = field(repr=False)
    """Content of evaluation.json, if that is of the final agent."""
    status: Status
    status_note: str
    """Why it is not complete."""
    notes: list[str]
    """Notes about omitted data."""
    probe: dict[str, Any] | None = field(default=None, repr=False)
    """Content of probe.json, if that is of the final agent."""
    experiment: ExperimentRecord | None = None
    cell: CellRecord | None = None
    label: str = ""
    """Its arm among the runs of its phase and environment."""
    evaluation_gap: Literal["", "missing", "failed"] = ""
    """Why a run that took all its steps has no evaluation, where one is due."""

    @cached_property
    def resolved(self) -> Path:
        """Its folder, without links."""
        return self.path.resolve()

    @property
    def took_all_steps(self) -> bool:
        """Whether training is complete; the evaluation may have failed."""
        return self.status == "complete" or self.evaluation_gap == "failed"

    @property
    def final_steps(self) -> int:
        """Steps behind its last numbers: parallel environments can step past the end."""
        return min(self.steps, self.asked_steps)

    @property
    def protocol_steps(self) -> int | None:
        """Steps in the experiment's protocol; None where the agent has other observations than there."""
        return None if self.cell is None or self.other_sight else self.cell.protocol_steps

    @property
    def other_sight(self) -> str:
        """`pixels in place of states`, where observations differ from the experiment's own preset."""
        experiment = self.experiment
        if experiment is None or experiment.default_preset not in PRESETS or not self.env.startswith(DMC):
            return ""
        protocol = PRESETS[experiment.default_preset].values_for(self.env).get("env", {}).get("dmc", {})
        theirs = protocol.get("observation", EnvConfig().dmc.observation)
        ours = flat(self.config).get("env.dmc.observation", theirs)
        return "" if ours == theirs else f"{ours} in place of {theirs}"

    @property
    def training_seconds(self) -> float | None:
        """Time in the training loop, from logged rates, without evaluations."""
        if "time/steps_per_second" not in self.series:
            return None
        steps, rates = self.series["time/steps_per_second"]
        taken = np.diff(steps, prepend=0)
        return float(np.sum(taken[rates > 0] / rates[rates > 0]))


@dataclass(frozen=True)
class Collection:
    """Everything that a report shows."""

    runs: list[Run]
    skipped: list[Skipped]
    experiments: list[ExperimentRecord]
    paths: list[Path]
    """The paths given."""

    def missing_cells(self) -> list[tuple[ExperimentRecord, CellRecord]]:
        """Cells under the given paths that have not started."""
        return self._absent(requested=True)

    def other_cells(self) -> list[tuple[ExperimentRecord, CellRecord]]:
        """Cells of an experiment outside the given paths."""
        return self._absent(requested=False)

    def _absent(self, *, requested: bool) -> list[tuple[ExperimentRecord, CellRecord]]:
        there = {run.resolved for run in self.runs} | {each.path.resolve() for each in self.skipped}
        roots = [path.resolve() for path in self.paths]
        return [
            (experiment, cell)
            for experiment in self.experiments
            for path, cell in experiment.cells_by_path.items()
            if path not in there
            and requested == (any(map(path.is_relative_to, roots)) and not (path / "config.json").exists())
        ]


def read_all(paths: Sequence[str | Path], say: Callable[[str], None]) -> Collection:
    """Read every run under the paths; an error if none can be read. Skipped runs are reported."""
    found = find_runs(paths, say)
    runs, skipped = [], [*found.skipped]
    for folder in found.folders:
        try:
            runs.append(_read_run(folder))
        except VoidrlError as error:
            skipped.append(Skipped(folder, str(error)))
    for each in skipped:
        say(f"skipped {each.path}: {each.why}")
    if not runs:
        raise RunFolderError(f"no run can be reported: {skipped[0].path} was skipped, as {skipped[0].why}")
    for run in runs:
        for experiment in found.experiments:
            if (cell := experiment.cells_by_path.get(run.path.resolve())) is not None:
                run.experiment, run.cell = experiment, cell
                _add_experiment(run, experiment, cell)
        for note in run.notes:
            say(f"{run.path}: {note}")
    _name(runs)
    # In the order of the experiments; other runs after them, by environment, phase, method and seed.
    cells = [path for experiment in found.experiments for path in experiment.cells_by_path]
    order = {path: number for number, path in enumerate(cells)}

    def place(run: Run) -> tuple[Any, ...]:
        number = order.get(run.path.resolve(), len(order))
        return number, natural_key(run.env), PHASES.index(run.phase), run.method, run.seed

    runs.sort(key=place)
    return Collection(runs, skipped, found.experiments, [user_path(path) for path in paths])


def _add_experiment(run: Run, experiment: ExperimentRecord, cell: CellRecord) -> None:
    """Add the experiment's knowledge: failures of a cell's process, and evaluations that are due."""
    if run.status == "incomplete" and (why := experiment.failure(cell)):
        run.status, run.status_note = "failed", f"failed after {_progress(run.steps, run.asked_steps)}: {why}"
    if run.status != "complete" or run.evaluation is not None or cell.evaluated is False:
        return
    if locks.is_held(locks.cell_lock_path(experiment.root, cell.folder)):
        run.status, run.status_note = "running", "took all its steps and is being evaluated"
    elif why := experiment.failure(cell):
        run.evaluation_gap = "failed"
        run.status, run.status_note = "failed", f"took all its steps, but its evaluation failed: {why}"
    elif cell.evaluated:
        run.evaluation_gap = "missing"


def _printable(value: Any) -> Any:
    """JSON without control characters in its text, which may be a stranger's."""
    if isinstance(value, dict):
        return {printable(name): _printable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_printable(each) for each in value]
    return printable(value) if isinstance(value, str) else value


def _read_run(folder: Path) -> Run:
    config = _printable(read_json(folder / "config.json", "the config of the run"))
    try:
        env, phase, seed = str(config["env"]["id"]), str(config["phase"]), int(config["seed"])
        method, total_steps = str(config["method"]["name"]), int(config["steps"])
    except (KeyError, TypeError, ValueError):
        raise RunFolderError(
            f"{folder / 'config.json'} is not the config of a run that this version of voidrl knows: "
            f"expected env, phase, seed, method and steps"
        ) from None
    if phase not in PHASES:
        raise RunFolderError(f"its phase is {phase!r}: expected one of {', '.join(PHASES)}; upgrade voidrl")
    notes: list[str] = []
    machine, rows, evaluation, probe = {}, [], None, None
    try:
        machine = _printable(read_json(folder / "environment.json", "the machine of the run"))
    except (CheckpointError, TypeError, ValueError) as error:
        notes.append(f"environment.json is left out: {error}")
    try:
        rows = read_metrics(folder, skip=notes.append)
    except RunFolderError:
        notes.append("there is no metrics.jsonl: nothing was logged yet, or the file is lost")
    reached = max((row["step"] for row in rows), default=0)
    try:
        evaluation = _printable(final_evaluation(folder, reached))
    except (CheckpointError, RunFolderError) as error:
        notes.append(f"its evaluation is left out: {error}")
    try:
        probe = final_probe(folder, reached)
    except (CheckpointError, RunFolderError) as error:
        notes.append(f"its probe is left out: {error}")
    status, note = _status(read_status(folder), reached, total_steps)
    return Run(
        path=folder,
        name=str(folder),
        config=config,
        env=env,
        phase=phase,
        method=method,
        seed=seed,
        asked_steps=total_steps,
        steps=reached,
        series=_series(rows),
        machine=machine,
        evaluation=evaluation,
        status=status,
        status_note=note,
        notes=notes,
        probe=probe,
    )


def _series(rows: list[dict[str, Any]]) -> dict[str, Series]:
    """Numbers by name; at one step the last counts. Rows with equal names are converted together."""
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        alike.setdefault(tuple(row), []).append(row)
    parts: dict[str, list[Series]] = {}
    for names, members in alike.items():
        steps = np.array([row["step"] for row in members], np.float64)
        for name in names:
            if name != "step":
                values = _numbers([row[name] for row in members])
                known = np.isfinite(values)
                parts.setdefault(name, []).append((steps[known], values[known]))
    found = {}
    for name, pieces in parts.items():
        x, y = (np.concatenate(each) for each in zip(*pieces, strict=True))
        if len(x) > 1 and (np.diff(x) <= 0).any():
            order = np.argsort(x, kind="stable")
            x, y = x[order], y[order]
            last = np.append(np.diff(x) > 0, True)
            x, y = x[last], y[last]
        if len(x):
            found[name] = (x, y)
    return found


def _numbers(values: list[Any]) -> np.ndarray:
    """(n,) float64, NaN for null, text and booleans."""
    kinds = {*map(type, values)}
    if kinds <= {int, float}:
        return np.array(values, np.float64)
    return np.array([value if type(value) in (int, float) else np.nan for value in values], np.float64)


def _status(status: RunStatus | None, reached: int, total_steps: int) -> tuple[Status, str]:
    """The run's status for reports; without a status.json, judged by its metrics."""
    progress = _progress(reached, total_steps)
    if status is None:
        return ("complete", "") if reached >= total_steps else ("incomplete", f"ended after {progress}")
    if status.is_alive:
        return "running", f"is still running: {progress} so far"
    if status.state == "done":
        return "complete", ""
    if status.state == "failed":
        return "failed", f"failed after {progress}: {status.error}"
    if status.is_pruned:
        return "pruned", f"was pruned after {progress}: others were better at the same step"
    if status.state == "stopped":
        return "incomplete", f"was stopped by {status.signal or status.callback} after {progress}"
    return "incomplete", f"was killed, or its machine went down, after {progress}"


def _progress(reached: int, total_steps: int) -> str:
    return f"{count(reached)} of {count(total_steps)} steps"


def _name(runs: Sequence[Run]) -> None:
    """Name runs by their paths relative to the folder that they share."""
    absolute = [run.path.absolute() for run in runs]
    shared = Path(os.path.commonpath(absolute))
    if len(runs) == 1:
        shared = absolute[0].parent
    for run, path in zip(runs, absolute, strict=True):
        relative = path.relative_to(shared)
        run.name = shared.name if relative == Path() else str(relative)
