"""Results of a grid: points from best to worst, and how much each field mattered.

For a full product with equally many seeds at every point, the variance of all runs is split exactly: into the
main effect of each field, the interactions of fields, and the differences between seeds (analysis of
variance). Other sets of points, drawn or chosen, are not balanced. There, a field's share is the adjusted R²
of a fit to the means of points by only this field: by its values if these repeat, else by a parabola in the
value or, on a log axis, in its logarithm; with five or six points, by a straight line. Fewer points than
`points_needed` fit any noise, so that there is no share. Fields that are drawn independently of each other
have shares that add up to at most 1, apart from chance.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from voidrl.runs.experiment_record import CellRecord, ExperimentRecord
from voidrl.system.units import is_number, plural, value_text

CLOSE = 2.0  # standard errors of a difference within which two points are called equal
MOST_GROUPS = 8  # distinct values of a field up to which they are compared one by one, if they repeat
WIDE = 50.0  # ratio of the largest to the smallest value from which on a list is shown on a log axis
LINE, PARABOLA = 1, 2  # parameters of a fit in one number, besides its mean
CURVE_POINTS = 25


@dataclass(frozen=True)
class PointResult:
    """The finished runs of a point."""

    point: Mapping[str, Any]
    values: list[float]
    """One for each finished seed."""
    due: int
    """Runs that it has."""
    pruned: bool = False
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
    """Share of the variance; None where nothing varies or there are too few points."""
    means: list[ValueMean]
    """Means by value, numbers in ascending order; empty for a field whose values do not repeat."""
    dots: list[tuple[Any, float]]
    """Every point: the field's value and the mean over seeds."""
    curve: list[tuple[float, float]]
    """The fitted parabola or line; empty where values are compared one by one, or there are too few."""

    @property
    def is_numeric(self) -> bool:
        """Whether its values lie on a number line."""
        return all(is_number(value) for value, _ in self.dots)


@dataclass(frozen=True)
class GridResult:
    """The points of a method in a task."""

    arm: str
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
    def pruned(self) -> list[PointResult]:
        """Points without a result, as they were pruned."""
        return [point for point in self.points if point.pruned and not point.values]

    @property
    def missing(self) -> int:
        """Points without a finished run that were not pruned."""
        return sum(not point.values and not point.pruned for point in self.points)

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
        """Whether the runs are a full product with equally many seeds, and several for each value."""
        values = [{repr(each.point.get(name)) for each in self.ranked} for name in self.log]
        seeds = {len(each.values) for each in self.ranked}
        full = math.prod(map(len, values)) == len(self.ranked)
        repeat = max(map(len, values)) < len(self.ranked) or (self.chosen == "product" and seeds != {1})
        return len(seeds) == 1 and full and repeat and not self.missing and not self.pruned

    @cached_property
    def effects(self) -> list[FieldEffect]:
        """The fields, in their order."""
        return [self._effect(name) for name in self.log] if len(self.ranked) > 1 else []

    @cached_property
    def rest(self) -> dict[str, float]:
        """Shares of the variance besides the fields' own, of a full product: interactions, and seeds."""
        runs = [value for point in self.ranked for value in point.values]
        total = _squares(runs)
        if not self.is_balanced or not total or all(effect.share is None for effect in self.effects):
            return {}
        left = max(0.0, 1.0 - sum(effect.share or 0.0 for effect in self.effects))
        if self.seed_deviation is None:
            return {"interactions and seeds": left}
        within = sum(_squares(point.values) for point in self.ranked) / total
        if len(self.log) == 1:
            return {"seeds": within}
        return {"interactions": max(0.0, left - within), "seeds": within}

    def _effect(self, name: str) -> FieldEffect:
        there = [point for point in self.ranked if name in point.point]
        dots = [(point.point[name], point.mean) for point in there]
        groups: dict[str, list[PointResult]] = {}
        for point in self.points:  # in the order of the plan, which keeps the order of words in a list
            if point.values and name in point.point:
                groups.setdefault(repr(point.point[name]), []).append(point)
        repeats = len(groups) <= min(MOST_GROUPS, len(there) / 2)
        numbers = all(is_number(value) for value, _ in dots)
        given = [value for value, _ in dots]
        wide = numbers and min(given) > 0 and max(given) >= WIDE * min(given)
        log = numbers and (self.log[name] or wide)
        short = self.short.get(name, name)
        means: list[ValueMean] = []
        curve: list[tuple[float, float]] = []
        compared = self.is_balanced or repeats or not numbers
        if compared or self.chosen == "product":
            for members in groups.values():
                values = [value for point in members for value in point.values]
                value = members[0].point[name]
                means.append(ValueMean(value, float(np.mean(values)), min(values), max(values), len(values)))
            if numbers:
                means.sort(key=lambda each: each.value)
        if self.is_balanced:
            share = _main_effect(means, [value for point in there for value in point.values])
        elif compared:
            by_value = {
                repr(each.value): np.mean([p.mean for p in groups[repr(each.value)]]) for each in means
            }
            fitted = [float(by_value[repr(value)]) for value, _ in dots]
            share = _adjusted([mean for _, mean in dots], fitted, len(groups) - 1)
        else:
            share, curve = _fit(dots, log)
        return FieldEffect(name, short, log, share, means, dots, curve)

    # In words

    def sentences(self, show: Any) -> list[str]:
        """Sentences about the result and its limits; `show` formats a value."""
        return [*self._best_in_words(show), *self._fields_in_words()]

    def _best_in_words(self, show: Any) -> Iterator[str]:
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
        if self.pruned:
            yield f"Pruned before the end, and so not ranked: {plural(len(self.pruned), 'point')}."
        if self.missing:
            yield f"Not done yet: {plural(self.missing, 'point')}."

    def _fields_in_words(self) -> Iterator[str]:
        known = [(effect.share, effect.short) for effect in self.effects if effect.share is not None]
        if not known:
            return
        parts = [f"{name} {share:.0%}" for share, name in sorted(known, reverse=True)]
        parts += [f"{name} {share:.0%}" for name, share in self.rest.items()]
        how = "variance of all runs" if self.is_balanced else "variance between points (adjusted R²)"
        yield f"Share of the {how}: {', '.join(parts)}."
        if self.chosen == "tune":
            yield "Points were chosen for being good, not at random: shares are those near the best points."

    def name(self, point: PointResult) -> str:
        """A point as text."""
        return ", ".join(f"{self.short.get(k, k)} {value_text(v)}" for k, v in point.point.items())


