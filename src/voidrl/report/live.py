"""State of runs while they write: progress, rate, score, and why a run failed or waits.

Nothing is written, and a lock is only tried where the status does not show whether a run is alive.
"""

from __future__ import annotations

import math
import os
import socket
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from voidrl.errors import CheckpointError, RunFolderError
from voidrl.report.find import Place, find_runs
from voidrl.runs import locks
from voidrl.runs.checkpoint import read_json
from voidrl.runs.evaluations import evaluated_value, final_evaluation
from voidrl.runs.metrics import read_metrics
from voidrl.runs.status import RunStatus, read_status
from voidrl.system.files import user_path
from voidrl.system.units import human_seconds

FIND_SECONDS = 15.0  # between two searches for folders that are new
LiveState = Literal[
    "waiting", "starting", "running", "evaluating", "done", "pruned", "stopped", "interrupted", "failed"
]
GROUPS = ("done", "running", "failed", "stopped", "pruned", "waiting")
_GROUP_OF = {"starting": "running", "evaluating": "running", "interrupted": "stopped"}


@dataclass
class LiveRun:
    """State of one run, or of a cell of an experiment that has not started."""

    name: str
    """Its folder, relative to the path that is watched."""
    path: Path
    state: LiveState
    steps: int = 0
    total_steps: int = 0
    rate: float | None = None
    """Steps per second."""
    seconds_left: float | None = None
    score_name: str = ""
    score: float | None = None
    score_step: int | None = None
    host: str = ""
    device: str = ""
    ranks: int = 1
    pid: int = 0
    started: str = ""
    heartbeat_age: float | None = None
    """Seconds."""
    checkpoint: int | None = None
    note: str = ""
    """The reason why it failed, stopped or waits."""
    log: Path | None = None
    phase: str = ""
    arm: str = ""
    """The method's name in the experiment's file."""
    task: str = ""
    took_all_steps: bool = False
    """Whether training is complete; an evaluation may be due, or have failed."""

    @property
    def alike(self) -> tuple[tuple[str, ...], ...]:
        """Keys of runs of similar speed, from the closest group to all runs."""
        return (self.phase, self.arm, self.task), (self.phase, self.arm), (self.phase,), ()

    @property
    def group(self) -> str:
        """One of `GROUPS`."""
        return _GROUP_OF.get(self.state, self.state)

    def to_json(self) -> dict[str, Any]:
        """As data."""
        log = self.log and str(self.log)
        return {**vars(self), "path": str(self.path), "log": log, "group": self.group}


@dataclass(frozen=True)
class LiveTable:
    """A snapshot of all runs."""

    made: str
    title: str
    runs: list[LiveRun]

    @property
    def counts(self) -> dict[str, int]:
        """Runs in each group, those without any included."""
        counts = Counter(run.group for run in self.runs)
        return {group: counts[group] for group in GROUPS}

    @property
    def is_over(self) -> bool:
        """Whether no run is running or waiting."""
        return not (self.counts["running"] or self.counts["waiting"])

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until all runs are done, at the current concurrency; None if unknown.

        A cell without a rate gets the median rate of the cells most like it.
        """
        rates: dict[tuple[str, ...], list[float]] = {}
        for run in self.runs:
            if run.rate and run.group in ("running", "done"):
                for key in run.alike:
                    rates.setdefault(key, []).append(run.rate)
        running = self.counts["running"]
        if not rates or not running:
            return None
        each = []
        for run in self.runs:
            if run.group in ("running", "waiting"):
                rate = run.rate if run.state == "running" else None
                rate = rate or statistics.median(next(rates[key] for key in run.alike if key in rates))
                each.append(max(0, run.total_steps - run.steps) / rate)
        return max(*each, sum(each) / running)

    def to_json(self) -> dict[str, Any]:
        """As data."""
        summary: dict[str, Any] = {
            "runs": len(self.runs),
            **self.counts,
            "steps": sum(min(run.steps, run.total_steps) for run in self.runs),
            "total_steps": sum(run.total_steps for run in self.runs),
            "seconds_left": self.seconds_left,
        }
        runs = [run.to_json() for run in self.runs]
        return {"made": self.made, "title": self.title, "summary": summary, "runs": runs}


class Watch:
    """Looks at the runs under some paths, again and again."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.paths = [user_path(path) for path in paths]
        self._places: list[Place] = []
        self._found_at = -math.inf

    @property
    def is_of_one_run(self) -> bool:
        """Whether the path is a single run."""
        path = self.paths[0]
        return len(self.paths) == 1 and (path.is_file() or os.path.isfile(path / "config.json"))  # noqa: PTH113 - also without permission

    def look(self) -> LiveTable:
        """The current state of all runs; raises where there are none."""
        now = time.monotonic()
        has_lost = not all(place.path.exists() for place in self._places if place.cell is None)
        if now - self._found_at > FIND_SECONDS or has_lost:
            self._places = find_runs(self.paths).places
            self._found_at = now
        titles = dict.fromkeys(place.experiment.title for place in self._places if place.experiment)
        title = next(iter(titles)) if len(titles) == 1 else ", ".join(map(str, self.paths))
        runs = [look_at(place) for place in self._places]
        done = {place.resolved for place, run in zip(self._places, runs, strict=True) if run.state == "done"}
        for run, place in zip(runs, self._places, strict=True):
            if (
                run.state == "waiting"
                and not run.note
                and (source := place.source_path)
                and source not in done
            ):
                assert place.cell is not None
                run.note = f"waits for {place.cell.source}"
        return LiveTable(datetime.now(UTC).isoformat(timespec="seconds"), title, runs)


