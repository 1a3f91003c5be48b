"""The value of a measure in a run, from its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SHARES = {"human_normalized", "success"}
STATES = "states/"


def is_evaluated(measure: str) -> bool:
    """Whether a measure comes from the evaluation after training, rather than from the metrics."""
    return measure in ("return", *SHARES) or measure.startswith(STATES)


def measured_value(
    measure: str, evaluation: Mapping[str, Any] | None, last: Mapping[str, Any]
) -> float | None:
    """The value of a measure; None where the run has none.

    Args:
        measure: A measure of an evaluation, or a column of the metrics.
        evaluation: Evaluation of the final agent; None without one.
        last: The last value of each column.
    """
    if not is_evaluated(measure):
        found = last.get(measure)
    elif evaluation is None:
        found = None
    elif measure == "success":
        successes = evaluation.get("successes")
        found = None if successes is None else np.mean(successes)
    elif measure.startswith(STATES):
        found = evaluation.get("counts", {}).get(measure.removeprefix(STATES))
    else:
        found = evaluation.get("mean_return" if measure == "return" else measure)
    return None if found is None else float(found)