def _squares(values: Sequence[float]) -> float:
    """Sum of squared deviations from the mean."""
    return float(np.sum((np.asarray(values) - np.mean(values)) ** 2)) if len(values) else 0.0


def _main_effect(means: Sequence[ValueMean], runs: Sequence[float]) -> float | None:
    """η²: squares between the values of a field, in proportion to all squares."""
    total = _squares(runs)
    if not total:
        return None
    center = float(np.mean(runs))
    return sum(each.runs * (each.mean - center) ** 2 for each in means) / total


def points_needed(parameters: int) -> int:
    """Points from which on an adjusted R² says something.

    Of pure noise it is then above 50 % in one of nine cases or fewer; with four points and a parabola it was
    in two of five.
    """
    return 2 * parameters + 3


def _adjusted(values: Sequence[float], fitted: Sequence[float], parameters: int) -> float | None:
    """Adjusted R², from 0 up: the variance that a fit with as many parameters explains beyond chance."""
    freedom, total = len(values) - parameters - 1, _squares(values)
    if not total or parameters < 1 or len(values) < points_needed(parameters):
        return None
    left = float(np.sum((np.asarray(values) - np.asarray(fitted)) ** 2))
    return max(0.0, 1.0 - (left / freedom) / (total / (len(values) - 1)))


def _fit(dots: Sequence[tuple[float, float]], log: bool) -> tuple[float | None, list[tuple[float, float]]]:
    """The share of a parabola fitted to all points, and its curve; of few points, of a line."""
    raw = np.array([value for value, _ in dots], float)
    x = np.log(raw) if log else raw
    y = np.array([mean for _, mean in dots])
    distinct = len({*x.tolist()})
    degree = PARABOLA if distinct >= points_needed(PARABOLA) else LINE
    if distinct < points_needed(degree):
        return None, []
    center, width = float(x.mean()), float(np.ptp(x)) or 1.0
    coefficients = np.polyfit((x - center) / width, y, degree)
    ends = np.linspace(x.min(), x.max(), CURVE_POINTS)
    heights = np.polyval(coefficients, (ends - center) / width)
    places = np.exp(ends) if log else ends
    share = _adjusted(y.tolist(), np.polyval(coefficients, (x - center) / width).tolist(), degree)
    return share, [*zip(places.tolist(), heights.tolist(), strict=True)]


def grid_results(
    record: ExperimentRecord, values: Mapping[str, float], pruned: Collection[str] = ()
) -> list[GridResult]:
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
        made = [_point(members, values, pruned) for members in points.values()]
        fields = [name for name in grid.log if any(name in each.point for each in made)]
        results.append(
            GridResult(
                arm=arm,
                label=grid.labels.get(arm, arm),
                task=task,
                measure=grid.measure(arm),
                maximize=grid.direction == "maximize",
                log={name: grid.log[name] for name in fields},
                points=made,
                short=grid.short,
                chosen=grid.chosen,
            )
        )
    return results


def _point(cells: Sequence[CellRecord], values: Mapping[str, float], pruned: Collection[str]) -> PointResult:
    found = [values[cell.folder] for cell in cells if cell.folder in values]
    return PointResult(cells[0].point, found, len(cells), any(cell.folder in pruned for cell in cells))
