"""Find the run folders under some paths, and the experiments that they belong to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from voidrl.errors import RunFolderError
from voidrl.runs.experiment_record import FILE_NAME as EXPERIMENT
from voidrl.runs.experiment_record import CellRecord, ExperimentRecord, read_experiment_record, read_failure
from voidrl.system.files import path_hint

# Files of a run besides its config: with one of them, a folder with a config.json is a run.
_SIGNS = {"metrics.jsonl", "environment.json", "checkpoints"}
_INSIDE = {"checkpoints", "snapshots", "best", "tb", "wandb", "report"}  # of a run, that hold no other run
_EXPECTED = "a run folder (one with config.json and metrics.jsonl), or a folder that holds some at any depth"


@dataclass(frozen=True)
class Skipped:
    """An unusable folder or file, and the reason."""

    path: Path
    why: str


@dataclass
class Place:
    """The folder of a run, or of a cell of an experiment that has not started."""

    path: Path
    name: str
    """Folder relative to the paths that are read."""
    experiment: ExperimentRecord | None = field(default=None, repr=False)
    cell: CellRecord | None = field(default=None, repr=False)

    @cached_property
    def resolved(self) -> Path:
        """The folder, without links."""
        return self.path.resolve()

    @property
    def has_run(self) -> bool:
        """Whether a run has started."""
        return os.path.isfile(self.path / "config.json")  # noqa: PTH113 - also without permission

    @property
    def source_path(self) -> Path | None:
        """The folder of the pre-training that a cell starts from, without links."""
        if self.experiment is None or self.cell is None or self.cell.source is None:
            return None
        return (self.experiment.root / self.cell.source).resolve()

    @property
    def failure(self) -> str:
        """Why the last attempt at a cell failed; empty where it did not."""
        if self.experiment is None or self.cell is None:
            return ""
        return read_failure(self.experiment.root, self.cell.folder)


@dataclass(frozen=True)
class Found:
    """Everything under the paths."""

    places: list[Place]
    """Cells of experiments in their order, then other runs."""
    skipped: list[Skipped]
    experiments: list[ExperimentRecord]


def find_runs(paths: Sequence[Path]) -> Found:
    """Find the runs and the cells under each path, once each.

    A path that does not exist is an error. So is a single path without runs; among several, as a shell
    expands `runs/*`, a folder without runs is skipped, and a file is ignored.
    """
    folders: dict[Path, Path] = {}  # resolved → as it was found
    cells: dict[Path, tuple[ExperimentRecord, CellRecord]] = {}
    skipped: dict[Path, Skipped] = {}
    records: dict[Path, ExperimentRecord | None] = {}
    for path in paths:
        if not path.exists():
            raise RunFolderError(f"there is nothing at {path}: expected {_EXPECTED}{path_hint(path)}")
        root = path.resolve()
        for parent in (root, *root.parents):
            _read_record(parent, records, skipped)
        inside: set[Path] = set()  # cells, which need not be entered
        is_empty = path.is_dir()
        refused: list[OSError] = []
        for folder, names in walk(path, inside, refused.append):
            if EXPERIMENT in names and (record := _read_record(folder.resolve(), records, skipped)):
                inside |= {folder / cell.folder for cell in record.cells}
            if looks_like_run(names):
                folders.setdefault(folder.resolve(), folder)
                is_empty = False
        for record in filter(None, records.values()):
            for place, cell in record.cells_by_path.items():
                if place.is_relative_to(root) or place in folders:
                    cells.setdefault(place, (record, cell))
                    is_empty = False
        for error in refused:
            skipped[Path(error.filename)] = Skipped(
                Path(error.filename), f"it cannot be read ({error.strerror})"
            )
        if is_empty:
            skipped.setdefault(root, Skipped(path, "it holds no runs"))
    if not folders and not cells:
        for each in skipped.values():
            if "cannot be read" in each.why:
                raise RunFolderError(f"{each.path} holds no run that can be found: {each.why}")
        raise RunFolderError(f"{', '.join(map(str, paths))} holds no runs: expected {_EXPECTED}")
    roots = [path.resolve() for path in paths]
    shared = roots[0] if len(roots) == 1 else Path(os.path.commonpath(roots))
    places = [Place(folders.pop(path, path), _name(path, shared), *known) for path, known in cells.items()]
    places += [Place(folder, _name(path, shared)) for path, folder in folders.items()]
    return Found(places, [*skipped.values()], [*filter(None, records.values())])


def _read_record(
    folder: Path, found: dict[Path, ExperimentRecord | None], skipped: dict[Path, Skipped]
) -> ExperimentRecord | None:
    """Read the experiment of a folder, once; one that is damaged is skipped."""
    if folder not in found:
        found[folder] = None
        try:
            found[folder] = read_experiment_record(folder)
        except RunFolderError as error:
            path = folder / EXPERIMENT
            skipped[path] = Skipped(path, f"{error}; runs are named by their configs instead")
    return found[folder]


def _name(folder: Path, shared: Path) -> str:
    if folder == shared:
        return folder.name
    return str(folder.relative_to(shared) if folder.is_relative_to(shared) else folder)


def walk(
    path: Path, known: Collection[Path] = (), on_error: Callable[[OSError], object] | None = None
) -> Iterator[tuple[Path, set[str]]]:
    """Every folder under a path that may be or hold a run, sorted, with the names in it.

    Links are followed, each folder is entered once, those that are known to be runs not at all. A file of a
    run stands for its folder.
    """
    seen: set[str] = set()
    for top, folders, files in os.walk(
        path.parent if path.is_file() else path, onerror=on_error, followlinks=True
    ):
        names, folder, real = {*folders, *files}, Path(top), os.path.realpath(top)
        is_run = looks_like_run(names)
        if path.is_file() and not is_run:
            return
        if real not in seen:
            yield folder, names
        omitted = {*folders} if real in seen else _INSIDE if is_run else set()
        inside = (each for each in folders if each not in omitted and not each.startswith("."))
        folders[:] = sorted((each for each in inside if folder / each not in known), key=natural_key)
        seen.add(real)


def looks_like_run(names: set[str]) -> bool:
    """Whether a folder with these names in it is the folder of a run."""
    return bool(_SIGNS & names) if "config.json" in names else {"metrics.jsonl", "environment.json"} <= names


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sort seed2 before seed10."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if i % 2 else (-1, part) for i, part in enumerate(parts)]
