"""Results of a grid: points from best to worst, and how much each field mattered.

For a full product with equally many seeds at every point, the variance of all runs is split exactly: into the
main effect of each field, the interactions of fields, and the differences between seeds (analysis of
variance). Other sets of points, such as those that Optuna chose, have no shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from voidrl.runs.experiment_record import CellRecord, ExperimentRecord
from voidrl.system.units import is_number, plural, value_text

CLOSE = 2.0  # standard errors of a difference within which two points are called equal
WIDE = 50.0  # ratio of the largest to the smallest value from which on a list is shown on a log axis


@dataclass(frozen=True)
class PointResult:
    """The finished runs of a point."""

    point: Mapping[str, Any]
    values: list[float]
    """One for each finished seed."""
    due: int
    """Runs that it has."""
    """Whether it ended early, as it was worse than others."""

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.values))


@dataclass(frozen=True)
class ValueMean:
    """All runs with one value of a field."""

    value: Any
    mean: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class FieldEffect:
    """The effect of one field on the runs of a grid."""

    name: str
    short: str
    log: bool
    share: float | None
    """Share of the variance; None unless the points are a full product whose runs differ."""
    means: list[ValueMean]
    """Means by value, numbers in ascending order; empty for a field whose values do not repeat."""
    dots: list[tuple[Any, float]]
    """Every point: the field's value and the mean over seeds."""

    @property
    def is_numeric(self) -> bool:
        """Whether its values lie on a number line."""
        return all(is_number(value) for value, _ in self.dots)


@dataclass(frozen=True)
class GridResult:
    """The points of a method in a task."""

    label: str
    task: str
    measure: str
    maximize: bool
    log: Mapping[str, bool]
    """The fields that vary, and whether they are on a log axis."""
    points: list[PointResult]
    """Points in the order of the plan."""
    short: Mapping[str, str] = field(default_factory=dict)
    chosen: str = "product"

    @cached_property
    def ranked(self) -> list[PointResult]:
        """Points with a finished run, the best first."""
        done = [point for point in self.points if point.values]
        return sorted(done, key=lambda point: -point.mean if self.maximize else point.mean)

    @property
    def missing(self) -> int:
        """Points without a finished run."""
        return sum(not point.values for point in self.points)

    @cached_property
    def seed_deviation(self) -> float | None:
        """Standard deviation between seeds of a point, pooled over points; None with one seed each."""
        freedom = sum(len(point.values) - 1 for point in self.ranked)
        if not freedom:
            return None
        return math.sqrt(sum(_squares(point.values) for point in self.ranked) / freedom)

    def equals_best(self, point: PointResult) -> bool:
        """Whether a point differs from the best one by no more than seeds do; with one seed, not at all."""
        best = self.ranked[0]
        if self.seed_deviation is None:
            return point is not best and point.mean == best.mean
        error = self.seed_deviation * math.sqrt(1 / len(best.values) + 1 / len(point.values))
        return point is not best and abs(best.mean - point.mean) <= CLOSE * error

    @cached_property
    def is_balanced(self) -> bool:
        """Whether the ranked points are a full product with equal numbers of seeds, and values repeat."""
        values = [{repr(each.point.get(name)) for each in self.ranked} for name in self.log]
        seeds = {len(each.values) for each in self.ranked}
        full = self.chosen == "product" and math.prod(map(len, values)) == len(self.ranked)
        repeat = max(map(len, values)) < len(self.ranked) or seeds != {1}
        return len(seeds) == 1 and full and repeat

    @cached_property
    def effects(self) -> list[FieldEffect]:
        """The fields; those with the largest share of the variance first."""
        found = [self._effect(name) for name in self.log] if len(self.ranked) > 1 else []
        return sorted(found, key=lambda each: -(each.share or 0.0))

    @cached_property
    def rest(self) -> dict[str, float]:
        """Shares of the variance besides the fields' own: interactions, and seeds."""
        if all(effect.share is None for effect in self.effects):
            return {}
        left = max(0.0, 1.0 - sum(effect.share or 0.0 for effect in self.effects))
        if self.seed_deviation is None:
            return {"interactions and seeds": left}
        total = _squares([value for point in self.ranked for value in point.values])
        within = sum(_squares(point.values) for point in self.ranked) / total
        if len(self.log) == 1:
            return {"seeds": within}
        return {"interactions": max(0.0, left - within), "seeds": within}

    def _effect(self, name: str) -> FieldEffect:
        there = [point for point in self.points if point.values and name in point.point]
        dots = [(point.point[name], point.mean) for point in there]
        numbers = all(is_number(value) for value, _ in dots)
        groups: dict[str, list[PointResult]] = {}
        for point in there:  # in the order of the plan, which keeps the order of words in a list
            groups.setdefault(repr(point.point[name]), []).append(point)
        means = []
        if self.chosen == "product" or not numbers or len(groups) <= len(there) / 2:
            for members in groups.values():
                values = [value for point in members for value in point.values]
                value = members[0].point[name]
                means.append(ValueMean(value, float(np.mean(values)), min(values), max(values), len(values)))
        if numbers:
            means.sort(key=lambda each: each.value)
        given = [value for value, _ in dots]
        wide = numbers and min(given) > 0 and max(given) >= WIDE * min(given)
        share = self._main_effect(means) if self.is_balanced else None
        return FieldEffect(
            name, self.short.get(name, name), numbers and (self.log[name] or wide), share, means, dots
        )

    def _main_effect(self, means: Sequence[ValueMean]) -> float | None:
        """η²: squares between the values of a field, in proportion to all squares."""
        runs = [value for point in self.ranked for value in point.values]
        total, center = _squares(runs), float(np.mean(runs))
        between = sum(each.runs * (each.mean - center) ** 2 for each in means)
        return between / total if total else None

    # As text

    def ranking(self, show: Callable[[float], str]) -> tuple[list[str], list[list[str]]]:
        """Columns and rows: points from best to worst; `show` formats a value."""
        columns = ["rank", *(self.short.get(name, name) for name in self.log)]
        rows = []
        for place, point in enumerate(self.ranked, 1):
            spread = (
                f"{show(min(point.values))} to {show(max(point.values))}" if len(point.values) > 1 else ""
            )
            seeds = str(len(point.values)) + (f" of {point.due}" if len(point.values) < point.due else "")
            note = "equal to the best" if self.equals_best(point) else ""
            values = [value_text(point.point.get(name, "–")) for name in self.log]
            rows.append([str(place), *values, show(point.mean), spread, seeds, note])
        return [*columns, self.measure, "range", "seeds", "note"], rows

    def sentences(self, show: Callable[[float], str]) -> list[str]:
        """Sentences about the result and its limits; `show` formats a value."""
        return [*self._best_in_words(show), *self._fields_in_words()]

    def _best_in_words(self, show: Callable[[float], str]) -> Iterator[str]:
        if not self.ranked:
            yield "No point has a finished run yet."
            return
        best = self.ranked[0]
        seeds = plural(len(best.values), "seed")
        of = plural(len(self.ranked), "point")
        yield f"Best of {of}: {self.name(best)} with {show(best.mean)} ({seeds})."
        equal = [point for point in self.ranked if self.equals_best(point)]
        if self.seed_deviation is None and len(self.ranked) > 1:
            yield "One seed each: how much seeds differ is unknown, so neighbors in the ranking may be equal."
            if equal:
                yield f"With exactly the same value: {plural(len(equal), 'point')}."
        elif equal:
            yield (
                f"Equal to it as far as these seeds tell: {plural(len(equal), 'point')} within two standard "
                f"errors of the difference."
            )
        elif len(self.ranked) > 1:
            yield "Every other point is more than two standard errors of the difference behind it."
        if self.missing:
            yield f"Not done yet: {plural(self.missing, 'point')}."

    def _fields_in_words(self) -> Iterator[str]:
        shares = {each.short: each.share for each in self.effects if each.share is not None} | self.rest
        if shares:
            parts = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
            yield f"Share of the variance of all runs: {parts}."

    def name(self, point: PointResult) -> str:
        """A point as text."""
        return ", ".join(f"{self.short.get(k, k)} {value_text(v)}" for k, v in point.point.items())


