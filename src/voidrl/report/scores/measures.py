"""The value of a measure in a run, from its files.

A measure is one of an evaluation (`return`, `success`, …) or a column of the metrics, of which the last value
counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SHARES = {"human_normalized", "success"}
STATES = "states/"


def is_evaluated(measure: str) -> bool:
    """Whether a measure comes from the evaluation after training, rather than from the metrics."""
    return measure in ("return", *SHARES) or measure.startswith(STATES)


def evaluated_value(measure: str, evaluation: Mapping[str, Any] | None) -> float | None:
    """The value of a measure of an evaluation; None where it has none."""
    if evaluation is None:
        return None
    if measure == "success":
        successes = evaluation.get("successes")
        found = np.mean(successes) if successes else None
    elif measure.startswith(STATES):
        found = evaluation.get("counts", {}).get(measure.removeprefix(STATES))
    else:
        found = evaluation.get("mean_return" if measure == "return" else measure)
    return None if found is None else float(found)
