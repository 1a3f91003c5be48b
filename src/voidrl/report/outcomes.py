"""Final numbers: the results of each run, and mean and range over the runs of an arm."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from voidrl.envs.ids import parse_id
from voidrl.envs.maze import PixelMazeVector
from voidrl.envs.registration import MAZE_ID as MAZE
from voidrl.errors import VoidrlError
from voidrl.report.formatting import count
from voidrl.report.groups import ArmRuns
from voidrl.report.read import Run
from voidrl.report.scores.measures import evaluated_value
from voidrl.report.scores.scales import normalize

LAST_FRACTION = 0.1  # training returns are averaged over this part of the steps if nothing was evaluated


@dataclass(frozen=True)
class Measure:
    """A number that a run ends with."""

    key: str
    name: str
    unit: str
    """`fraction`, `count` or `score`."""

    def format(self, value: float) -> str:
        """The value as tables show it."""
        if self.unit == "fraction":
            percent = 100 * value
            text = f"{percent:,.0f}%" if abs(value) >= 10 else f"{round(percent, 1) + 0.0:.3g}%"
        elif self.unit == "count" or abs(value) >= 1000:
            text = count(value)
        else:
            text = f"{round(value, 1 if abs(value) >= 10 else 3):g}"
        return text.replace("-", "−")


MEASURES = {
    measure.key: measure
    for measure in (
        Measure("success", "success rate", "fraction"),
        Measure("return", "return", "score"),
        Measure("normalized", "human-normalized score", "fraction"),
        Measure("expert_normalized", "expert-normalized score", "fraction"),
        Measure("training_return", "training return", "score"),
        Measure("maze", "maze coverage", "fraction"),
        Measure("coverage/cells", "cells", "count"),
        Measure("coverage/positions", "positions", "count"),
        Measure("coverage/variables", "variables", "count"),
        Measure("coverage/ram", "RAM states", "count"),
        Measure("coverage/bins", "bins", "count"),
        Measure("zero_shot_success", "zero-shot success rate", "fraction"),
        Measure("zero_shot_return", "zero-shot return", "score"),
        Measure("zero_shot_normalized", "zero-shot human-normalized score", "fraction"),
        Measure("zero_shot_expert_normalized", "zero-shot expert-normalized score", "fraction"),
    )
}
_ZERO_SHOT = "zero_shot_"  # name prefix of measures of the pre-trained agent
_TASK = ["success", "return", "training_return"]
_COVERAGE = ["maze", *(key for key in MEASURES if key.startswith("coverage/") and key != "coverage/ram")]
_COVERAGE.append("coverage/ram")  # RAM contains timers, so it comes last


def measure_of(key: str) -> Measure:
    """The measure with this key; unknown coverage is a count."""
    return MEASURES.get(key) or Measure(key, key.rpartition("/")[2], "count")


def sort_keys(keys: Iterable[str]) -> list[str]:
    """Keys of measures in the order of tables; unknown ones last."""
    order = [*MEASURES]
    return sorted(keys, key=lambda key: (order.index(key) if key in MEASURES else len(order), key))


@dataclass(frozen=True)
class Spread:
    """Mean and range of a measure over runs."""

    mean: float
    low: float
    high: float
    runs: list[Run] = field(compare=False, repr=False)
    values: list[float] = field(default_factory=list, compare=False, repr=False)
    """One for each run."""

    @property
    def seeds(self) -> list[int]:
        """Distinct seeds, sorted."""
        return sorted({run.seed for run in self.runs})

    def format(self, key: str) -> str:
        """`83% (77% to 92%)`, without the range where all runs show as equal."""
        mean, low, high = map(measure_of(key).format, (self.mean, self.low, self.high))
        return mean if low == high else f"{mean} ({low} to {high})"


def outcome(run: Run) -> dict[str, float]:
    """The latest value of every measure of a run."""
    maze = maze_of(run.env)
    found = _returns(run) if maze is None or maze.goal_cell is not None else {}  # no goal, no reward
    found |= {k: float(values[-1]) for k, (_, values) in run.series.items() if k.startswith("coverage/")}
    if maze is not None and "coverage/cells" in found:
        found["maze"] = found.pop("coverage/cells") / maze.num_open_cells
    return found


def _returns(run: Run) -> dict[str, float]:
    found: dict[str, float] = {}
    if run.evaluation is not None:
        found |= _evaluated(run.evaluation)
    else:
        found |= _logged(run, -1)
    found |= _scaled(run.env, found)
    if "return" not in found and "episode/return" in run.series:
        steps, values = run.series["episode/return"]
        late = values[steps > (1 - LAST_FRACTION) * run.steps]
        found["training_return"] = float(np.mean(late if len(late) else values[-1:]))
    before = zero_shot(run)
    shown = ["success"] if "success" in before else [*before]
    return found | {f"{_ZERO_SHOT}{key}": before[key] for key in shown}


def _logged(run: Run, place: Literal[0, -1]) -> dict[str, float]:
    """The first or the last evaluation in the metrics; the first is of the pre-trained agent, at step 0."""
    found = {}
    for key in ("return", "success"):
        steps, values = run.series.get(f"eval/{key}", (np.zeros(0), np.zeros(0)))
        if len(steps) and (steps[place] == 0) == (place == 0):
            found[key] = float(values[place])
    return found


def _evaluated(evaluation: Mapping[str, Any]) -> dict[str, float]:
    found = {measure: evaluated_value(measure, evaluation) for measure in ("return", "success")}
    return {measure: value for measure, value in found.items() if value is not None}


def _scaled(env: str, found: Mapping[str, float]) -> dict[str, float]:
    """The return in units of a human or an expert, where these are known."""
    return normalize(env, found["return"]) if "return" in found else {}


def zero_shot(run: Run) -> dict[str, float]:
    """The measures of the agent that a run fine-tuned, on its task; empty where it was not evaluated."""
    saved = None if run.evaluation is None else run.evaluation.get("zero_shot")
    found = _logged(run, 0)
    if isinstance(saved, Mapping) and "mean_return" in saved:
        found = _evaluated(saved)
    elif run.source is not None and run.source.env == run.env and run.source.evaluation is not None:
        found = _evaluated(run.source.evaluation)
    return found | _scaled(run.env, found)


def return_source(run: Run) -> str:
    """The episodes on which a run's return was measured."""
    if run.evaluation is not None:
        return f"{len(run.evaluation['returns'])} evaluation episodes"
    source = "–"
    if "return" in _logged(run, -1):
        step = count(run.series["eval/return"][0][-1])
        episodes = f"{run.series['eval/episodes'][1][-1]:.0f} " if "eval/episodes" in run.series else ""
        source = f"{episodes}evaluation episodes at step {step}"
    elif "episode/return" in run.series:
        source = f"training episodes in the last {LAST_FRACTION:.0%} of steps"
    return f"{source}; evaluation {run.evaluation_gap}" if run.evaluation_gap else source


