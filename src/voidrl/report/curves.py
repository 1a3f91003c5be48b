"""Learning curves: mean and range over seeds at common steps, and the data that the page's charts read.

Runs log at different steps. Each run is interpolated linearly between its rows and never extrapolated, so
the mean at a step is over the runs that reached it. A run with more rows than a curve has points is first
averaged over equal intervals of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from voidrl.report.groups import ArmRuns, stages_of
from voidrl.report.outcomes import maze_of
from voidrl.report.read import Run, Series

MAX_POINTS = 240
MIN_POINTS = 40
MAX_NUMBERS = 600_000  # in all curves of a report: about 4 MB of a page
DIGITS = 5  # significant digits in the page; the chart shows three or four
_COUNTERS = {"frames", "updates", "episodes", "eval/episodes", "eval/return_std"}  # not worth a chart
MAZE = "coverage/maze"

NAMES = {
    "eval/success": "Evaluation success rate",
    "eval/return": "Evaluation return",
    "eval/human_normalized": "Evaluation human-normalized score",
    "episode/return": "Training return",
    "episode/length": "Training episode length",
    "eval/length": "Evaluation episode length",
    "reward/extrinsic": "Extrinsic reward per step",
    MAZE: "Maze coverage",
    "coverage/cells": "Distinct cells visited",
    "coverage/positions": "Distinct player positions",
    "coverage/variables": "Distinct annotated RAM states",
    "coverage/ram": "Distinct RAM states (including timers)",
    "coverage/bins": "Distinct bins of height, angle and velocity",
    "probe/controllable": "Controllable variables read off z (mean R²)",
    "probe/variables": "All variables read off z (mean R²)",
    "probe/task_reward_f1": "Task's rare rewards predicted from z (F1)",
    "train/reward_mean": "Reward used for training (n-step)",
    "time/steps_per_second": "Environment steps per second",
    "time/updates_per_second": "Updates per second",
    "time/learner_waits": "Fraction of time the learner waits for environments",
}
FRACTIONS = {"eval/success", "eval/human_normalized", MAZE, "time/learner_waits"}
GROUPS = {"eval": "Task", "episode": "Task", "reward": "Task", "coverage": "Coverage", "train": "Learning"}
GROUPS |= {"probe": "Probes", "time": "Speed"}


class Curve(NamedTuple):
    """Mean and range over runs at each step; every array is (n,)."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: np.ndarray
    """Number of runs that reached each step."""


def group_of(metric: str) -> str:
    """The heading under which a metric is listed."""
    return GROUPS.get(metric.partition("/")[0], "Other")


def metrics_of(arms: Sequence[ArmRuns]) -> list[str]:
    """Every metric that any run logged: task and coverage first."""
    groups, known = [*GROUPS.values(), "Other"], [*NAMES]
    found = {name for arm in arms for run in arm.runs for name in series_of(run)}
    return sorted(found, key=lambda name: (groups.index(group_of(name)), [*known, name].index(name), name))


def series_of(run: Run) -> dict[str, Series]:
    """The curves of a run; cells of a maze become the fraction of it."""
    found = {name: series for name, series in run.series.items() if name not in _COUNTERS}
    maze = maze_of(run.env)
    if maze is not None and "coverage/cells" in found:
        steps, cells = found.pop("coverage/cells")
        found[MAZE] = (steps, cells / maze.num_open_cells)
    return found


