"""The only reader of `metrics.jsonl`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from voidrl.errors import RunFolderError

FILE_NAME = "metrics.jsonl"
MOST_STEPS = 2**53  # all of which a float holds
MAX_BYTES, MAX_ROWS, MAX_LINE_BYTES = 256 << 20, 1_000_000, 4 << 20  # rows have a few kilobytes
MAX_VALUES = 10_000_000  # of all rows; a value of two bytes takes up to a hundred once it is read
MAX_DIGITS = 300  # of a whole number, which a float then holds
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
    found: list[Any] = []
    values = 0
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise OSError(f"it has more than {MAX_BYTES >> 20} MB")
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise OSError(f"it has a line of more than {MAX_LINE_BYTES >> 20} MB")
                if len(found) == MAX_ROWS:
                    raise OSError(f"it has more than {MAX_ROWS} rows")
                values += sum(map(line.count, (b",", b"[", b"{")))
                if values > MAX_VALUES:
                    raise OSError(f"it has more than {MAX_VALUES} values")
                found.append(_parse(line))
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error
    total = len(found)
    found = found if found and _is_row(found[-1]) else found[:-1]
    rows = [row for row in found if _is_row(row)]
    if len(rows) < len(found):
        if skip is None:
            number = next(i for i, row in enumerate(found, start=1) if not _is_row(row))
            raise RunFolderError(
                f"line {number} of {path} is damaged; remove that line to read the other rows"
            )
        skip(f"{path.name} is damaged: {len(found) - len(rows)} of its {total} lines are left out")
    return rows


def score_name(row: Mapping[str, Any], phase: str) -> str:
    """The metric of a row that scores the agent; empty if there is none.

    That is an evaluation, else the return of episodes, else coverage; in pre-training, coverage comes before
    the task's return.
    """
    visited = next((name for name in row if name.startswith(_COVERAGE)), "")
    order = (visited, _RETURN) if phase == "pretrain" else (_RETURN, visited)
    return next((name for name in ("eval/success", "eval/return", *order) if row.get(name) is not None), "")


def first_row(run: Path) -> dict[str, Any] | None:
    """The first row of a run; None without one."""
    path, row = run / FILE_NAME, None
    with suppress(OSError):
        if path.is_file():  # a pipe would be waited for without end
            with path.open("rb") as file:
                row = _parse(file.readline(MAX_LINE_BYTES))
    return row if _is_row(row) else None


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode(), parse_int=_whole)
    except (ValueError, RecursionError):
        return None


def _whole(digits: str) -> int | None:
    return int(digits) if len(digits) <= MAX_DIGITS else None


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and type(row.get("step")) is int and 0 <= row["step"] < MOST_STEPS