def spreads(arm: ArmRuns) -> dict[str, Spread]:
    """Mean and range over the counted runs of an arm, by measure, in the order of `MEASURES`."""
    found: dict[str, list[tuple[float, Run]]] = {}
    for run in arm.counted:
        for key, value in outcome(run).items():
            found.setdefault(key, []).append((value, run))
    made = {}
    for key in sort_keys(found):
        values = [value for value, _ in found[key]]
        runs = [run for _, run in found[key]]
        made[key] = Spread(float(np.mean(values)), min(values), max(values), runs, values)
    return made


def main_measure(found: Mapping[str, Spread], headline: str | None) -> str | None:
    """The headline measure, or the first one of an arm that does not have it."""
    return headline if headline in found else next(iter(found), None)


def headline_measure(arms: Iterable[ArmRuns], stage: str) -> str | None:
    """The measure that compares the arms of a stage: among those that most arms have, the most telling."""
    have: dict[str, int] = {}
    for arm in arms:
        for key in spreads(arm):
            if key.startswith(_ZERO_SHOT):
                continue
            have[key] = have.get(key, 0) + 1
    order = _COVERAGE + _TASK if stage == "pretrain" else _TASK + _COVERAGE
    order = order + [key for key in have if key not in order]
    return max(order, key=lambda key: (have.get(key, 0), -order.index(key))) if have else None


@functools.lru_cache(maxsize=256)
def maze_of(env: str) -> PixelMazeVector | None:
    """The maze of an environment id; None for other environments and for invalid options."""
    try:
        name, options = parse_id(env)
        return PixelMazeVector(num_envs=1, **options) if name == MAZE else None
    except (VoidrlError, TypeError, ValueError):
        return None
