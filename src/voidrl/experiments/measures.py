"""The value of a measure in a finished run, by which the points of a grid are compared."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from voidrl.errors import VoidrlError
from voidrl.experiments.plan import Cell
from voidrl.experiments.state import cell_evaluation
from voidrl.report.scores.measures import is_evaluated, measured_value
from voidrl.runs.metrics import read_metrics


def cell_value(cell: Cell, folder: Path, measure: str) -> float | None:
    """The value of a measure of its evaluation, or the last value of a column; None where it has none."""
    if is_evaluated(measure):
        saved = cell_evaluation(cell, folder) if cell.evaluation is not None else None
        return measured_value(measure, saved, {})
    last: dict[str, Any] = {}
    with suppress(VoidrlError):  # nothing is logged
        for row in read_metrics(folder):
            last |= {name: value for name, value in row.items() if value is not None}
    return measured_value(measure, None, last)
