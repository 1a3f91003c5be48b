"""Run folders as a report needs them: what was asked for, how far it came, every curve, the last evaluation.

A run that is damaged in places is read as far as it goes, with a note of what is left out.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from voidrl.checkpoint import read_json
from voidrl.config import EnvConfig, flat
from voidrl.envs.ids import DMC
from voidrl.errors import CheckpointError, RunFolderError, VoidrlError
from voidrl.metrics import read_metrics
from voidrl.protocols.presets import PRESETS
from voidrl.report.find import Cell, Experiment, Skipped, find_runs
from voidrl.report.formatting import count
from voidrl.runs import locks
from voidrl.runs.folder import RunFolder
from voidrl.scores.score import FILE_NAME as EVALUATION_FILE

Status = Literal["complete", "running", "incomplete", "failed"]
Series = tuple[np.ndarray, np.ndarray]
"""Steps, ascending and distinct, and the value at each: (n,) and (n,)."""
PHASES = ("pretrain", "finetune", "train")


@dataclass
class Run:
    """One run folder."""

    path: Path
    name: str
    """Its path as a report shows it."""
    config: dict[str, Any]
    env: str
    phase: str
    method: str
    seed: int
    asked_steps: int
    steps: int
    """Reached, by the last row of its metrics."""
    series: dict[str, Series] = field(repr=False)
    machine: dict[str, Any] = field(repr=False)
    """Its environment.json: date, command, versions, hardware, git."""
    evaluation: dict[str, Any] | None = field(repr=False)
    """Its evaluation.json, if that is of the agent as it stands."""
    status: Status
    status_note: str
    """Why it is not complete, in words."""
    notes: list[str]
    """What was left out, in sentences."""
    experiment: Experiment | None = None
    cell: Cell | None = None
    label: str = ""
    """The arm of a comparison that it belongs to, among runs of its phase and environment."""
    evaluation_gap: Literal["", "missing", "failed"] = ""
    """Why a run that took all its steps has no evaluation, where one is due."""

    @property
    def took_all_steps(self) -> bool:
        """Whether its last numbers are those of the steps asked for; its evaluation may have failed."""
        return self.status == "complete" or self.evaluation_gap == "failed"

    @property
    def final_steps(self) -> int:
        """Those that its last numbers are of: environments step past the end together."""
        return min(self.steps, self.asked_steps)

    @property
    def protocol_steps(self) -> int | None:
        """What the experiment's protocol would take; None where the agent sees something else than there."""
        return None if self.cell is None or self.other_sight else self.cell.protocol_steps

    @property
    def other_sight(self) -> str:
        """`pixels in place of states`, where that is not what the experiment's own preset shows agents."""
        experiment = self.experiment
        if experiment is None or experiment.default_preset not in PRESETS or not self.env.startswith(DMC):
            return ""
        protocol = PRESETS[experiment.default_preset].values.get("env", {}).get("dmc", {})
        theirs = protocol.get("observation", EnvConfig().dmc.observation)
        ours = flat(self.config).get("env.dmc.observation", theirs)
        return "" if ours == theirs else f"{ours} in place of {theirs}"

    @property
    def training_seconds(self) -> float | None:
        """Time in the loop, from the rates that it logged; evaluations are not in it."""
        if "time/steps_per_second" not in self.series:
            return None
        steps, rates = self.series["time/steps_per_second"]
        taken = np.diff(steps, prepend=0)
        return float(np.sum(taken[rates > 0] / rates[rates > 0]))


@dataclass(frozen=True)
class Collection:
    """All that a report is made of."""

    runs: list[Run]
    skipped: list[Skipped]
    experiments: list[Experiment]
    paths: list[Path]
    """What was asked for."""

    def missing_cells(self) -> list[tuple[Experiment, Cell]]:
        """Runs of an experiment that were asked for and have not begun."""
        return [(experiment, cell) for experiment, cell, is_other in self._absent() if not is_other]

    def other_cells(self) -> list[tuple[Experiment, Cell]]:
        """Runs of an experiment that were not asked for."""
        return [(experiment, cell) for experiment, cell, is_other in self._absent() if is_other]

    def _absent(self) -> list[tuple[Experiment, Cell, bool]]:
        """Runs that are not here, and whether that is because they were not asked for."""
        there = {run.path.resolve() for run in self.runs} | {each.path.resolve() for each in self.skipped}
        asked = [path.resolve() for path in self.paths]
        return [
            (
                experiment,
                cell,
                (folder / "config.json").exists() or not any(map(folder.is_relative_to, asked)),
            )
            for experiment in self.experiments
            for folder, cell in experiment.cells.items()
            if folder not in there
        ]


