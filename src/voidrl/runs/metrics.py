"""The only reader of `metrics.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from voidrl.errors import RunFolderError

FILE_NAME = "metrics.jsonl"
MOST_STEPS = 2**53  # all of which a float holds
_RETURN, _COVERAGE = "episode/return", "coverage/"


def read_metrics(path: str | Path, *, skip: Callable[[str], None] | None = None) -> list[dict[str, Any]]:
    """Read the rows of a run folder, or of its `metrics.jsonl`.

    A torn last line, left by a killed run, is dropped. A damaged line elsewhere, or one without a step,
    raises `RunFolderError`; with `skip`, it is left out, and `skip` is called with a sentence about it.
    """
    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path
    if not path.is_file():
        raise RunFolderError(f"there is no metrics file at {path}; name a run folder or its {FILE_NAME}")
    lines = path.read_bytes().rstrip(b"\n").split(b"\n")
    try:
        found = json.loads(b"[" + b",".join(lines) + b"]")  # twice as fast as line by line
    except (ValueError, RecursionError):
        found = []
    if len(found) != len(lines):
        found = [_parse(line) for line in lines]
        found = found if _is_row(found[-1]) else found[:-1]
    rows = [row for row in found if _is_row(row)]
    if len(rows) < len(found):
        if skip is None:
            number = next(i for i, row in enumerate(found, start=1) if not _is_row(row))
            raise RunFolderError(
                f"line {number} of {path} is damaged; remove that line to read the other rows"
            )
        skip(f"{path.name} is damaged: {len(found) - len(rows)} of its {len(lines)} lines are left out")
    return rows


def score_name(row: Mapping[str, Any], phase: str) -> str:
    """The metric of a row that scores the agent; empty if there is none.

    That is an evaluation, else the return of episodes, else coverage; in pre-training, coverage comes before
    the task's return.
    """
    visited = next((name for name in row if name.startswith(_COVERAGE)), "")
    order = (visited, _RETURN) if phase == "pretrain" else (_RETURN, visited)
    return next((name for name in ("eval/success", "eval/return", *order) if row.get(name) is not None), "")


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError):
        return None


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get("step"), int) and row["step"] < MOST_STEPS
