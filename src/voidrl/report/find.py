"""Find the run folders under the paths of a report, and the experiments that they belong to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from voidrl.errors import RunFolderError
from voidrl.runs.experiment_record import ExperimentRecord, read_experiment_record
from voidrl.system.files import user_path

# Files of a run besides its config: with one of them, a folder with a config.json is a run.
_SIGNS = {"metrics.jsonl", "environment.json", "checkpoints"}
_INSIDE = {"checkpoints", "snapshots", "best", "tb", "wandb", "report"}  # of a run, that hold no other run
_EXPECTED = "a run folder (one with config.json and metrics.jsonl), or a folder that holds some at any depth"


@dataclass(frozen=True)
class Skipped:
    """An unusable folder or file, and the reason."""

    path: Path
    why: str


@dataclass(frozen=True)
class Found:
    """Everything under the paths."""

    folders: list[Path]
    skipped: list[Skipped]
    experiments: list[ExperimentRecord]


def find_runs(paths: Sequence[str | Path], say: Callable[[str], None]) -> Found:
    """Find the runs under each path, once each, in the order of the paths.

    A path that does not exist is an error. So is a single path without runs; among several, as a shell
    expands `runs/*`, a folder without runs is reported as skipped, and a file is only mentioned.
    """
    folders: dict[Path, Path] = {}  # resolved → as it was found
    skipped: dict[Path, Skipped] = {}
    experiments: dict[Path, ExperimentRecord | None] = {}
    for given in paths:
        path = user_path(given)
        if not path.exists():
            raise RunFolderError(f"there is nothing at {path}: expected {_EXPECTED}")
        candidates = [*_candidates(path)]
        for folder in candidates:
            if (folder / "config.json").is_file():
                folders.setdefault(folder.resolve(), folder)
            else:
                why = "it holds the files of a run, but no config.json: the run was damaged or never started"
                skipped.setdefault(folder.resolve(), Skipped(folder, why))
        for folder in (path, *candidates) if path.is_dir() else candidates:
            _read_experiments(folder.resolve(), experiments, skipped)
        if not candidates:
            why = "is a file of no run" if path.is_file() else "holds no runs"
            if (record := experiments.get(path.resolve())) is not None:
                why += f" yet: none of the {len(record.cells)} of experiment {record.name!r} has started"
            if len(paths) == 1:
                raise RunFolderError(f"{path} {why}: expected {_EXPECTED}")
            if path.is_file():
                say(f"ignored {path}, which {why}")
            else:
                skipped.setdefault(path.resolve(), Skipped(path, f"it {why}"))
    if not folders:
        why = next((f": {each.path} was skipped, as {each.why}" for each in skipped.values()), "")
        raise RunFolderError(f"no run can be reported{why}; expected {_EXPECTED}")
    records = [record for record in experiments.values() if record is not None]
    return Found([*folders.values()], [*skipped.values()], records)


def _read_experiments(
    folder: Path, found: dict[Path, ExperimentRecord | None], skipped: dict[Path, Skipped]
) -> None:
    """Read the experiment.json of a folder and of those above it, each once."""
    for parent in (folder, *folder.parents):
        if parent in found:
            return
        found[parent] = None
        try:
            found[parent] = read_experiment_record(parent)
        except RunFolderError as error:
            path = parent / "experiment.json"
            skipped[path] = Skipped(path, f"{error}; runs are named by their configs instead")


def _candidates(path: Path) -> Iterator[Path]:
    """Every folder that looks like a run, sorted."""
    yield from (folder for folder, names in walk(path) if looks_like_run(names))


def walk(path: Path, known: Collection[Path] = ()) -> Iterator[tuple[Path, set[str]]]:
    """Every folder under a path that may be or hold a run, sorted, with the names in it.

    Links are followed, each folder is entered once, those that are known to be runs not at all. Of a file it
    is the folder of the run that the file belongs to, if there is one.
    """
    if path.is_file():
        above = (parent for parent in path.absolute().parents if parent.parent.name not in _INSIDE)
        found = ((parent, _names(parent)) for parent in above)
        yield from [(parent, names) for parent, names in found if looks_like_run(names)][:1]
        return
    seen: set[tuple[int, int]] = set()
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        if folder in known:
            continue
        try:
            stat = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda entry: natural_key(entry.name))
        except OSError:
            continue  # a broken link, or a folder without permission
        if (stat.st_dev, stat.st_ino) in seen:
            continue
        seen.add((stat.st_dev, stat.st_ino))
        names = {entry.name for entry in entries}
        is_run = looks_like_run(names)
        yield folder, names
        inside = [
            Path(entry.path)
            for entry in entries
            if entry.is_dir() and not entry.name.startswith(".") and not (is_run and entry.name in _INSIDE)
        ]
        waiting += reversed(inside)


def _names(folder: Path) -> set[str]:
    try:
        return {entry.name for entry in os.scandir(folder)}
    except OSError:
        return set()


def looks_like_run(names: set[str]) -> bool:
    """Whether a folder with these names in it is the folder of a run."""
    return bool(_SIGNS & names) if "config.json" in names else {"metrics.jsonl", "environment.json"} <= names


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sort seed2 before seed10."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if i % 2 else (-1, part) for i, part in enumerate(parts)]
