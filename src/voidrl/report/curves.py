"""Learning curves: mean and range over seeds on one axis of steps, thinned out honestly.

Runs log at steps of their own. Each is read between its rows by straight lines and never beyond them, so that
the mean at a step is over the runs that were there. A run with more rows than a curve has points is first
averaged over equal spans of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voidrl.report.groups import Arm
from voidrl.report.outcomes import maze_of
from voidrl.report.read import Run, Series

MAX_POINTS = 240
MIN_POINTS = 40
MAX_NUMBERS = 600_000  # of all curves of a report together: about 4 MB of a page
_DULL = {"frames", "updates", "episodes", "eval/episodes", "eval/return_std"}  # counters, not outcomes
MAZE = "coverage/maze"

NAMES = {
    "eval/success": "Success rate in evaluations",
    "eval/return": "Return in evaluations",
    "eval/human_normalized": "Human-normalized score in evaluations",
    "episode/return": "Return while training",
    "episode/length": "Length of training episodes",
    "eval/length": "Length of evaluation episodes",
    "reward/extrinsic": "Environment's reward per step",
    MAZE: "Share of the maze seen",
    "coverage/cells": "Distinct cells visited",
    "coverage/positions": "Distinct positions of the player",
    "coverage/variables": "Distinct values of the annotated variables",
    "coverage/ram": "Distinct RAM vectors (they hold timers)",
    "coverage/bins": "Bins of height, angle and velocity visited",
    "coverage/entropy": "Entropy of the visited physics states (nats)",
    "train/reward_mean": "Reward that the learner is given",
    "time/steps_per_second": "Environment steps per second",
    "time/updates_per_second": "Updates per second",
    "time/learner_waits": "Share of time the learner waits for environments",
}
SHARES = {"eval/success", "eval/human_normalized", MAZE, "time/learner_waits"}
GROUPS = {"eval": "Task", "episode": "Task", "reward": "Task", "coverage": "Coverage", "train": "Learning"}
GROUPS["time"] = "Speed"


@dataclass(frozen=True)
class Curve:
    """Mean and range over runs at each step; all (n,)."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: np.ndarray
    """How many runs the numbers at a step are of."""
    span: float | None
    """Steps over which rows were averaged, where there were more rows than points."""


def name_of(metric: str) -> str:
    """A metric in words, where it has some."""
    return NAMES.get(metric, metric)


def group_of(metric: str) -> str:
    """The kind of a metric."""
    return GROUPS.get(metric.partition("/")[0], "Other")


def metrics_of(arms: Sequence[Arm]) -> list[str]:
    """All that any of them has a curve of, those of the task and coverage first."""
    found = dict.fromkeys(name for arm in arms for run in arm.runs for name in series_of(run))
    kinds = [*dict.fromkeys(GROUPS.values()), "Other"]
    known = [*NAMES]

    def order(name: str) -> tuple[int, int, str]:
        return kinds.index(group_of(name)), known.index(name) if name in NAMES else len(known), name

    return sorted(found, key=order)


def series_of(run: Run) -> dict[str, Series]:
    """What a run has curves of; cells of a maze as a share of it."""
    found = {name: series for name, series in run.series.items() if name not in _DULL}
    maze = maze_of(run.env)
    if maze is not None and "coverage/cells" in found:
        steps, cells = found.pop("coverage/cells")
        found[MAZE] = (steps, cells / maze.num_open_cells)
    return found


def points_for(arms: Sequence[Arm]) -> int:
    """How many points each curve may have, so that a page of many runs stays small."""
    numbers = 0
    for arm in arms:
        names = {name for run in arm.runs for name in series_of(run)}
        numbers += len(names) * (3 if len(arm.runs) > 1 else 1)
    return int(np.clip(MAX_NUMBERS // max(numbers, 1), MIN_POINTS, MAX_POINTS))


def mean_curve(many: Sequence[Series], points: int = MAX_POINTS) -> Curve:
    """Mean, lowest and highest of several runs at each step."""
    end = max(float(steps[-1]) for steps, _ in many)
    span = None
    thinned: list[Series] = []
    for steps, values in many:
        if len(steps) > points:
            span = end / points
            thinned.append(_averaged(steps, values, span))
        else:
            thinned.append((steps, values))
    grid = _grid([steps for steps, _ in thinned], points)
    table = np.stack([_read(steps, values, grid) for steps, values in thinned])  # (runs, n)
    runs = np.sum(~np.isnan(table), axis=0)
    there = runs > 0  # nobody may have been there between two runs
    table, runs = table[:, there], runs[there]
    mean = np.nansum(table, axis=0) / runs
    return Curve(grid[there], mean, np.nanmin(table, axis=0), np.nanmax(table, axis=0), runs, span)


def _averaged(steps: np.ndarray, values: np.ndarray, span: float) -> Series:
    """Mean step and mean value in (0, span], in (span, 2 span] and so on."""
    place = np.maximum(np.ceil(steps / span).astype(np.int64) - 1, 0)
    count = np.bincount(place)
    filled = count > 0
    x = np.bincount(place, weights=steps)[filled] / count[filled]
    y = np.bincount(place, weights=values)[filled] / count[filled]
    return x, y


def _grid(many: Sequence[np.ndarray], points: int) -> np.ndarray:
    """Every step at which a run has a value; evenly spaced ones where these are too many."""
    together = np.unique(np.concatenate([np.rint(steps) for steps in many]))
    most = max(len(steps) for steps in many)
    if len(together) <= min(points, 2 * most):
        return together
    return np.rint(np.linspace(together[0], together[-1], min(most, points)))


def _read(steps: np.ndarray, values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A run's values on the grid, NaN before its first and after its last row.

    Environments step together, so that runs end a few steps apart: half the distance of two rows is let pass.
    """
    slack = float(np.median(np.diff(steps))) / 2 if len(steps) > 1 else 0.5
    inside = (grid >= steps[0] - slack) & (grid <= steps[-1] + slack)
    return np.where(inside, np.interp(grid, steps, values), np.nan)


def arm_curve(arm: Arm, metric: str, points: int = MAX_POINTS) -> Curve | None:
    """The curve of an arm; None where no run of it logged the metric."""
    many = [found[metric] for found in map(series_of, arm.runs) if metric in found]
    return mean_curve(many, points) if many else None
