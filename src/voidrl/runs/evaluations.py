"""The only reader of evaluations, which `voidrl evaluate RUN` and experiments write into runs.

Fine-tuning evaluates the pre-trained agent at step 0 (zero-shot) and its own agent at the end, in rows of
metrics. It keeps the best agent in RUN/best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from voidrl.errors import CheckpointError, RunFolderError
from voidrl.runs import checkpoint
from voidrl.runs.checkpoint import read_json
from voidrl.runs.metrics import first_row

FILE_NAME = "evaluation.json"
BEST = "best"  # in a run, the folder of its best agent
STATES = "states/"  # begins the names of measures that are counts of states
BY_USER = {"by": "evaluate"}  # marks one of `voidrl evaluate`, which a later one replaces


class EvaluationSummary(NamedTuple):
    """An evaluation, as a row of metrics has it."""

    step: int
    mean_return: float
    std_return: float
    """Standard deviation over episodes."""
    episodes: int
    success_rate: float | None

    @classmethod
    def from_row(cls, row: Any) -> Self | None:
        """None for a row without an evaluation, or with returns that are not finite."""
        try:
            mean, deviation = float(row["eval/return"]), float(row["eval/return_std"])
            success = None if row.get("eval/success") is None else float(row["eval/success"])
            found = cls(int(row["step"]), mean, deviation, int(row["eval/episodes"]), success)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return found if math.isfinite(mean) and math.isfinite(deviation) else None

    @property
    def quality(self) -> tuple[float, float]:
        """Success rate, then mean return: the larger, the better."""
        return self.success_rate or 0.0, self.mean_return


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read an evaluation, which has at least `agent` (with `steps`), `settings`, `mean_return`, `returns`."""
    try:
        saved: dict[str, Any] = read_json(path, "an evaluation")
        whole = isinstance(saved["agent"]["steps"], int) and isinstance(saved["settings"], dict)
        whole = whole and math.isfinite(saved["mean_return"]) and len(saved["returns"]) > 0
        counted = [STATES + name for name in saved.get("counts", {})]
        for measure in ("success", "human_normalized", *counted):
            evaluated_value(measure, saved)
    except (AttributeError, KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise RunFolderError(
            f"{path} is no evaluation: expected what `voidrl evaluate RUN --json` prints, or a run folder"
        )
    return saved


def final_evaluation(run: Path, steps: int) -> dict[str, Any] | None:
    """Read the evaluation in a run folder; None where there is none.

    One of an agent before `steps`, or of the best agent in place of the last, raises `RunFolderError`.
    """
    path = run / FILE_NAME
    if not path.is_file():
        return None
    saved = read_evaluation(path)
    agent = saved["agent"]
    if agent.get("is_best"):
        raise RunFolderError(f"{path} is of the best agent, not of the last: evaluate the run without --best")
    if agent["steps"] < steps:
        raise RunFolderError(f"{path} is of an earlier agent than the run's: evaluate it again")
    return saved


def zero_shot(run: Path) -> EvaluationSummary | None:
    """Read the zero-shot evaluation of a fine-tuning run from its first row of metrics; None without one."""
    found = EvaluationSummary.from_row(first_row(run))
    return found if found is not None and found.step == 0 else None


def best_agent(run: Path) -> tuple[EvaluationSummary, checkpoint.Checkpoint] | None:
    """Find the best agent of a fine-tuning run; the latest of equals. None without one."""
    known = []
    for step in reversed(checkpoint.list_steps(run / BEST)):
        with suppress(CheckpointError):
            saved = checkpoint.load_step(run / BEST, step)
            if (found := EvaluationSummary.from_row(saved.meta.get("evaluation"))) is not None:
                known.append((found, saved))
    return max(known, key=lambda pair: pair[0].quality, default=None)


def is_evaluated(measure: str) -> bool:
    """Whether a measure comes from the evaluation after training, rather than from the metrics."""
    return measure in ("return", "success", "human_normalized") or measure.startswith(STATES)


def evaluated_value(measure: str, evaluation: Mapping[str, Any] | None) -> float | None:
    """The value of a measure of an evaluation; None where it has none."""
    if evaluation is None:
        return None
    if measure == "success":
        successes = evaluation.get("successes")
        found = sum(successes) / len(successes) if successes else None
    elif measure.startswith(STATES):
        found = evaluation.get("counts", {}).get(measure.removeprefix(STATES))
    else:
        found = evaluation.get("mean_return" if measure == "return" else measure)
    return None if found is None else float(found)
