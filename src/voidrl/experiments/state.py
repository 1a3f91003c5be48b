"""State of a cell's folder: empty, a partial run, a complete one, or a run with other settings."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from voidrl.config import LOCAL_FIELDS, Config, flat, to_json
from voidrl.errors import CheckpointError, RunFolderError, VoidrlError
from voidrl.experiments.planner import Cell
from voidrl.runs import checkpoint
from voidrl.runs.evaluations import evaluated_value, final_evaluation, is_evaluated
from voidrl.runs.metrics import read_metrics
from voidrl.runs.status import read_status
from voidrl.training import build

NO_CHECKPOINT = -1  # an untrained agent has one of step 0


class CellState(NamedTuple):
    """The progress of a cell."""

    kind: Literal["to do", "partial", "done"]
    steps: int = 0
    """Steps from which it can be resumed; all of them if only its evaluation is missing."""


class Wanted(NamedTuple):
    """The fields of a cell that its state depends on."""

    config: Config
    evaluation: dict[str, Any] | None


def state_of(cell: Cell | Wanted, folder: Path) -> CellState:
    """Judge a cell by its files, without reading checkpoints."""
    if not (folder / "config.json").is_file():
        return CellState("to do")
    saved = max(checkpoint.list_steps(folder / "checkpoints"), default=NO_CHECKPOINT)
    is_trained = max(saved, last_checkpoint(folder)) >= cell.config.steps
    if is_trained and (cell.evaluation is None or cell_evaluation(cell, folder) is not None):
        return CellState("done", cell.config.steps)
    return CellState("partial", max(0, saved))


def last_checkpoint(folder: Path) -> int:
    """Step of the newest checkpoint that a run has written, even if it was removed since; −1 without one."""
    status = read_status(folder)
    return NO_CHECKPOINT if status is None or status.checkpoint is None else status.checkpoint


def cell_evaluation(cell: Cell | Wanted, folder: Path) -> dict[str, Any] | None:
    """The evaluation of the final agent, if its settings are the cell's; it needs no checkpoint."""
    with suppress(CheckpointError, RunFolderError):
        saved = final_evaluation(folder, cell.config.steps)
        return saved if saved is not None and saved["settings"] == cell.evaluation else None
    return None


def cell_value(cell: Cell, folder: Path, measure: str) -> float | None:
    """The value of a measure of its evaluation, or the last value of a column; None where it has none."""
    if is_evaluated(measure):
        return None if cell.evaluation is None else evaluated_value(measure, cell_evaluation(cell, folder))
    with suppress(VoidrlError):  # nothing is logged
        values = [row[measure] for row in read_metrics(folder) if isinstance(row.get(measure), int | float)]
        return float(values[-1]) if values else None
    return None


def require_same_settings(cell: Cell | Wanted, folder: Path) -> None:
    """Refuse a folder with a run of other settings."""
    if differ := differing_settings(cell, folder):
        raise RunFolderError(
            f"{folder} holds a run with other settings: {', '.join(differ)}; ask for the same, or use "
            f"another --out"
        )


def differing_settings(cell: Cell | Wanted, folder: Path) -> list[str]:
    """Differences between the config in a folder and the cell's, in words; empty without a run."""
    path = folder / "config.json"
    if not path.is_file():
        return []
    there = build.config_from_json(checkpoint.read_json(path, "the config of a run"))
    found, wanted = flat(to_json(there)), flat(to_json(cell.config))
    # Pre-training does not depend on fine-tuning.
    unused = ("finetune.", "reward_scale") if cell.config.phase == "pretrain" else ()
    return [
        f"{name} is {found.get(name)!r} there and {wanted.get(name)!r} here"
        for name in {**wanted, **found}
        if name not in LOCAL_FIELDS and not name.startswith(unused) and found.get(name) != wanted.get(name)
    ]
