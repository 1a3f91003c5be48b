"""Measures of an experiment: their values in finished runs, and as text.

A measure is one of an evaluation (`return`, `success`, …) or a column of the metrics, of which the last value
counts. `eval/return@30%` is a column's value after 30 % of the run's steps.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from voidrl.errors import VoidrlError
from voidrl.experiments.plan import Cell
from voidrl.experiments.state import cell_evaluation
from voidrl.report.scores.measures import SHARES, STATES, is_evaluated, measured_value
from voidrl.report.scores.statistics import percent
from voidrl.runs.metrics import read_metrics

COVERAGE = "coverage/"
_AT_SHARE = re.compile(r"(.+)@([0-9]+(?:\.[0-9]+)?)%")
TOLERANCE = 0.05  # of the run's steps: a value that was logged further away is none at that share


def cell_value(cell: Cell, folder: Path, measure: str) -> float | None:
    """The value of a measure in a run; None where it has none."""
    if is_evaluated(measure):
        saved = cell_evaluation(cell, folder) if cell.evaluation is not None else None
        return measured_value(measure, saved, {})
    rows: list[dict[str, Any]] = []
    with suppress(VoidrlError):  # nothing is logged
        rows = [*read_metrics(folder)]
    if match := _AT_SHARE.fullmatch(measure):
        return value_at(rows, match[1], float(match[2]) / 100 * cell.config.steps, cell.config.steps)
    last: dict[str, Any] = {}
    for row in rows:
        last |= {name: value for name, value in row.items() if value is not None}
    return measured_value(measure, None, last)


def zero_shot_value(cell: Cell, folder: Path, measure: str) -> float | None:
    """The value of a measure for the agent that a run fine-tunes; None where it was not evaluated."""
    saved = cell_evaluation(cell, folder) if cell.evaluation is not None else None
    zero_shot = None if saved is None else saved.get("zero_shot")
    return measured_value(measure, zero_shot, {}) if is_evaluated(measure) else None


def value_at(rows: list[dict[str, Any]], column: str, step: float, steps: int) -> float | None:
    """The value of a column that was logged nearest to a step of a run of so many steps; None if far away."""
    found = [(abs(row["step"] - step), row[column]) for row in rows if row.get(column) is not None]
    distance, value = min(found, key=lambda each: each[0], default=(float("inf"), None))
    return float(value) if value is not None and distance <= TOLERANCE * steps else None


def show_value(measure: str, value: float) -> str:
    """A value as text."""
    name = measure.partition("@")[0]
    if name in SHARES or name == "eval/success":
        return percent(value)
    is_count = measure.startswith((COVERAGE, STATES)) and (value == round(value) or abs(value) >= 100)
    return f"{value:,.0f}" if is_count else f"{value:,.1f}"
