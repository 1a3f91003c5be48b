"""Live status of all runs under a folder, polled while they write.

A look at a run costs a few calls of `stat`: `status.json` is read if it has changed since the last look, the
end of `metrics.jsonl` only for what the status does not say. Nothing is written, and a lock is only tried
where the status does not show whether a run is alive.
"""

from __future__ import annotations

import math
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from voidrl.errors import CheckpointError, RunFolderError
from voidrl.report.find import looks_like_run, walk
from voidrl.runs import locks
from voidrl.runs.checkpoint import read_json
from voidrl.runs.evaluations import FILE_NAME as EVALUATION
from voidrl.runs.evaluations import final_evaluation
from voidrl.runs.experiment_record import FILE_NAME as EXPERIMENT
from voidrl.runs.experiment_record import CellRecord, ExperimentRecord, failure_path, read_experiment_record
from voidrl.runs.metrics import FILE_NAME as METRICS
from voidrl.runs.metrics import last_rows, score_name
from voidrl.runs.status import RunStatus, load_status, read_status
from voidrl.system.files import user_path
from voidrl.system.units import human_seconds

FIND_SECONDS = 15.0  # between two searches for folders that are new
TICK_NANOSECONDS = 10**9
LiveState = Literal[
    "waiting", "starting", "running", "evaluating", "done", "pruned", "stopped", "interrupted", "failed"
]
GROUPS: dict[LiveState, str] = {
    "done": "done",
    "running": "running",
    "starting": "running",
    "evaluating": "running",
    "failed": "failed",
    "pruned": "pruned",
    "stopped": "stopped",
    "interrupted": "stopped",
    "waiting": "waiting",
}
_EXPECTED = "a run, an experiment's folder, or one that holds runs at any depth"
T = TypeVar("T")


@dataclass(frozen=True)
class LiveRun:
    """One run, or a cell of an experiment that has not started."""

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

    @property
    def alike(self) -> tuple[tuple[str, ...], ...]:
        """Keys of runs of similar speed, from the closest group to all runs."""
        return (self.phase, self.arm, self.task), (self.phase, self.arm), (self.phase,), ()

    @property
    def group(self) -> str:
        """`done`, `running`, `failed`, `stopped`, `pruned` or `waiting`."""
        return GROUPS[self.state]

    def to_json(self) -> dict[str, Any]:
        """As data."""
        data = {**vars(self), "path": str(self.path), "log": None if self.log is None else str(self.log)}
        return {**data, "group": self.group}


@dataclass(frozen=True)
class LiveTable:
    """A snapshot of all runs."""

    made: str
    title: str
    runs: list[LiveRun]

    @property
    def counts(self) -> dict[str, int]:
        """Runs in each group, those without any included."""
        counts = dict.fromkeys(("done", "running", "failed", "stopped", "pruned", "waiting"), 0)
        for run in self.runs:
            counts[run.group] += 1
        return counts

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
        running = [run for run in self.runs if run.group == "running"]
        if not rates or not running:
            return None
        each = []
        for run in self.runs:
            if run.group in ("running", "waiting"):
                rate = run.rate if run.rate and run.state == "running" else None
                rate = rate or statistics.median(next(rates[key] for key in run.alike if key in rates))
                each.append(max(0, run.total_steps - run.steps) / rate)
        return max(*each, sum(each) / len(running), 0.0)

    def to_json(self) -> dict[str, Any]:
        """As data."""
        steps = sum(min(run.steps, run.total_steps) for run in self.runs)
        total = sum(run.total_steps for run in self.runs)
        summary: dict[str, Any] = {
            "runs": len(self.runs),
            **self.counts,
            "steps": steps,
            "total_steps": total,
            "seconds_left": self.seconds_left,
        }
        runs = [run.to_json() for run in self.runs]
        return {"made": self.made, "title": self.title, "summary": summary, "runs": runs}


@dataclass(frozen=True)
class _Place:
    """The present or future location of a run."""

    path: Path
    name: str
    experiment: ExperimentRecord | None = None
    cell: CellRecord | None = None