def read_all(paths: Sequence[str | Path], say: Callable[[str], None]) -> Collection:
    """Every run under the paths; what has to be skipped is said and kept, and at least one run is left."""
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
            if (cell := experiment.cells.get(run.path.resolve())) is not None:
                run.experiment, run.cell = experiment, cell
                _ask_experiment(run, experiment, cell)
        for note in run.notes:
            say(f"{run.path}: {note}")
    _name(runs)
    asked = [Path(path).expanduser() for path in paths]
    return Collection(sorted(runs, key=_place(found.experiments)), skipped, found.experiments, asked)


def _ask_experiment(run: Run, experiment: Experiment, cell: Cell) -> None:
    """It keeps the logs of its runs, and evaluates them when they are complete."""
    if run.status == "incomplete" and (why := experiment.failure(cell)):
        run.status, run.status_note = "failed", f"failed after {_far(run.steps, run.asked_steps)}: {why}"
    if run.status != "complete" or run.evaluation is not None or cell.evaluated is False:
        return
    if _is_held(locks.lock_path(experiment.root, cell.folder)):
        run.status, run.status_note = "running", "took all its steps and is being evaluated"
    elif why := experiment.failure(cell):
        run.evaluation_gap = "failed"
        run.status, run.status_note = "failed", f"took all its steps, but its evaluation failed: {why}"
    elif cell.evaluated:
        run.evaluation_gap = "missing"


def _place(experiments: Sequence[Experiment]) -> Callable[[Run], tuple[int, int]]:
    """In the order of the experiments; other runs after them, by phase, as they were found."""
    cells = [folder for experiment in experiments for folder in experiment.cells]
    order = {folder: place for place, folder in enumerate(cells)}

    def place(run: Run) -> tuple[int, int]:
        return order.get(run.path.resolve(), len(order)), 0 if run.cell else PHASES.index(run.phase)

    return place


def _read_run(folder: Path) -> Run:
    config = read_json(folder / "config.json", "the config of the run")
    try:
        env, phase, seed = str(config["env"]["id"]), str(config["phase"]), int(config["seed"])
        method, asked = str(config["method"]["name"]), int(config["steps"])
    except (KeyError, TypeError, ValueError):
        raise RunFolderError(
            f"{folder / 'config.json'} is not the config of a run that this version of voidrl knows: "
            f"expected env, phase, seed, method and steps"
        ) from None
    if phase not in PHASES:
        raise RunFolderError(f"its phase is {phase!r}: expected one of {', '.join(PHASES)}; upgrade voidrl")
    notes: list[str] = []
    machine = _optional(folder / "environment.json", "the machine of the run", notes)
    rows = _rows(folder / "metrics.jsonl", notes)
    reached = max((row["step"] for row in rows), default=0)
    status, why = _status(folder, reached, asked)
    return Run(
        path=folder,
        name=str(folder),
        config=config,
        env=env,
        phase=phase,
        method=method,
        seed=seed,
        asked_steps=asked,
        steps=reached,
        series=_series(rows),
        machine=machine,
        evaluation=_evaluation(folder, machine, reached, notes),
        status=status,
        status_note=why,
        notes=notes,
    )


def _optional(path: Path, what: str, notes: list[str]) -> dict[str, Any]:
    try:
        data = read_json(path, what)
    except CheckpointError as error:
        notes.append(str(error))
        return {}
    if not isinstance(data, dict):
        notes.append(f"{what} cannot be read: {path.name} holds no JSON object")
        return {}
    return data


