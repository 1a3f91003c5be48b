"""Run folders as a report needs them: settings, state, every curve, the final evaluation.

A damaged run is read as far as possible, with notes about omitted parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from voidrl.errors import RunFolderError, VoidrlError, printable
from voidrl.probing.result import final_probe
from voidrl.report.find import Place, Skipped, find_runs, natural_key
from voidrl.report.formatting import count
from voidrl.report.live import look_at
from voidrl.runs.checkpoint import read_json
from voidrl.runs.evaluations import final_evaluation
from voidrl.runs.experiment_record import ExperimentRecord
from voidrl.runs.metrics import FILE_NAME as METRICS
from voidrl.runs.metrics import read_metrics
from voidrl.system.files import user_path

Series = tuple[np.ndarray, np.ndarray]
"""Steps, ascending and distinct, and the value at each: (n,) and (n,)."""
PHASES = ("pretrain", "finetune", "train")
T = TypeVar("T")


@dataclass(kw_only=True)
class Run(Place):
    """One run folder."""

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
    status: str
    """`done`, `running`, `stopped`, `pruned` or `failed`, as `voidrl status` shows it."""
    why: str
    """The reason why it failed or stopped."""
    notes: list[str]
    """Notes about omitted data."""
    probe: dict[str, Any] | None = field(default=None, repr=False)
    """Content of probe.json, if that is of the final agent."""
    label: str = ""
    """Its arm among the runs of its phase and environment."""
    source: Run | None = field(default=None, repr=False)
    """The pre-training run that it was fine-tuned from."""
    evaluation_gap: Literal["", "missing", "failed"] = ""
    """Why a run that took all its steps has no evaluation, where one is due."""

    @property
    def took_all_steps(self) -> bool:
        """Whether training is complete; the evaluation may have failed."""
        return self.status == "done" or self.evaluation_gap == "failed"

    @property
    def progress(self) -> str:
        """Steps, and the reason why there are no more."""
        steps = f"{count(self.steps)} of {count(self.asked_steps)} steps"
        return f"{steps}: {self.why}" if self.why else steps

    @property
    def final_steps(self) -> int:
        """Steps behind its last numbers: parallel environments can step past the end."""
        return min(self.steps, self.asked_steps)

    @property
    def pretraining_steps(self) -> int | None:
        """Steps that it was pre-trained for: by its evaluation, or by the run that it was fine-tuned from."""
        agent: Mapping[str, Any] = (
            (self.evaluation or {}).get("agent", {}) if self.phase == "finetune" else {}
        )
        total, own = agent.get("steps_with_pretraining"), agent.get("steps")
        if isinstance(total, int) and isinstance(own, int) and total > own:
            return total - own
        return None if self.source is None else self.source.final_steps

    @property
    def protocol_steps(self) -> int | None:
        """Steps in the experiment's protocol."""
        return None if self.cell is None else self.cell.protocol_steps

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
    """In the order of the experiments; other runs after them, by environment, phase, method and seed."""
    skipped: list[Skipped]
    experiments: list[ExperimentRecord]
    missing: dict[str, str]
    """Cells that have not started, and why if they failed."""


def read_all(paths: Sequence[str | Path], say: Callable[[str], None]) -> Collection:
    """Read every run under the paths; an error if none can be read. Skipped runs are reported."""
    found = find_runs([user_path(path) for path in paths])
    planned, others, skipped, missing = [], [], [*found.skipped], dict[str, str]()
    for place in found.places:
        try:
            if place.cell is None:
                others.append(_read_run(place))
            elif place.has_run or (place.path / METRICS).exists():
                planned.append(_read_run(place))
            else:
                missing[place.name] = place.failure
        except VoidrlError as error:
            skipped.append(Skipped(place.path, str(error)))
    for each in skipped:
        say(f"skipped {each.path}: {each.why}")
    others.sort(key=lambda run: (natural_key(run.env), PHASES.index(run.phase), run.method, run.seed))
    runs = planned + others
    if not runs:
        why = f"none in {', '.join(map(str, paths))} has started"
        if skipped:
            why = f"{skipped[0].path} was skipped, as {skipped[0].why}"
        raise RunFolderError(f"no run can be reported: {why}")
    for run in runs:
        for note in run.notes:
            say(f"{run.path}: {note}")
        run.source = _source_of(run, runs)
    return Collection(runs, skipped, found.experiments, missing)


