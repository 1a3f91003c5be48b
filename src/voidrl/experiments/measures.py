"""Measures of an experiment: their values in finished runs, and as text."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from voidrl.errors import VoidrlError
from voidrl.experiments.plan import Cell
from voidrl.experiments.state import cell_evaluation
from voidrl.runs.metrics import read_metrics
from voidrl.scores.measures import SHARES, STATES, is_evaluated, measured_value
from voidrl.scores.statistics import percent

COVERAGE = "coverage/"


def cell_value(cell: Cell, folder: Path, measure: str) -> float | None:
    """The value of a measure in a run; None where it has none."""
    if is_evaluated(measure):
        saved = cell_evaluation(cell, folder) if cell.evaluation is not None else None
        return measured_value(measure, saved, {})
    last: dict[str, Any] = {}
    with suppress(VoidrlError):  # nothing is logged
        for row in read_metrics(folder):
            last |= {name: value for name, value in row.items() if value is not None}
    return measured_value(measure, None, last)


def show_value(measure: str, value: float) -> str:
    """A value as text."""
    if measure in SHARES:
        return percent(value)
    is_count = measure.startswith((COVERAGE, STATES)) and (value == round(value) or abs(value) >= 100)
    return f"{value:,.0f}" if is_count else f"{value:,.1f}"