def _rows(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    if not path.is_file():
        notes.append("there is no metrics.jsonl: nothing was logged yet, or the file is lost")
        return []
    lines = path.read_bytes().rstrip(b"\n").split(b"\n")
    try:
        rows = json.loads(b"[" + b",".join(lines) + b"]")  # twice as fast as line by line
    except ValueError:
        rows = _whole_rows(path, len(lines), notes)
    whole = [row for row in rows if isinstance(row, dict) and isinstance(row.get("step"), int)]
    if len(whole) < len(rows):
        notes.append(f"metrics.jsonl has rows without a step: {len(rows) - len(whole)} are left out")
    return whole


def _whole_rows(path: Path, total: int, notes: list[str]) -> list[dict[str, Any]]:
    """All rows that can be read; a torn last line, as a killed run leaves, is nothing to note."""
    try:
        return read_metrics(path)
    except RunFolderError:
        pass
    rows = []
    for line in path.read_bytes().splitlines():
        with suppress(ValueError):
            rows.append(json.loads(line.decode()))
    notes.append(f"metrics.jsonl is damaged: {total - len(rows)} of its {total} lines are left out")
    return rows


def _series(rows: list[dict[str, Any]]) -> dict[str, Series]:
    """Numbers by name; of several at one step the last counts.

    Rows with the same names are taken together, which is what makes a hundred runs quick to read.
    """
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
    """(n,) float64, NaN for what is no number: null, a word, true or false."""
    kinds = {*map(type, values)}
    if kinds <= {int, float}:
        return np.array(values, np.float64)
    return np.array([value if type(value) in (int, float) else np.nan for value in values], np.float64)


def _status(folder: Path, reached: int, asked: int) -> tuple[Status, str]:
    at = _far(reached, asked)
    if _is_held(RunFolder(folder).lock_path):
        return "running", f"is still being written: {at} so far"
    if reached >= asked:
        return "complete", ""
    last = _last_words(folder)
    if last.startswith("failed: "):
        return "failed", f"failed after {at}: {last.removeprefix('failed: ')}"
    if last.startswith("stopped by "):
        return "incomplete", f"was stopped by {last.split()[2]} after {at}"
    return "incomplete", f"ended after {at}, without a word: it was killed, or its machine went down"


def _far(reached: int, asked: int) -> str:
    return f"{count(reached)} of {count(asked)} steps"


def _is_held(lock: Path) -> bool:
    """Whether a process holds a lock.

    It is only tried where its holder may be alive: to try it is to hold it for a moment, and a run that
    begins in that moment would be refused.
    """
    try:
        holder = re.fullmatch(r"(\d+) on (.*)", locks.holder(lock))
    except ValueError:  # no text
        return locks.is_held(lock)
    if holder and holder[2] == socket.gethostname() and not _is_alive(int(holder[1])):
        return False
    return locks.is_held(lock)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only asks
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _last_words(folder: Path) -> str:
    """The last line of log.txt without its time; indented lines belong to the one before."""
    try:
        lines = (folder / "log.txt").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    whole = [line for line in lines if line.strip() and not line.startswith(" ")]
    return whole[-1].partition(" ")[2] if whole else ""


def _evaluation(
    folder: Path, machine: Mapping[str, Any], reached: int, notes: list[str]
) -> dict[str, Any] | None:
    path = folder / EVALUATION_FILE
    if not path.is_file():
        return None
    saved = _optional(path, "the evaluation of the run", notes)
    try:
        agent, mean, returns = saved["agent"], float(saved["mean_return"]), saved["returns"]
        steps, started, episodes = int(agent["steps"]), agent.get("started"), len(returns)
    except (KeyError, TypeError, ValueError, AttributeError):
        if saved:
            notes.append(f"{path.name} is not what `voidrl evaluate --json` prints: left out")
        return None
    if (
        steps < reached
        or started not in (None, machine.get("date"))
        or not math.isfinite(mean)
        or not episodes
    ):
        notes.append(f"{path.name} is of an earlier agent than the run's: left out; evaluate it anew")
        return None
    return saved


def _name(runs: Sequence[Run]) -> None:
    """Paths relative to the folder that all of them share."""
    absolute = [run.path.absolute() for run in runs]
    shared = Path(os.path.commonpath(absolute))
    if len(runs) == 1:
        shared = absolute[0].parent
    for run, path in zip(runs, absolute, strict=True):
        relative = path.relative_to(shared)
        run.name = shared.name if relative == Path() else str(relative)
