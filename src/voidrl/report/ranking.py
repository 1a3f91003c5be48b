"""Ranking of methods by coverage without reward: means and seeds, colored by family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from voidrl.report.formatting import Bar, Table
from voidrl.report.groups import ArmRuns, family_of, stages_of
from voidrl.report.outcomes import headline_measure, measure_of, outcome

LEAST_ARMS = 3  # fewer are compared in a sentence
FAMILIES = {"knowledge": 0, "data": 1, "competence": 2, "baseline": 6, "": 4}
"""Families in the order of legends, and the number of their color."""
LEGEND = "The line is the mean over seeds, dots are seeds, the bar is their range."


@dataclass(frozen=True)
class RankedArm:
    """One method: a line of the picture."""

    label: str
    family: str
    values: dict[int, float]
    """Value by seed; where a seed was run twice, the last run."""
    seconds: float | None
    """Mean training time of a run."""
    is_reference: bool = False
    """Whether it is random play, the baseline."""

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return sum(self.values.values()) / len(self.values)


@dataclass(frozen=True)
class Ranking:
    """The arms of an environment by their coverage."""

    env_name: str
    key: str
    """Key of the measure."""
    arms: list[RankedArm]
    """Arms in descending order of means."""

    @property
    def title(self) -> str:
        """The measure and the environment."""
        return f"{measure_of(self.key).name.capitalize()} in {self.env_name}"

    @property
    def families(self) -> list[str]:
        """Families in the ranking."""
        there = {arm.family for arm in self.arms}
        return [family for family in FAMILIES if family in there]

    def format(self, value: float) -> str:
        """The value as text."""
        return measure_of(self.key).format(value)

    def table(self) -> Table:
        """A row for each method with its seeds and training time, the highest mean first."""
        seeds = sorted({seed for arm in self.arms for seed in arm.values})
        name = measure_of(self.key).name
        columns = ["method", "family", f"{name}, mean", *(f"seed {seed}" for seed in seeds)]
        timed = any(arm.seconds is not None for arm in self.arms)
        columns += ["seconds"] if timed else []
        rows, bars = [], list[Bar | None]()
        for arm in self.arms:
            found = [*arm.values.values()]
            bars.append(Bar(min(found), arm.mean, max(found), arm.family or "none", seeds=found))
            values = [self.format(arm.values[seed]) if seed in arm.values else "–" for seed in seeds]
            seconds = "–" if arm.seconds is None else f"{arm.seconds:.0f}"
            cells = [arm.label, arm.family or "–", self.format(arm.mean), *values]
            rows.append([*cells, *([seconds] if timed else [])])
        axis = (0.0, 1.0) if measure_of(self.key).unit == "fraction" else (0.0,)
        numeric = frozenset(range(2, len(columns)))
        return Table(self.title, columns, rows, numeric=numeric, bars=bars, axis=axis, legend=LEGEND)


def coverage_rankings(arms: Sequence[ArmRuns], least_arms: int = LEAST_ARMS) -> list[Ranking]:
    """A ranking for each environment in which several methods were pre-trained and coverage was counted."""
    rankings = []
    for members in stages_of(arms).get("pretrain", {}).values():
        key = headline_measure(members, "pretrain")
        if key is None or not (key == "maze" or key.startswith("coverage/")):
            continue
        # Points of a grid are ranked among themselves.
        found = [
            _ranked(arm, key) for arm in members if not any(run.cell and run.cell.point for run in arm.runs)
        ]
        ranked = sorted((arm for arm in found if arm.values), key=lambda arm: -arm.mean)
        if len(ranked) >= least_arms:
            rankings.append(Ranking(members[0].env_name, key, ranked))
    return rankings


def _ranked(arm: ArmRuns, key: str) -> RankedArm:
    values = {run.seed: found[key] for run in arm.counted if key in (found := outcome(run))}
    times = [run.training_seconds for run in arm.counted]
    known = [time for time in times if time is not None]
    seconds = sum(known) / len(known) if known else None
    is_reference = arm.runs[0].method == "random"
    return RankedArm(arm.label, family_of(arm.runs[0]), values, seconds, is_reference)
