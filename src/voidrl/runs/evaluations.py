"""The one reader of evaluations: what `voidrl evaluate RUN --json` prints and experiments write into runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from voidrl.checkpoint import read_json
from voidrl.errors import CheckpointError, RunFolderError

FILE_NAME = "evaluation.json"


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read an evaluation, which has at least `agent` (with `steps`), `settings`, `mean_return`, `returns`."""
    try:
        saved: dict[str, Any] = read_json(path, "an evaluation")
        whole = isinstance(saved["agent"]["steps"], int) and isinstance(saved["settings"], dict)
        whole = whole and math.isfinite(saved["mean_return"]) and len(saved["returns"]) > 0
    except (KeyError, TypeError):
        whole = False
    if not whole:
        raise RunFolderError(
            f"{path} is no evaluation: expected what `voidrl evaluate RUN --json` prints, or a run folder"
        )
    return saved


def final_evaluation(run: Path, steps: int) -> dict[str, Any] | None:
    """Read the evaluation in a run folder; None where there is none.

    One of an agent before `steps`, or of a run that was in the folder before, raises `RunFolderError`.
    """
    path = run / FILE_NAME
    if not path.is_file():
        return None
    saved = read_evaluation(path)
    agent = saved["agent"]
    if agent["steps"] < steps or agent.get("started") not in (None, start_date(run)):
        raise RunFolderError(f"{path} is of an earlier agent than the run's: evaluate it again")
    return saved


def start_date(run: Path) -> str | None:
    """Return when the run in a folder was created, which distinguishes it from an earlier one there."""
    try:
        return str(read_json(run / "environment.json", "the machine of a run")["date"])
    except (CheckpointError, KeyError, TypeError):
        return None
