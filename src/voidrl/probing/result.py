"""The result of a probe as data: for Python, as JSON, as a row of metrics, as a table. Imports no torch."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from voidrl.errors import RunFolderError
from voidrl.runs.checkpoint import read_json

FILE_NAME = "probe.json"
Scores = dict[str, float]
"""A number for each feature space; NaN where it cannot be computed."""
Measure = Literal["R²", "F1"]
"""R² of ridge regression, or for discrete variables macro-F1 of logistic regression."""
UNTRAINED = {"pixels": "pixels", "observation": "observation", "random": "random f"}
MOST_NAMES = 6


@dataclass(frozen=True)
class VariableScore:
    """Linear predictability of one variable of the true state from features, on held-out episodes."""

    name: str
    controllable: bool
    measure: Measure
    scores: Scores


@dataclass(frozen=True)
class TaskRewardScore:
    """Predictability of the sign of the task's reward from f(s) and f(s')."""

    scores: Scores
    """Mean F1 of the rare classes."""
    chance: float
    """F1 of always predicting a rare class, the highest without features."""
    rate: float
    """Share of steps with a reward other than the commonest one."""


@dataclass(frozen=True)
class ProbeResult:
    """Everything that `voidrl probe` measures."""

    agent: dict[str, Any]
    """The probed agent: environment, method, representation, steps …"""
    settings: dict[str, Any]
    """Settings of the probe."""
    steps: int
    """Number of played steps."""
    split: str
    """Method of holding out steps, as a phrase."""
    spaces: dict[str, int]
    """Width of each feature space."""
    variables: list[VariableScore]
    constant: list[str]
    """Variables that never changed, or too seldom to be probed."""
    task_reward: TaskRewardScore | None
    """None where the sign of the task's reward is constant, or too rarely another to be scored."""

    def mean_score(self, space: str, *, controllable: bool = False) -> float:
        """Mean over all or only controllable variables; a score below 0 counts as 0."""
        chosen = [v.scores[space] for v in self.variables if v.controllable or not controllable]
        found = [max(0.0, score) for score in chosen if math.isfinite(score)]
        return float(np.mean(found)) if found else math.nan

    def metrics(self) -> dict[str, float]:
        """One row for the log, of z and without undefined values."""
        row = {
            "probe/controllable": self.mean_score("z", controllable=True),
            "probe/variables": self.mean_score("z"),
            "probe/task_reward_f1": math.nan if self.task_reward is None else self.task_reward.scores["z"],
        }
        return {name: value for name, value in row.items() if math.isfinite(value)}

    def to_json(self) -> dict[str, Any]:
        """Plain values; numbers that are not finite become None."""
        of_all = {space: self.mean_score(space) for space in self.spaces}
        means = {"controllable": {s: self.mean_score(s, controllable=True) for s in of_all}, "all": of_all}
        text = json.dumps({**dataclasses.asdict(self), "means": means})
        return json.loads(text, parse_constant=lambda name: None)  # type: ignore[no-any-return]


# Tables of a stored probe, for the terminal and for reports


def final_probe(run: Path, steps: int) -> dict[str, Any] | None:
    """Read the probe in a run folder; None where there is none.

    One of an agent before `steps` raises `RunFolderError`.
    """
    path = run / FILE_NAME
    if not path.is_file():
        return None
    remedy = f"run `voidrl probe {run}` again"
    try:
        saved: dict[str, Any] = read_json(path, "a probe")
        is_old = saved["agent"]["steps"] < steps
        rows(saved), notes(saved)
    except (AttributeError, KeyError, TypeError, ValueError):
        what = "is no probe: expected what `voidrl probe RUN` writes"
        raise RunFolderError(f"{path} {what}; {remedy}") from None
    if is_old:
        raise RunFolderError(f"{path} is of an earlier agent than the run's: {remedy}")
    return saved


def heading(saved: Mapping[str, Any]) -> str:
    """The probed agent, its environment and the play."""
    agent, settings = saved["agent"], saved["settings"]
    who = agent["learner"] + " from scratch" if agent["phase"] == "train" else agent["method"]
    where = f"{agent['env']}: {saved['steps']} steps of {settings.get('policy', 'given')} play"
    return f"{who} on {agent['representation']} after {agent['steps']} steps in {where}, {saved['split']}"


def columns(saved: Mapping[str, Any]) -> list[str]:
    """The columns of `rows`."""
    return ["variable", "measure", *(UNTRAINED.get(name, name) for name in saved["spaces"])]


def rows(saved: Mapping[str, Any]) -> list[list[str]]:
    """A row for each variable, controllable ones first and marked by a star, the means, the task's reward."""
    variables = sorted(saved["variables"], key=lambda each: not each["controllable"])
    found = [(f"{v['name']}{' *' * v['controllable']}", v["measure"], v["scores"]) for v in variables]
    if 1 < sum(each["controllable"] for each in variables) < len(variables):
        found.append(("mean of *", "", saved["means"]["controllable"]))
    if len(variables) > 1:
        found.append(("mean of all", "", saved["means"]["all"]))
    if (task := saved["task_reward"]) is not None:
        found.append(("task reward", "F1", task["scores"]))
    spaces = saved["spaces"]
    return [
        [name, measure, *(_number(scores.get(each)) for each in spaces)] for name, measure, scores in found
    ]


def notes(saved: Mapping[str, Any]) -> list[str]:
    """What the table means."""
    found = []
    if saved["variables"]:
        untrained = " and ".join(UNTRAINED[name] for name in saved["spaces"] if name in UNTRAINED)
        found.append(
            "How well a linear map of the features predicts each variable on held-out steps: 1 perfectly, 0 "
            f"not at all. * the agent controls it. Never trained, for comparison: {untrained or 'none'}."
        )
    elif not saved["constant"]:
        found.append(
            "The environment does not report its true state: return numbers by name as info['variables']."
        )
    if saved["constant"]:
        names, more = saved["constant"][:MOST_NAMES], len(saved["constant"]) - MOST_NAMES
        rest = f" and {more} more" if more > 0 else ""
        found.append(f"Left out, since they hardly change: {', '.join(names)}{rest}.")
    if (task := saved["task_reward"]) is not None:
        found.append(
            f"Task reward: the sign of its rarer values, {task['rate']:.1%} of steps; without features "
            f"{_number(task['chance'])}."
        )
    return found


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value + 0.0:.2f}"