def _source_of(run: Run, runs: Sequence[Run]) -> Run | None:
    """The pre-training run of a fine-tuning.

    An experiment says which one. Otherwise it is the only one with equal method, seed and environment.
    """
    if run.phase != "finetune":
        return None
    if run.cell is not None:
        return next((each for each in runs if each.resolved == run.source_path), None)
    same = [
        each
        for each in runs
        if (each.phase, each.method, each.seed) == ("pretrain", run.method, run.seed)
        and run.env.partition("?")[0].startswith(each.env.partition("?")[0])
    ]
    return same[0] if len(same) == 1 else None


def _printable(value: Any) -> Any:
    """JSON without control characters in its text, which may be a stranger's."""
    if isinstance(value, dict):
        return {printable(name): _printable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_printable(each) for each in value]
    return printable(value) if isinstance(value, str) else value


def _read_run(place: Place) -> Run:
    folder = place.path
    if not place.has_run:
        raise RunFolderError("it has files of a run, but no config.json: it was damaged or never started")
    config = _printable(read_json(folder / "config.json", "the config of the run"))
    try:
        known: dict[str, Any] = {
            "env": str(config["env"]["id"]), "phase": str(config["phase"]), "seed": int(config["seed"]),
            "method": str(config["method"]["name"]), "asked_steps": int(config["steps"]),
        }  # fmt: skip
    except (KeyError, TypeError, ValueError):
        raise RunFolderError(
            f"{folder / 'config.json'} is not the config of a run that this version of voidrl knows: "
            f"expected env, phase, seed, method and steps"
        ) from None
    if known["phase"] not in PHASES:
        phase = known["phase"]
        raise RunFolderError(f"its phase is {phase!r}: expected one of {', '.join(PHASES)}; upgrade voidrl")
    notes: list[str] = []

    def part(read: Callable[[], T]) -> T | None:
        """A part of the run; None, and a note, if it cannot be read."""
        try:
            return read()
        except VoidrlError as error:
            notes.append(f"left out: {error}")
            return None

    machine = part(lambda: _printable(read_json(folder / "environment.json", "the machine of the run")))
    rows = part(lambda: read_metrics(folder, skip=notes.append)) or []
    reached = max((row["step"] for row in rows), default=0)
    state = look_at(place)
    evaluation = part(lambda: _printable(final_evaluation(folder, reached)))
    gaps: dict[str, Literal["missing", "failed"]] = {"waiting": "missing", "failed": "failed"}
    is_due = state.took_all_steps and evaluation is None
    return Run(
        path=folder,
        name=place.name,
        config=config,
        **known,
        steps=reached,
        series=_series(rows),
        machine=machine or {},
        evaluation=evaluation,
        status="done" if state.group == "waiting" else state.group,
        why=state.note,
        notes=notes,
        probe=part(lambda: final_probe(folder, reached)),
        experiment=place.experiment,
        cell=place.cell,
        evaluation_gap=gaps.get(state.state, "") if is_due else "",
    )


def _series(rows: list[dict[str, Any]]) -> dict[str, Series]:
    """Finite numbers by name; at one step the last counts."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        for name, value in row.items():
            if type(value) in (int, float) and isfinite(value) and name != "step":
                found.setdefault(name, {})[row["step"]] = value
    series = {}
    for name, by_step in found.items():
        steps = np.array([*by_step], np.float64)
        order = np.argsort(steps)
        series[name] = steps[order], np.array([*by_step.values()], np.float64)[order]
    return series