def look_at(place: Place) -> LiveRun:
    """The state of a run by its status, else by its metrics, and by what its experiment knows."""
    run = LiveRun(place.name, place.path, "waiting", log=_log(place))
    if (cell := place.cell) is not None:
        run.total_steps, run.phase, run.arm, run.task = cell.steps, cell.phase, cell.arm, cell.task
    try:
        status = read_status(place.path)
    except RunFolderError as error:
        _add_metrics(run)
        run.state, run.note = "failed", str(error)
        return run
    if status is not None:
        _add_status(run, status)
    elif place.has_run:
        _add_metrics(run)
    run.took_all_steps = run.state == "done"
    evaluation = _final_score(run) if run.took_all_steps else None
    if evaluation is not None:
        run.score_name, run.score = evaluation
        run.score_step = run.steps
    if place.experiment is not None and cell is not None:
        is_over = run.took_all_steps and (evaluation is not None or not cell.evaluated)
        if not is_over and run.state not in ("starting", "running", "pruned"):
            _add_cell(run, locks.cell_lock_path(place.experiment.root, cell.folder), place.failure)
    return run


def _add_status(run: LiveRun, status: RunStatus) -> None:
    same = ("steps", "rate", "seconds_left", "score_name", "score", "score_step", "host", "device", "ranks")
    for name in (*same, "pid", "started", "checkpoint"):
        setattr(run, name, getattr(status, name))
    run.state = "pruned" if status.is_pruned else status.state
    run.total_steps = status.total_steps or run.total_steps
    run.heartbeat_age = status.age(datetime.now(UTC)) if status.heartbeat else None
    run.note = _note(status)


def _add_metrics(run: LiveRun) -> None:
    """The progress of a run without a usable status.json according to its metrics."""
    with suppress(CheckpointError, KeyError, TypeError, ValueError):
        config = read_json(run.path / "config.json", "the config of the run")
        run.total_steps, run.phase = int(config["steps"]), str(config["phase"])
    with suppress(RunFolderError):
        rows = read_metrics(run.path, skip=lambda text: None)
        run.steps = max((row["step"] for row in rows), default=0)
    run.state = "done" if run.steps >= run.total_steps > 0 else "interrupted"


def _final_score(run: LiveRun) -> tuple[str, float] | None:
    """The score of the final agent, if that has been evaluated."""
    with suppress(CheckpointError, RunFolderError):
        saved = final_evaluation(run.path, run.steps)
        for measure in ("success", "return"):
            if (score := evaluated_value(measure, saved)) is not None:
                return f"eval/{measure}", score
    return None


def _add_cell(run: LiveRun, lock: Path, failure: str) -> None:
    """The experiment's knowledge of a cell that is not over: failures of its process, and due evaluations."""
    if run.state != "failed" and locks.is_held(lock):
        run.state, run.note = "evaluating" if run.took_all_steps else "starting", ""
    elif failure and run.state != "stopped":
        run.state, run.note = "failed", failure
    elif run.took_all_steps:
        run.state, run.note = "waiting", "its evaluation is missing"


def _log(place: Place) -> Path | None:
    """The newest text that a run has printed: of its cell's process, else its own log."""
    found = [place.path / "log.txt"]
    if place.experiment is not None and place.cell is not None:
        found.insert(0, place.experiment.root / "logs" / f"{place.cell.folder}.log")
    return next((path for path in found if os.path.isfile(path)), None)  # noqa: PTH113


def _note(status: RunStatus) -> str:
    if status.state == "failed":
        return status.error or ""
    if status.is_pruned:
        return "worse than others at the same step"
    if status.state == "stopped":
        return f"stopped by {status.signal or status.callback}"
    if status.state != "interrupted":
        return ""
    if status.host in ("", socket.gethostname()):
        return "its process ended and wrote no final state"
    age = human_seconds(status.age(datetime.now(UTC)))
    return f"no heartbeat from {status.host} for {age}: its process or its node is gone"
