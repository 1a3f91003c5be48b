"""`experiment.json` and the failures of its cells: the parts of an experiment, for later readers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from voidrl.errors import CheckpointError, RunFolderError, UnreadableError
from voidrl.runs.checkpoint import Shape, read_json, remove_leftovers, require_shape, write_json_atomic
from voidrl.runs.locks import CELLS

FILE_NAME = "experiment.json"
FORMAT = 1
CELL: Shape = {
    **dict.fromkeys(("folder", "label", "task", "method", "phase", "arm?"), str),
    **dict.fromkeys(("seed", "steps"), int),
    **dict.fromkeys(("protocol_steps", "pretrain_seed?"), int | None),
    **dict.fromkeys(("source", "like?"), str | None),
    "point?": {},
}
SHAPE: Shape = {
    **dict.fromkeys(("name", "title", "about", "command", "departure?"), str),
    "published": str | None,
    "earlier_commands?": [str],
    "format": int,
    "cells": [CELL],
}
T = TypeVar("T")


@dataclass(frozen=True)
class CellRecord:
    """One run of an experiment."""

    folder: str
    """Run folder, relative to the experiment's."""
    label: str
    task: str
    method: str
    seed: int
    phase: str
    source: str | None
    """Folder of the pre-training that it starts from."""
    steps: int
    protocol_steps: int | None
    """Steps in the experiment's own protocol."""
    evaluated: bool | None = None
    """Whether an evaluation is due; None if unknown."""
    arm: str = ""
    """The method's name in the experiment's file."""
    pretrain_seed: int | None = None
    """Seed of the pre-training that it is, or starts from."""
    like: str | None = None
    """The method whose fine-tuning settings it uses from scratch."""
    point: dict[str, Any] = field(default_factory=dict)
    """Its point in the grid: values of the fields that vary."""
    task_name: str = ""
    """The name that the experiment's file gives the task, if it gives one."""


@dataclass(frozen=True)
class GridRecord:
    """The grid of an experiment."""

    log: dict[str, bool]
    """The fields that vary, by dotted names, and whether their values are on a log axis."""
    chosen: str = "product"
    """`product` for all points, `tune` for those that Optuna chose."""
    metric: str = "return"
    """The measure that ranks points."""
    direction: str = "maximize"
    short: dict[str, str] = field(default_factory=dict)
    """Short names of the fields, as in folders."""
    labels: dict[str, str] = field(default_factory=dict)
    """The label of each method, without a point."""


@dataclass(frozen=True)
class ExperimentRecord:
    """The request of a `voidrl experiment` command."""

    root: Path
    name: str
    title: str
    about: str
    published: str | None
    command: str
    cells: list[CellRecord] = field(repr=False)
    departure: str = ""
    """Differences from the experiment's file, in words; empty without any."""
    earlier_commands: list[str] = field(default_factory=list)
    grid: GridRecord | None = None
    """The grid; None without one."""

    @cached_property
    def cells_by_path(self) -> dict[Path, CellRecord]:
        """Cells by their resolved run folders."""
        return {(self.root / cell.folder).resolve(): cell for cell in self.cells}

    def write(self) -> None:
        """Write `experiment.json` atomically."""
        remove_leftovers(self.root / FILE_NAME)  # under the experiment's lock: leftovers of killed processes
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "root"}
        data["cells"] = [dataclasses.asdict(cell) for cell in self.cells]
        data["grid"] = self.grid and dataclasses.asdict(self.grid)
        write_json_atomic(self.root / FILE_NAME, {"format": FORMAT, **data})


def read_experiment_record(root: Path) -> ExperimentRecord | None:
    """Read the record in a folder; None where there is none, an error where it is unusable."""
    path = root / FILE_NAME
    if not os.path.isfile(path):  # noqa: PTH113 - `Path.is_file` raises in a folder that cannot be read
        return None
    try:
        data = read_json(path, "the experiment")
        if isinstance(data["format"], int) and data["format"] > FORMAT:
            raise RunFolderError(f"{path} has format {data['format']}, newer than {FORMAT}: upgrade voidrl")
        require_shape(path, data, SHAPE)
        cells = [_known(CellRecord, cell) for cell in data["cells"]]
        grid = _known(GridRecord, data["grid"]) if data.get("grid") else None
        record = _known(ExperimentRecord, {**data, "root": root, "cells": cells, "grid": grid})
        _ = record.cells_by_path  # no path has a null byte
        return record
    except UnreadableError:
        raise
    except (CheckpointError, AttributeError, KeyError, TypeError, ValueError):
        raise RunFolderError(
            f"{path} is damaged: remove it; `voidrl experiment` writes it again and keeps the runs"
        ) from None


def _known(cls: Callable[..., T], data: dict[str, Any]) -> T:
    """A record of the fields that it has."""
    return cls(**{name: value for name, value in data.items() if name in cls.__annotations__})


def write_failure(root: Path, folder: str, error: str) -> None:
    """Record why a cell failed, in one sentence."""
    path = failure_path(root, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(path, {"error": error})


def read_failure(root: Path, folder: str) -> str:
    """Return why the last attempt at a cell failed; empty where it did not."""
    try:
        return str(read_json(failure_path(root, folder), "a failure")["error"])
    except (CheckpointError, KeyError, TypeError):
        return ""


def clear_failure(root: Path, folder: str) -> None:
    """Forget the last attempt at a cell."""
    failure_path(root, folder).unlink(missing_ok=True)


def failure_path(root: Path, folder: str) -> Path:
    """The file with a cell's failure: outside its run folder, which may not exist."""
    return root / CELLS / f"{folder}.failure.json"
