"""Which run folders lie under the paths that a report is asked for, and to which experiment each belongs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voidrl.checkpoint import read_json
from voidrl.config import flat
from voidrl.errors import CheckpointError, RunFolderError

EXPERIMENT_FILE = "experiment.json"
EXPERIMENT_FORMAT = 1
# What a run writes beside its config: with one of them, a folder with a config.json is a run.
_SIGNS = ("metrics.jsonl", "environment.json", "checkpoints")
_INSIDE = {"checkpoints", "snapshots", "tb", "wandb", "report"}  # of a run, where no other run lies
_EXPECTED = "a run folder (one with config.json and metrics.jsonl), or a folder that holds some at any depth"


@dataclass(frozen=True)
class Skipped:
    """A folder or file that could not be used, and why."""

    path: Path
    why: str


@dataclass(frozen=True)
class Cell:
    """What an experiment says about one of its runs."""

    folder: str
    label: str
    phase: str
    seed: int
    task: str
    source: str | None
    steps: int
    protocol_steps: int | None
    evaluated: bool | None
    """Whether an evaluation is due; None where the experiment does not say."""


@dataclass(frozen=True)
class Experiment:
    """What `voidrl experiment` was asked for: its `experiment.json`."""

    root: Path
    name: str
    title: str
    about: str
    published: str | None
    command: str
    steps_scale: float
    missing: dict[str, str]
    """Methods of the experiment that do not exist yet, and what is said of each."""
    cells: dict[Path, Cell] = field(repr=False)
    """By the folder of the run."""
    preset: str | None
    default_preset: str | None
    """What its file has, where another one may be in use."""
    changes: dict[str, Any]
    """To the settings of its file, by dotted names."""
    earlier_commands: list[str]

    @property
    def departure(self) -> str:
        """In what it is not as its file has it, in words; empty where it is."""
        told = []
        if self.preset != self.default_preset:
            told.append(f"preset {self.preset} instead of the experiment's {self.default_preset or 'own'}")
        if self.changes:
            told.append(f"changed: {', '.join(f'{name}={value}' for name, value in self.changes.items())}")
        return "; ".join(told)

    def failure(self, cell: Cell) -> str:
        """The error with which the log of a cell ends; empty where it ends otherwise, or is not there."""
        try:
            text = (self.root / "logs" / f"{cell.folder}.log").read_text("utf-8", "replace")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
        is_error = re.match(r"voidrl: (?!stopped by )|[\w.]*(Error|Exception)\b", last)
        return last.removeprefix("voidrl: ") if is_error else ""


@dataclass(frozen=True)
class Found:
    """All that lies under the paths."""

    folders: list[Path]
    skipped: list[Skipped]
    experiments: list[Experiment]


def find_runs(paths: Sequence[str | Path], say: Callable[[str], None]) -> Found:
    """The runs under each path, once each, in the order of the paths.

    A path that does not exist is an error. One without runs is an error too if it is the only one; among
    others, as a shell makes of `runs/*`, a folder is skipped and said, and a file passed over.
    """
    folders: dict[Path, Path] = {}  # resolved → as it was found
    skipped: dict[Path, Skipped] = {}
    experiments = _Experiments()
    for given in paths:
        path = Path(given).expanduser()
        if not path.exists():
            raise RunFolderError(f"there is nothing at {path}: expected {_EXPECTED}")
        candidates = [*_candidates(path)]
        for folder in candidates:
            if (folder / "config.json").is_file():
                folders.setdefault(folder.resolve(), folder)
            else:
                why = "it holds the files of a run, but no config.json: the run was damaged or never begun"
                skipped.setdefault(folder.resolve(), Skipped(folder, why))
        for folder in (path, *candidates) if path.is_dir() else candidates:
            experiments.at_or_above(folder)
        if not candidates:
            why = "is a file of no run" if path.is_file() else f"holds no runs{experiments.hint(path)}"
            if len(paths) == 1:
                raise RunFolderError(f"{path} {why}: expected {_EXPECTED}")
            if path.is_file():
                say(f"passed over {path}, which {why}")
            else:
                skipped.setdefault(path.resolve(), Skipped(path, f"it {why}"))
    if not folders:
        why = next((f": {each.path} was skipped, as {each.why}" for each in skipped.values()), "")
        raise RunFolderError(f"no run can be reported{why}; expected {_EXPECTED}")
    return Found([*folders.values()], [*experiments.problems, *skipped.values()], experiments.found())


def _candidates(path: Path) -> Iterator[Path]:
    """Every folder that looks like a run, sorted; links are followed, each folder is entered once."""
    if path.is_file():
        folder = _of_file(path)
        if folder is not None:
            yield folder
        return
    seen: set[tuple[int, int]] = set()
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        try:
            stat = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda entry: _natural(entry.name))
        except OSError:
            continue  # a link to nowhere, or a folder that is closed to us
        if (stat.st_dev, stat.st_ino) in seen:
            continue
        seen.add((stat.st_dev, stat.st_ino))
        names = {entry.name for entry in entries}
        is_run = _looks_like_run(names)
        if is_run:
            yield folder
        inside = [
            Path(entry.path)
            for entry in entries
            if entry.is_dir() and not entry.name.startswith(".") and not (is_run and entry.name in _INSIDE)
        ]
        waiting += reversed(inside)


def _looks_like_run(names: set[str]) -> bool:
    if "config.json" in names:
        return any(sign in names for sign in _SIGNS)
    return "metrics.jsonl" in names and "environment.json" in names


def _of_file(path: Path) -> Path | None:
    """The run to which a file belongs, or a file in one of its checkpoints."""
    for parent in path.absolute().parents:
        try:
            names = {entry.name for entry in os.scandir(parent)}
        except OSError:
            return None
        if _looks_like_run(names) and parent.parent.name not in _INSIDE:
            return parent
    return None


def _natural(name: str) -> list[tuple[int, str]]:
    """seed2 before seed10."""
    parts: list[tuple[int, str]] = []
    digits = ""
    for sign in [*name, ""]:
        if sign.isascii() and sign.isdigit():
            digits += sign
            continue
        if digits:
            parts.append((int(digits), ""))
            digits = ""
        parts.append((-1, sign))
    return parts


class _Experiments:
    """The experiment.json files that were met on the way, each read once."""

    def __init__(self) -> None:
        self._by_folder: dict[Path, Experiment | None] = {}
        self.problems: list[Skipped] = []

    def at_or_above(self, folder: Path) -> None:
        for parent in (folder.resolve(), *folder.resolve().parents):
            if parent in self._by_folder:
                return
            self._by_folder[parent] = self._read(parent)

    def found(self) -> list[Experiment]:
        return [experiment for experiment in self._by_folder.values() if experiment is not None]

    def hint(self, path: Path) -> str:
        experiment = self._by_folder.get(path.resolve())
        if experiment is None:
            return ""
        return f" yet, as none of the {len(experiment.cells)} of experiment {experiment.name!r} has begun"

    def _read(self, root: Path) -> Experiment | None:
        path = root / EXPERIMENT_FILE
        if not path.is_file():
            return None
        try:
            return _experiment(root, read_json(path, "the experiment"))
        except CheckpointError as error:
            self.problems.append(Skipped(path, f"{error}; runs are named by their configs instead"))
        except (KeyError, TypeError, ValueError, AttributeError):
            why = "it is not what `voidrl experiment` writes; runs are named by their configs instead"
            self.problems.append(Skipped(path, why))
        return None


def _experiment(root: Path, data: Any) -> Experiment:
    version = data["format"]
    if version != EXPERIMENT_FORMAT:
        raise CheckpointError(
            f"it has format {version!r} where {EXPERIMENT_FORMAT} was expected: upgrade voidrl to read it"
        )
    cells = {
        (root / cell["folder"]).resolve(): Cell(
            folder=str(cell["folder"]),
            label=str(cell["label"]),
            phase=str(cell["phase"]),
            seed=int(cell["seed"]),
            task=str(cell["task"]),
            source=None if cell.get("source") is None else str(cell["source"]),
            steps=int(cell["steps"]),
            protocol_steps=None if cell.get("protocol_steps") is None else int(cell["protocol_steps"]),
            evaluated=None if cell.get("evaluated") is None else bool(cell["evaluated"]),
        )
        for cell in data["cells"]
    }
    return Experiment(
        root=root,
        name=str(data["name"]),
        title=str(data.get("title") or data["name"]),
        about=str(data.get("about") or ""),
        published=None if data.get("published") is None else str(data["published"]),
        command=str(data.get("command") or ""),
        steps_scale=float(data.get("steps_scale", 1.0)),
        missing={str(k): str(v) for k, v in (data.get("missing") or {}).items()},
        cells=cells,
        preset=None if data.get("preset") is None else str(data["preset"]),
        default_preset=None if data.get("default_preset") is None else str(data["default_preset"]),
        changes=flat(data.get("changes") or {}),
        earlier_commands=[str(line) for line in data.get("earlier_commands") or ()],
    )
