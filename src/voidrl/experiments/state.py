"""What the folder of a cell holds: nothing, a part of the run, all of it, or a run with other settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from voidrl import build, checkpoint
from voidrl.config import flat, to_json
from voidrl.errors import CheckpointError, RunFolderError
from voidrl.experiments.plan import Cell, Plan
from voidrl.scores.score import FILE_NAME, started

Kind = Literal["missing", "partial", "trained", "done"]
ANYWHERE = {"device", "engine"}  # where a run is computed: it may go on, or be read, on another machine
TAIL_BYTES = 1 << 16  # of metrics.jsonl: far more than a row


@dataclass(frozen=True)
class State:
    """How far a cell has come."""

    kind: Kind
    """`trained` lacks its evaluation alone."""
    step: int = 0


def state_of(cell: Cell, folder: Path) -> State:
    """As files tell, without reading checkpoints."""
    if not (folder / "config.json").is_file():
        return State("missing")
    saved = checkpoint.list_steps(folder / "checkpoints")
    step, asked = reached(folder), cell.config.steps
    if cell.evaluation is not None:
        if step >= asked and read_evaluation(cell, folder) is not None:
            return State("done", step)
    elif saved[-1] >= asked if saved else step >= asked and wrote_checkpoint(folder):
        return State("done", step)
    if saved and saved[-1] >= asked:
        return State("trained", step)
    # Rows after the last checkpoint are written again: they are not counted as done.
    return State("partial", min(step, saved[-1]) if saved else 0)


def read_evaluation(cell: Cell, folder: Path) -> dict[str, Any] | None:
    """The evaluation that is asked for, of the run that is there; with it no checkpoint is needed."""
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        saved: dict[str, Any] = checkpoint.read_json(path, "an evaluation")
        agent, settings = saved["agent"], saved["settings"]
        at_end = agent["steps"] >= cell.config.steps and agent["started"] == started(folder)
    except (CheckpointError, KeyError, TypeError):
        return None
    return saved if at_end and settings == cell.evaluation else None


def reached(folder: Path) -> int:
    """The step of the last row of metrics."""
    row = last_row(folder)
    return int(row["step"]) if row is not None else 0


def last_row(folder: Path) -> dict[str, Any] | None:
    """The last whole row of metrics.jsonl, without reading all of it; None where there is none."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue  # torn, or empty
        if isinstance(row, dict) and "step" in row:
            return row
    return None


def wrote_checkpoint(folder: Path) -> bool:
    """Whether one was ever written: if it is no longer there, somebody has taken it away."""
    try:
        return " checkpoint step_" in (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def refuse_others(plan: Plan, cells: Sequence[Cell]) -> None:
    """An error if a folder holds a run with other settings, before anything is begun."""
    for cell in cells:
        path = plan.path(cell) / "config.json"
        if path.is_file() and (differ := differences(cell, path)):
            raise RunFolderError(
                f"{plan.path(cell)} holds a run with other settings: {', '.join(differ)}; ask for the same, "
                f"or use another --out"
            )


def differences(cell: Cell, path: Path) -> list[str]:
    """Where the config of the run that is there is not the cell's, in words."""
    there = build.config_from_json(checkpoint.read_json(path, "the config of a run"))
    found, asked = flat(to_json(there)), flat(to_json(cell.config))
    names = [name for name in {**asked, **found} if name not in ANYWHERE]
    if cell.phase == "pretrain":  # which knows nothing of what comes after it
        names = [name for name in names if not name.startswith(("finetune.", "reward_scale"))]
    return [
        f"{name} is {found.get(name)!r} there and {asked.get(name)!r} here"
        for name in names
        if found.get(name) != asked.get(name)
    ]