class Watch:
    """Looks at the runs under some paths; safe to use from several threads."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self.paths = [user_path(path) for path in paths]
        for path in self.paths:
            if not path.exists():
                raise RunFolderError(f"there is nothing at {path}: expected {_EXPECTED}")
        self._files: dict[tuple[str, str], tuple[tuple[int, ...] | None, Any]] = {}
        self._places: list[_Place] = []
        self._found_at: float | None = None
        self._looking = threading.Lock()

    @property
    def is_of_one_run(self) -> bool:
        """Whether the path is a single run."""
        path = self.paths[0]
        return len(self.paths) == 1 and (path.is_file() or (path / "config.json").is_file())

    def look(self) -> LiveTable:
        """The current state of all runs; raises where there are none."""
        with self._looking:
            now = time.monotonic()
            if self._found_at is None or now - self._found_at > FIND_SECONDS or self._misses_some():
                self._places = [*self._find()]
                self._found_at = now
            if not self._places:
                where = ", ".join(map(str, self.paths))
                if not any(path.exists() for path in self.paths):
                    raise RunFolderError(f"{where} is no longer there: it was removed or renamed")
                raise RunFolderError(f"{where} holds no runs: expected {_EXPECTED}")
            titles = dict.fromkeys(place.experiment.title for place in self._places if place.experiment)
            title = next(iter(titles)) if len(titles) == 1 else ", ".join(map(str, self.paths))
            runs = [self._run(place) for place in self._places]
            done = {run.path for run in runs if run.state == "done"}
            runs = [
                self._waiting_for(run, place, done) for run, place in zip(runs, self._places, strict=True)
            ]
            return LiveTable(datetime.now(UTC).isoformat(timespec="seconds"), title, runs)

    @property
    def log_folders(self) -> list[Path]:
        """Folders of logs: under the paths, or in the experiment that the paths belong to."""
        roots = {place.experiment.root.resolve() for place in self._places if place.experiment is not None}
        return [*(path.resolve() for path in self.paths), *(root / "logs" for root in roots)]

    # Finding

    def _misses_some(self) -> bool:
        """Whether known runs have disappeared; cells of experiments may have no folder yet."""
        if not self._places or not all(path.exists() for path in self.paths):
            return True
        return not all(place.path.exists() for place in self._places if place.cell is None)

    def _find(self) -> Iterator[_Place]:
        """Cells of experiments in their order, whether or not they have started, then other runs."""
        records: dict[Path, ExperimentRecord] = {}
        folders: dict[Path, Path] = {}  # resolved → as it was found
        cells: dict[Path, tuple[ExperimentRecord, CellRecord]] = {}
        for path in self.paths:
            resolved = path.resolve()
            for parent in (resolved, *resolved.parents):
                self._read_record(parent, records)
            known: set[Path] = set()  # cells, which need not be entered
            for folder, names in walk(path, known):
                if EXPERIMENT in names:
                    self._read_record(folder.resolve(), records)
                    if (record := records.get(folder.resolve())) is not None:
                        known |= {folder / cell.folder for cell in record.cells}
                if looks_like_run(names):
                    folders.setdefault(folder.resolve(), folder)
                    resolved = folder.resolve() if path.is_file() else resolved
            for record in records.values():
                for place, cell in record.cells_by_path.items():
                    if place.is_relative_to(resolved):
                        cells.setdefault(place, (record, cell))
        roots = [path.resolve() for path in self.paths]
        shared = roots[0] if len(roots) == 1 else Path(os.path.commonpath(roots))
        for place, (record, cell) in cells.items():
            folders.pop(place, None)
            yield _Place(place, _name(place, shared), record, cell)
        for place, folder in folders.items():
            yield _Place(folder, _name(place, shared))

    def _read_record(self, root: Path, records: dict[Path, ExperimentRecord]) -> None:
        if root not in records:
            with suppress(RunFolderError):  # a damaged one: its runs are found by themselves
                record = self._unchanged(root / EXPERIMENT, lambda path: read_experiment_record(path.parent))
                if record is not None:
                    records[root] = record

    # Reading

    def _unchanged(self, path: Path, load: Callable[[Path], T], what: str = "") -> T | None:
        """The result of `load`, which runs only if the file has changed; None without a file."""
        try:
            found = path.stat()
        except OSError:
            return None
        state = (found.st_ino, found.st_mtime_ns, found.st_size)
        before = self._files.get((str(path), what))
        # Two files may be written within one tick of the file system's clock.
        is_new = abs(time.time_ns() - found.st_mtime_ns) < TICK_NANOSECONDS
        if before is None or before[0] != state or is_new:
            before = state, load(path)
            self._files[str(path), what] = before
        value: T = before[1]
        return value

    def _run(self, place: _Place) -> LiveRun:
        experiment, cell = place.experiment, place.cell
        known: dict[str, Any] = {"name": place.name, "path": place.path, "log": _log(place)}
        if cell is not None:
            known |= {"total_steps": cell.steps, "phase": cell.phase, "arm": cell.arm, "task": cell.task}
        try:
            status = read_status(place.path, lambda path: self._unchanged(path, load_status))
        except RunFolderError as error:
            return self._by_metrics(place, LiveRun(**known, state="failed", note=str(error)))
        if status is None:
            run = LiveRun(**known, state="waiting")
            return self._of_cell(place, self._by_metrics(place, run) if self._has_run(place) else run)
        run = LiveRun(
            **{**known, "total_steps": status.total_steps or known.get("total_steps", 0)},
            state="pruned" if status.is_pruned else status.state,
            steps=status.steps,
            rate=status.rate,
            seconds_left=status.seconds_left,
            score_name=status.score_name,
            score=status.score,
            score_step=status.score_step,
            host=status.host,
            device=status.device,
            ranks=status.ranks,
            pid=status.pid,
            started=status.started,
            heartbeat_age=status.age(datetime.now(UTC)) if status.heartbeat else None,
            checkpoint=status.checkpoint,
            note=_note(status),
        )
        if run.score is None:
            run = self._scored_by_metrics(run)
        if status.state == "done":
            run = self._evaluated(run)
        return run if experiment is None else self._of_cell(place, run)

    def _has_run(self, place: _Place) -> bool:
        return (place.path / "config.json").is_file()

    def _by_metrics(self, place: _Place, run: LiveRun) -> LiveRun:
        """A run without a usable status.json: its progress according to its metrics."""
        config = self._unchanged(place.path / "config.json", _config)
        total, phase = config or (run.total_steps, run.phase)
        rows = self._unchanged(place.path / METRICS, _newest) or {}
        steps = rows.get("step", 0)
        if run.state != "failed":
            run = _changed(run, state="done" if steps >= total > 0 else "interrupted")
        return self._scored_by_metrics(_changed(run, total_steps=total, phase=phase, steps=steps))

    def _scored_by_metrics(self, run: LiveRun) -> LiveRun:
        found = self._unchanged(run.path / METRICS, lambda path: _last_score(path.parent, run.phase), "score")
        if not found:
            return run
        name, score, step = found
        return _changed(run, score_name=name, score=score, score_step=step)

    def _evaluated(self, run: LiveRun) -> LiveRun:
        """The run with the score of its final agent, if that has been evaluated."""
        found = self._final_score(run)
        if not found:
            return run
        name, score = found
        return _changed(run, score_name=name, score=score, score_step=run.steps)

    def _final_score(self, run: LiveRun) -> tuple[str, float] | None:
        return self._unchanged(run.path / EVALUATION, lambda path: _evaluation(path.parent, run.steps))

    def _of_cell(self, place: _Place, run: LiveRun) -> LiveRun:
        """Add the experiment's knowledge: failures of the cell's process, and evaluations that are due."""
        experiment, cell = place.experiment, place.cell
        if experiment is None or cell is None or run.state in ("starting", "running"):
            return run
        due = cell.evaluated and not self._final_score(run)
        if run.state == "done" and not due:
            return run
        if run.state != "failed" and locks.is_held(locks.cell_lock_path(experiment.root, cell.folder)):
            return _changed(run, state="evaluating" if run.state == "done" else "starting", note="")
        why = self._unchanged(failure_path(experiment.root, cell.folder), _failure)
        if why and run.state not in ("stopped", "pruned"):
            return _changed(run, state="failed", note=why)
        if run.state == "done":
            return _changed(run, state="waiting", note="its evaluation is missing")
        return run

    def _waiting_for(self, run: LiveRun, place: _Place, done: set[Path]) -> LiveRun:
        if run.state != "waiting" or run.note or place.cell is None or place.cell.source is None:
            return run
        assert place.experiment is not None
        if (place.experiment.root / place.cell.source).resolve() in done:
            return run
        return _changed(run, note=f"waits for {place.cell.source}")


def _name(folder: Path, shared: Path) -> str:
    if folder == shared or not folder.is_relative_to(shared):
        return folder.name if folder == shared else str(folder)
    return str(folder.relative_to(shared))


def _changed(run: LiveRun, **changes: Any) -> LiveRun:
    return LiveRun(**{**vars(run), **changes})


def _log(place: _Place) -> Path | None:
    """The newest text that a run has printed: of its cell's process, else its own log."""
    found = [place.path / "log.txt"]
    if place.experiment is not None and place.cell is not None:
        found.insert(0, place.experiment.root / "logs" / f"{place.cell.folder}.log")
    return next((path for path in found if path.is_file()), None)


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


