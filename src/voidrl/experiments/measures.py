"""Measures of an experiment: their values in finished runs, and as text."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from voidrl.errors import VoidrlError
from voidrl.experiments.plan import Cell
from voidrl.experiments.state import cell_evaluation
from voidrl.runs.metrics import read_metrics
from voidrl.scores.statistics import percent

SHARES = {"human_normalized", "success"}
COVERAGE = "coverage/"


def is_evaluated(measure: str) -> bool:
    """Whether a measure comes from the evaluation after training, rather than from the metrics."""
    return measure in ("return", *SHARES) or measure.startswith("states/")


def cell_value(cell: Cell, folder: Path, measure: str) -> float | None:
    """The value of a measure in a run; None where it has none."""
    if is_evaluated(measure):
        saved = (cell_evaluation(cell, folder) if cell.evaluation is not None else None) or {}
        successes, counts = saved.get("successes"), saved.get("counts", {})
        found = {f"states/{name}": count for name, count in counts.items()}
        found |= {"return": saved.get("mean_return"), "human_normalized": saved.get("human_normalized")}
        return found.get(measure) if measure != "success" or successes is None else float(np.mean(successes))
    with suppress(VoidrlError):  # a column of the metrics: its last value
        rows = reversed(read_metrics(folder))
        return next((row[measure] for row in rows if row.get(measure) is not None), None)
    return None


def show_value(measure: str, value: float) -> str:
    """A value as text."""
    if measure in SHARES:
        return percent(value)
    is_count = measure.startswith((COVERAGE, "states/")) and (value == round(value) or abs(value) >= 100)
    return f"{value:,.0f}" if is_count else f"{value:,.1f}"
