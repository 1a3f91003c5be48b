"""The value of a measure in a run, from its files.

A measure is one of an evaluation (`return`, `success`, …) or a column of the metrics, of which the last value
counts. `eval/return@30%` is a column's value after 30 % of the run's steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SHARES = {"human_normalized", "success"}
STATES = "states/"
TOLERANCE = 0.05  # of the run's steps: a value that was logged further away is none at that share
_AT_SHARE = re.compile(r".+@([0-9]+(?:\.[0-9]+)?)%")


def is_evaluated(measure: str) -> bool:
    """Whether a measure comes from the evaluation after training, rather than from the metrics."""
    return measure in ("return", *SHARES) or measure.startswith(STATES)


def column_of(measure: str) -> str:
    """The column of the metrics that a measure is read from."""
    return measure.partition("@")[0]


def evaluated_value(measure: str, evaluation: Mapping[str, Any] | None) -> float | None:
    """The value of a measure of an evaluation; None where it has none."""
    if evaluation is None:
        return None
    if measure == "success":
        successes = evaluation.get("successes")
        found = None if successes is None else np.mean(successes)
    elif measure.startswith(STATES):
        found = evaluation.get("counts", {}).get(measure.removeprefix(STATES))
    else:
        found = evaluation.get("mean_return" if measure == "return" else measure)
    return None if found is None else float(found)


def logged_value(measure: str, logged: Sequence[tuple[float, float]], steps: int) -> float | None:
    """The value of a measure of the metrics, from the (step, value) of its column; None without one."""
    if not logged:
        return None
    match = _AT_SHARE.fullmatch(measure)
    if match is None:
        return float(logged[-1][1])
    wanted = float(match[1]) / 100 * steps
    step, value = min(logged, key=lambda each: abs(each[0] - wanted))
    return float(value) if abs(step - wanted) <= TOLERANCE * steps else None