def _squares(values: Sequence[float]) -> float:
    """Sum of squared deviations from the mean."""
    return float(np.sum((np.asarray(values) - np.mean(values)) ** 2)) if len(values) else 0.0


def grid_results(record: ExperimentRecord, values: Mapping[str, float]) -> list[GridResult]:
    """The grids of an experiment, one for each method and task, from values of finished runs by folder."""
    grid = record.grid
    if grid is None:
        return []
    tuned = {cell.arm for cell in record.cells if cell.phase != "pretrain"}
    groups: dict[tuple[str, str], list[CellRecord]] = {}
    for cell in record.cells:
        if cell.phase != "pretrain" or cell.arm not in tuned:  # not where fine-tunings start
            groups.setdefault((cell.arm, cell.task), []).append(cell)
    results = []
    for (arm, task), cells in groups.items():
        points: dict[str, list[CellRecord]] = {}
        for cell in cells:
            if cell.point:
                points.setdefault(repr(sorted(cell.point.items())), []).append(cell)
        if not points:
            continue
        made = [_point(members, values) for members in points.values()]
        fields = [name for name in grid.log if any(name in each.point for each in made)]
        results.append(
            GridResult(
                label=grid.labels.get(arm, arm),
                task=task,
                measure=grid.metric,
                maximize=grid.direction == "maximize",
                log={name: grid.log[name] for name in fields},
                points=made,
                short=grid.short,
                chosen=grid.chosen,
            )
        )
    return results


def _point(cells: Sequence[CellRecord], values: Mapping[str, float]) -> PointResult:
    found = [values[cell.folder] for cell in cells if cell.folder in values]
    return PointResult(cells[0].point, found, len(cells))
