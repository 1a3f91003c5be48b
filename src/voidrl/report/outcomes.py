"""What came of a run in the end, and of an arm: mean and range over its runs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from voidrl.envs.ids import atari_game, parse_id
from voidrl.envs.maze import ENV_ID as MAZE
from voidrl.envs.maze import PixelMazeVector
from voidrl.errors import VoidrlError
from voidrl.report.formatting import THIN, count
from voidrl.report.groups import Arm
from voidrl.report.read import Run
from voidrl.suites.atari import find_game, human_normalized

LAST_SHARE = 0.1  # of a run's steps, over which training returns are averaged where nothing was evaluated


@dataclass(frozen=True)
class Measure:
    """A number that runs end with."""

    key: str
    name: str
    unit: str
    """`share`, `count`, `score` or `nats`."""

    def show(self, value: float) -> str:
        """As tables have it."""
        return self._show(value).replace("-", "−")

    def _show(self, value: float) -> str:
        if self.unit == "share":
            number = f"{100 * value:,.0f}" if abs(value) >= 10 else f"{round(100 * value, 1) + 0.0:.3g}"
            return f"{number}{THIN}%"
        if self.unit == "nats":
            return f"{value:.2f}"
        if abs(value) >= 1000:
            return count(value)
        return f"{value:.0f}" if self.unit == "count" else f"{round(value, 1 if abs(value) >= 10 else 3):g}"


MEASURES = {
    measure.key: measure
    for measure in (
        Measure("success", "success", "share"),
        Measure("return", "return", "score"),
        Measure("normalized", "human-normalized", "share"),
        Measure("training_return", "return while training", "score"),
        Measure("maze", "maze seen", "share"),
        Measure("coverage/cells", "cells", "count"),
        Measure("coverage/positions", "positions", "count"),
        Measure("coverage/variables", "variables", "count"),
        Measure("coverage/ram", "RAM vectors", "count"),
        Measure("coverage/bins", "bins", "count"),
        Measure("coverage/entropy", "entropy (nats)", "nats"),
    )
}


def measure_of(key: str) -> Measure:
    """The measure with this key; a coverage that is not known is a count."""
    return MEASURES.get(key) or Measure(key, key.rpartition("/")[2], "count")


@dataclass(frozen=True)
class Spread:
    """Mean and range over runs."""

    mean: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value for each run."""
        return cls(float(np.mean(values)), float(min(values)), float(max(values)), len(values))


def outcome(run: Run) -> dict[str, float]:
    """The numbers a run ended with, or stands at, by the keys of their measures."""
    maze = maze_of(run.env)
    # Without a goal there is no reward in a maze.
    found = _returns(run) if maze is None or maze.goal_cell is not None else {}
    for name, (_, values) in run.series.items():
        if name.startswith("coverage/"):
            found[name] = float(values[-1])
    if maze is not None and "coverage/cells" in found:
        found["maze"] = found.pop("coverage/cells") / maze.num_open_cells
    return found


def _returns(run: Run) -> dict[str, float]:
    found: dict[str, float] = {}
    if run.evaluation is not None:
        found["return"] = float(run.evaluation["mean_return"])
        successes = run.evaluation.get("successes")
        if successes:
            found["success"] = float(np.mean(successes))
    else:
        for key, name in (("return", "eval/return"), ("success", "eval/success")):
            if name in run.series:
                found[key] = float(run.series[name][1][-1])
    if "return" in found and (share := _normalized(run.env, found["return"])) is not None:
        found["normalized"] = share
    if "return" not in found and "episode/return" in run.series:
        steps, values = run.series["episode/return"]
        late = values[steps > (1 - LAST_SHARE) * run.steps]
        found["training_return"] = float(np.mean(late if len(late) else values[-1:]))
    return found


def evaluated_by(run: Run) -> str:
    """How its return was measured."""
    if run.evaluation is not None:
        return f"{len(run.evaluation['returns'])} evaluation episodes"
    gap = f"; evaluation {run.evaluation_gap}" if run.evaluation_gap else ""
    return _measured_in_training(run) + gap


def _measured_in_training(run: Run) -> str:
    if "eval/return" in run.series:
        step = int(run.series["eval/return"][0][-1])
        episodes = run.series.get("eval/episodes")
        shown = f"{int(episodes[1][-1])} " if episodes else ""
        return f"{shown}evaluation episodes at step {count(step)}"
    if "episode/return" in run.series:
        return f"training episodes in the last {LAST_SHARE:.0%} of its steps"
    return "nothing"


def spreads(arm: Arm) -> dict[str, Spread]:
    """Mean and range over the arm's counted runs, by measure, in the order of `MEASURES`."""
    values: dict[str, list[float]] = {}
    for run in arm.counted:
        for key, value in outcome(run).items():
            values.setdefault(key, []).append(value)
    ordered = [key for key in MEASURES if key in values] + [key for key in values if key not in MEASURES]
    return {key: Spread.of(values[key]) for key in ordered}


def behind(arm: Arm, key: str) -> list[Run]:
    """The runs that a number of an arm is the mean of."""
    return [run for run in arm.counted if key in outcome(run)]


def seeds_behind(arm: Arm, key: str | None) -> list[int]:
    """Each once; where nothing was measured, those of the runs that a number would be of."""
    runs = arm.counted if key is None else behind(arm, key)
    return sorted({run.seed for run in runs})


def first_measure(found: Mapping[str, Spread], headline: str | None) -> str | None:
    """The headline, or, in an arm that does not have it, what comes first there."""
    return headline if headline in found else next(iter(found), None)


def show_spread(key: str, spread: Spread) -> str:
    """`83 % (77 % to 92 %)`; the range where there are several runs."""
    show = measure_of(key).show
    if spread.runs == 1:
        return show(spread.mean)
    low, high = show(spread.low), show(spread.high)
    return f"{show(spread.mean)} ({'all alike' if low == high else f'{low} to {high}'})"


def headline(arms: Iterable[Arm], stage: str) -> str | None:
    """The measure by which the arms of a stage are compared first: one that most of them have."""
    have: dict[str, int] = {}
    for arm in arms:
        for key in spreads(arm):
            have[key] = have.get(key, 0) + 1
    task = ["success", "return", "training_return"]
    coverage = ["maze", *(key for key in MEASURES if key.startswith("coverage/") and key != "coverage/ram")]
    coverage.append("coverage/ram")
    order = [*coverage, *task] if stage == "pretrain" else [*task, *coverage]
    order += [key for key in have if key not in order]
    return max(order, key=lambda key: (have.get(key, 0), -order.index(key))) if have else None


@functools.lru_cache(maxsize=256)
def maze_of(env: str) -> PixelMazeVector | None:
    """The maze that an id describes; None for other environments, and for options that make none."""
    try:
        name, options = parse_id(env)
        return PixelMazeVector(num_envs=1, **options) if name == MAZE else None
    except (VoidrlError, TypeError, ValueError):
        return None


def _normalized(env: str, score: float) -> float | None:
    name = atari_game(env)
    try:
        return None if name is None else human_normalized(find_game(name), score)
    except VoidrlError:
        return None  # not among the 57
