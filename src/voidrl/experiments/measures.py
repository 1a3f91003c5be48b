"""Measures of an experiment: their values in finished runs, and as text."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from voidrl.errors import VoidrlError
from voidrl.experiments.plan import Cell
from voidrl.experiments.state import cell_evaluation
from voidrl.report.scores.measures import (
    SHARES,
    STATES,
    column_of,
    evaluated_value,
    is_evaluated,
    logged_value,
)
from voidrl.report.scores.statistics import percent
from voidrl.runs.metrics import read_metrics

COVERAGE = "coverage/"


def cell_value(cell: Cell, folder: Path, measure: str) -> float | None:
    """The value of a measure in a run; None where it has none."""
    if is_evaluated(measure):
        saved = cell_evaluation(cell, folder) if cell.evaluation is not None else None
        return evaluated_value(measure, saved)
    column = column_of(measure)
    logged: list[tuple[float, float]] = []
    with suppress(VoidrlError):  # nothing is logged
        rows = read_metrics(folder)
        logged = [(row["step"], row[column]) for row in rows if row.get(column) is not None]
    return logged_value(measure, logged, cell.config.steps)


def zero_shot_value(cell: Cell, folder: Path, measure: str) -> float | None:
    """The value of a measure for the agent that a run fine-tunes; None where it was not evaluated."""
    saved = cell_evaluation(cell, folder) if cell.evaluation is not None else None
    return evaluated_value(measure, (saved or {}).get("zero_shot")) if is_evaluated(measure) else None


def show_value(measure: str, value: float) -> str:
    """A value as text."""
    name = column_of(measure)
    if name in SHARES or name == "eval/success":
        return percent(value)
    is_count = measure.startswith((COVERAGE, STATES)) and (value == round(value) or abs(value) >= 100)
    return f"{value:,.0f}" if is_count else f"{value:,.1f}"
