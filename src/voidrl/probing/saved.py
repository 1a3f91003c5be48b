"""The only reader of `probe.json`, which `voidrl probe RUN` writes into a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voidrl.errors import RunFolderError
from voidrl.probing.sentences import heading, lines, variable_notes, variable_rows
from voidrl.runs.checkpoint import read_json
from voidrl.runs.evaluations import start_date

FILE_NAME = "probe.json"


def final_probe(run: Path, steps: int) -> dict[str, Any] | None:
    """Read the probe in a run folder; None where there is none.

    One of an agent before `steps`, or of a run that was in the folder before, raises `RunFolderError`.
    """
    path = run / FILE_NAME
    if not path.is_file():
        return None
    remedy = f"run `voidrl probe {run}` again"
    try:
        saved: dict[str, Any] = read_json(path, "a probe")
        agent, whole = saved["agent"], isinstance(saved["agent"]["steps"], int)
        whole = whole and isinstance(saved["spaces"], dict) and isinstance(saved["variables"], list)
        heading(saved), variable_rows(saved), variable_notes(saved), lines(saved)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise RunFolderError(f"{path} is no probe: expected what `voidrl probe RUN` writes; {remedy}")
    if agent["steps"] < steps or agent.get("started") not in (None, start_date(run)):
        raise RunFolderError(f"{path} is of an earlier agent than the run's: {remedy}")
    return saved