def _config(path: Path) -> tuple[int, str] | None:
    with suppress(CheckpointError, KeyError, TypeError, ValueError):
        config = read_json(path, "the config of the run")
        return int(config["steps"]), str(config["phase"])
    return None


def _newest(path: Path) -> dict[str, Any]:
    return next(iter(last_rows(path.parent)), {})


def _last_score(folder: Path, phase: str) -> tuple[str, float, int] | None:
    """An evaluation in the end of the metrics, else the newest row that has a score."""
    newest: tuple[str, float, int] | None = None
    for row in last_rows(folder):
        name = score_name(row, phase or str(row.get("phase", "")))
        if row["step"] == 0:  # a fine-tuning has evaluated the pre-trained agent
            continue
        if name and isinstance(row[name], int | float) and math.isfinite(row[name]):
            found = name, float(row[name]), int(row["step"])
            if name.startswith("eval/"):
                return found
            newest = newest or found
    return newest


def _evaluation(folder: Path, steps: int) -> tuple[str, float] | None:
    with suppress(CheckpointError, RunFolderError):
        saved = final_evaluation(folder, steps)
        if saved is not None:
            if successes := saved.get("successes"):
                return "eval/success", float(statistics.mean(map(float, successes)))
            return "eval/return", float(saved["mean_return"])
    return None


def _failure(path: Path) -> str:
    with suppress(CheckpointError, KeyError):
        return str(read_json(path, "a failure")["error"])
    return ""
