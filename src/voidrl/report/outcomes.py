"""Final numbers: the results of each run, and their mean and range over runs."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from voidrl.envs.ids import parse_id
from voidrl.envs.maze import PixelMazeVector
from voidrl.envs.registration import MAZE_ID as MAZE
from voidrl.errors import VoidrlError
from voidrl.report.formatting import ABSENT, count
from voidrl.report.read import Run
from voidrl.report.scores.scales import normalize
from voidrl.runs.evaluations import evaluated_value

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
        Measure("coverage/bins", "bins", "count"),
        Measure("coverage/ram", "RAM states", "count"),  # RAM contains timers, so it comes last
        Measure("zero_shot_success", "zero-shot success rate", "fraction"),
        Measure("zero_shot_return", "zero-shot return", "score"),
        Measure("zero_shot_normalized", "zero-shot human-normalized score", "fraction"),
        Measure("zero_shot_expert_normalized", "zero-shot expert-normalized score", "fraction"),
    )
}
_ZERO_SHOT = "zero_shot_"  # name prefix of measures of the pre-trained agent
_TASK = ["success", "return", "training_return"]
_COVERAGE = ["maze", *(key for key in MEASURES if key.startswith("coverage/"))]


def measure_of(key: str) -> Measure:
    """The measure with this key; unknown coverage is a count."""
    return MEASURES.get(key) or Measure(key, key.rpartition("/")[2], "count")


def sort_keys(keys: Iterable[str]) -> list[str]:
    """Keys of measures in the order of tables; unknown ones last."""
    order = [*MEASURES]
    return sorted(keys, key=lambda key: (order.index(key) if key in MEASURES else len(order), key))


@dataclass(frozen=True)
class Spread:
    """A measure of several runs."""

    runs: Sequence[Run]
    values: Sequence[float]
    """One for each run."""

    @property
    def mean(self) -> float:
        """Mean over runs."""
        return float(np.mean(self.values))

    @property
    def low(self) -> float:
        """The lowest value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The highest value."""
        return max(self.values)

    @property
    def seeds(self) -> list[int]:
        """Distinct seeds, sorted."""
        return sorted({run.seed for run in self.runs})

    def format(self, key: str) -> str:
        """`83% (77% to 92%)`, without the range where all runs show as equal."""
        mean, low, high = map(measure_of(key).format, (self.mean, self.low, self.high))
        return mean if low == high else f"{mean} ({low} to {high})"


def spreads_of(runs: Iterable[Run]) -> dict[str, Spread]:
    """The final numbers of runs by measure, in the order of tables."""
    found: dict[str, list[tuple[Run, float]]] = {}
    for run in runs:
        for key, value in outcome(run).items():
            found.setdefault(key, []).append((run, value))
    return {key: Spread(*zip(*found[key], strict=True)) for key in sort_keys(found)}


def outcome(run: Run) -> dict[str, float]:
    """The latest value of every measure of a run."""
    maze = maze_of(run.env)
    found = _returns(run) if maze is None or maze.goal_cell is not None else {}  # no goal, no reward
    found |= {k: float(values[-1]) for k, (_, values) in run.series.items() if k.startswith("coverage/")}
    if maze is not None and "coverage/cells" in found:
        found["maze"] = found.pop("coverage/cells") / maze.num_open_cells
    return found


def _returns(run: Run) -> dict[str, float]:
    found = _scores(run, run.evaluation, -1)
    if "return" not in found and "episode/return" in run.series:
        steps, values = run.series["episode/return"]
        late = values[steps > (1 - LAST_FRACTION) * run.steps]
        found["training_return"] = float(np.mean(late if len(late) else values[-1:]))
    before = zero_shot(run)
    shown = ["success"] if "success" in before else before
    return found | {f"{_ZERO_SHOT}{key}": before[key] for key in shown}


def _scores(run: Run, evaluation: Mapping[str, Any] | None, place: Literal[0, -1]) -> dict[str, float]:
    """Return, success and normalized return of an evaluation, else of the first or last one in the metrics.

    The first in the metrics is of the pre-trained agent, at step 0.
    """
    found = {key: evaluated_value(key, evaluation) for key in ("return", "success")}
    if evaluation is None:
        found = {key: _logged(run, key, place) for key in found}
    known = {key: value for key, value in found.items() if value is not None}
    return known | (normalize(run.env, known["return"]) if "return" in known else {})


def _logged(run: Run, key: str, place: Literal[0, -1]) -> float | None:
    steps, values = run.series.get(f"eval/{key}", (np.zeros(0), np.zeros(0)))
    return float(values[place]) if len(steps) and (steps[place] == 0) == (place == 0) else None


def zero_shot(run: Run) -> dict[str, float]:
    """The measures of the agent that a run fine-tuned, on its task; empty where it was not evaluated."""
    saved = (run.evaluation or {}).get("zero_shot")
    if not isinstance(saved, Mapping) or "mean_return" not in saved:
        saved = run.source.evaluation if run.source is not None and run.source.env == run.env else None
    return _scores(run, saved, 0)


def return_source(run: Run) -> str:
    """The episodes on which a run's return was measured."""
    if run.evaluation is not None:
        return f"{len(run.evaluation['returns'])} evaluation episodes"
    source = ABSENT
    if _logged(run, "return", -1) is not None:
        step = count(run.series["eval/return"][0][-1])
        episodes = f"{run.series['eval/episodes'][1][-1]:.0f} " if "eval/episodes" in run.series else ""
        source = f"{episodes}evaluation episodes at step {step}"
    elif "episode/return" in run.series:
        source = f"training episodes in the last {LAST_FRACTION:.0%} of steps"
    return f"{source}; evaluation {run.evaluation_gap}" if run.evaluation_gap else source


def headline_measure(arms: Iterable[Iterable[str]], stage: str) -> str | None:
    """The measure that compares arms, from the keys of each: the most telling one that most arms have."""
    have = Counter(key for keys in arms for key in keys if not key.startswith(_ZERO_SHOT))
    order = _COVERAGE + _TASK if stage == "pretrain" else _TASK + _COVERAGE
    order = order + [key for key in have if key not in order]
    return max(order, key=lambda key: (have[key], -order.index(key))) if have else None


@functools.lru_cache(maxsize=256)
def maze_of(env: str) -> PixelMazeVector | None:
    """The maze of an environment id; None for other environments and for invalid options."""
    try:
        name, options = parse_id(env)
        return PixelMazeVector(num_envs=1, **options) if name == MAZE else None
    except (VoidrlError, TypeError, ValueError):
        return None