def points_for(arms: Sequence[ArmRuns]) -> int:
    """Points per curve that keep a page of many runs small."""
    numbers = sum(len(metrics_of([arm])) * (3 if len(arm.runs) > 1 else 1) for arm in arms)
    return int(np.clip(MAX_NUMBERS // max(numbers, 1), MIN_POINTS, MAX_POINTS))


def mean_curve(runs: Sequence[Series], points: int = MAX_POINTS) -> Curve:
    """Mean, minimum and maximum of several runs at each step."""
    end = max(float(steps[-1]) for steps, _ in runs)
    thinned = [
        _averaged(steps, values, end / points) if len(steps) > points else (steps, values)
        for steps, values in runs
    ]
    grid = _grid([steps for steps, _ in thinned], points)
    table = np.stack([_interpolated(steps, values, grid) for steps, values in thinned])  # (runs, n)
    reached = np.sum(~np.isnan(table), axis=0)
    table, grid, reached = table[:, reached > 0], grid[reached > 0], reached[reached > 0]
    mean = np.nansum(table, axis=0) / reached
    return Curve(grid, mean, np.nanmin(table, axis=0), np.nanmax(table, axis=0), reached)


def _averaged(steps: np.ndarray, values: np.ndarray, interval: float) -> Series:
    """Mean step and mean value in (0, interval], (interval, 2 interval] and so on."""
    index = np.maximum(np.ceil(steps / interval).astype(np.int64) - 1, 0)
    rows = np.bincount(index)
    x, y = (np.bincount(index, weights=each)[rows > 0] / rows[rows > 0] for each in (steps, values))
    return x, y


def _grid(runs: Sequence[np.ndarray], points: int) -> np.ndarray:
    """Every step at which a run has a value, or evenly spaced steps if those are too many."""
    union = np.unique(np.concatenate([np.rint(steps) for steps in runs]))
    most = max(len(steps) for steps in runs)
    if len(union) <= min(points, 2 * most):
        return union
    return np.rint(np.linspace(union[0], union[-1], min(most, points)))


def _interpolated(steps: np.ndarray, values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A run's values on the grid, NaN before its first and after its last row.

    Parallel environments make runs end a few steps apart, so half the distance between rows is tolerated.
    """
    slack = float(np.median(np.diff(steps))) / 2 if len(steps) > 1 else 0.5
    inside = (grid >= steps[0] - slack) & (grid <= steps[-1] + slack)
    return np.where(inside, np.interp(grid, steps, values), np.nan)


def chart_data(arms: Sequence[ArmRuns]) -> dict[str, Any]:
    """`{grids, metrics, panels, points}` for the page's script; a panel is an environment in a stage.

    Curves refer to their grid of steps by its index, as most of them share one.
    """
    points = points_for(arms)
    grids: dict[tuple[int, ...], int] = {}
    panels = []
    for stage, by_env in stages_of(arms).items():
        for members in by_env.values():
            curves: dict[str, list[dict[str, Any]]] = {metric: [] for metric in metrics_of(members)}
            found = [[series_of(run) for run in arm.runs] for arm in members]
            for metric, packed in curves.items():
                for number, runs in enumerate(found):
                    if logged := [run[metric] for run in runs if metric in run]:
                        packed.append(_packed(number, mean_curve(logged, points), grids))
            shown = [
                {
                    "label": arm.label,
                    "phase": arm.phase_hint if stage == "task" else "",
                    "style": arm.style,
                    "runs": len(arm.runs),
                    "seeds": len(arm.seeds),
                }
                for arm in members
            ]
            panels.append({"stage": stage, "env": members[0].env_name, "arms": shown, "curves": curves})
    metrics = {
        name: {"name": NAMES.get(name, name), "group": group_of(name), "fraction": name in FRACTIONS}
        for name in metrics_of(arms)
    }
    return {"grids": [*grids], "metrics": metrics, "panels": panels, "points": points}


def _packed(arm: int, curve: Curve, grids: dict[tuple[int, ...], int]) -> dict[str, Any]:
    """A curve of an arm, by its number, as data; its steps are added to `grids`."""
    steps = tuple(np.rint(curve.steps).astype(int).tolist())
    same = (curve.runs == curve.runs[0]).all()
    packed: dict[str, Any] = {
        "arm": arm,
        "grid": grids.setdefault(steps, len(grids)),
        "mean": rounded(curve.mean),
        "runs": int(curve.runs[0]) if same else curve.runs.tolist(),
    }
    if curve.runs.max() > 1:
        packed |= {"low": rounded(curve.low), "high": rounded(curve.high)}
    return packed


def rounded(values: np.ndarray) -> list[float | int]:
    """Five significant digits, whole numbers without a decimal point."""
    numbers = [float(f"{value:.{DIGITS}g}") for value in values.tolist()]
    return [int(number) if number.is_integer() and abs(number) < 1e15 else number for number in numbers]
