"""Grids: points from best to worst, and the results by the values of each field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from voidrl.report.formatting import ABSENT, Bar, Section, Table, draw_bars
from voidrl.report.groups import env_names_of
from voidrl.report.outcomes import Measure, measure_of
from voidrl.report.read import Collection, Run
from voidrl.runs.evaluations import evaluated_value, is_evaluated
from voidrl.runs.experiment_record import CellRecord, ExperimentRecord, GridRecord
from voidrl.system.units import is_number, plural, value_text

CLOSE = 2.0  # standard errors of a difference within which two points are called equal
MOST_DIGITS = 1000  # above it, counts are shown as whole numbers
MOST_OPEN = 24  # points of a ranking that are shown without a click
BEST, OTHER = 2, 0  # styles of bars
RANKING = "The dot is the mean over seeds, the bar their range. Green: the best point, and those equal to it."


@dataclass(frozen=True)
class PointResult:
    """The finished runs of a point."""

    point: Mapping[str, Any]
    values: list[float]
    """One for each finished seed."""
    due: int
    """Runs that it has."""

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.values))


@dataclass(frozen=True)
class GridResult:
    """The points of a method in a task."""

    label: str
    task: str
    grid: GridRecord
    points: list[PointResult]
    """Points in the order of the plan."""

    @cached_property
    def fields(self) -> list[str]:
        """The fields that vary."""
        return [name for name in self.grid.log if any(name in each.point for each in self.points)]

    @cached_property
    def ranked(self) -> list[PointResult]:
        """Points with a finished run, the best first."""
        done = [point for point in self.points if point.values]
        return sorted(done, key=lambda each: each.mean, reverse=self.grid.direction == "maximize")

    @cached_property
    def seed_deviation(self) -> float | None:
        """Standard deviation between seeds of a point, pooled over points; None with one seed each."""
        freedom = sum(len(point.values) - 1 for point in self.ranked)
        squares = sum(len(point.values) * float(np.var(point.values)) for point in self.ranked)
        return math.sqrt(squares / freedom) if freedom else None

    def equals_best(self, point: PointResult) -> bool:
        """Whether a point differs from the best one by no more than seeds do; with one seed, not at all."""
        best, margin = self.ranked[0], 0.0
        if self.seed_deviation is not None:
            margin = CLOSE * self.seed_deviation * math.sqrt(1 / len(best.values) + 1 / len(point.values))
        return point is not best and abs(best.mean - point.mean) <= margin

    @cached_property
    def effects(self) -> dict[str, list[tuple[Any, list[float]]]]:
        """Results of all runs by field and value; the fields whose values differ most in their means first.

        Numbers are ascending, words in the order of the plan. Empty for a field whose values do not repeat.
        """
        found = {name: self._by_value(name) for name in self.fields} if len(self.ranked) > 1 else {}

        def effect(name: str) -> float:
            means = [float(np.mean(values)) for _, values in found[name]]
            return max(means) - min(means) if means else 0.0

        return {name: found[name] for name in sorted(found, key=effect, reverse=True)}

    def _by_value(self, name: str) -> list[tuple[Any, list[float]]]:
        there = [point for point in self.points if point.values and name in point.point]
        groups: dict[str, tuple[Any, list[float]]] = {}
        for point in there:
            value = point.point[name]
            groups.setdefault(repr(value), (value, []))[1].extend(point.values)
        found, numbers = [*groups.values()], all(is_number(point.point[name]) for point in there)
        if self.grid.chosen != "product" and numbers and len(found) > len(there) / 2:
            return []
        return sorted(found, key=lambda each: each[0]) if numbers else found

    @property
    def measure(self) -> Measure:
        """The measure that ranks points."""
        return measure_of({"human_normalized": "normalized"}.get(self.grid.metric, self.grid.metric))

    def format(self, value: float) -> str:
        """A value of the measure as text; a mean of counts keeps a digit."""
        between = self.measure.unit == "count" and value != round(value) and abs(value) < MOST_DIGITS
        return f"{value:.1f}" if between else self.measure.format(value)

    def short(self, field: str) -> str:
        """The short name of a field."""
        return self.grid.short.get(field, field)

    # In words and as tables

    def section(self) -> Section:
        """Sentences and tables."""
        best = "highest" if self.grid.direction == "maximize" else "lowest"
        title = f"{self.label} in {self.task}: {self.measure.name}, {best} first"
        tables = [table for table in (self.ranking(), self.field_table()) if table.rows]
        return Section("grid", title, tables, [*self.sentences()])

    def sentences(self) -> Iterator[str]:
        """The result, and its limits."""
        if not self.ranked:
            yield "No point has a finished run yet."
            return
        best = self.ranked[0]
        name = ", ".join(f"{self.short(k)} {value_text(v)}" for k, v in best.point.items())
        seeds, of = plural(len(best.values), "seed"), plural(len(self.ranked), "point")
        yield f"Best of {of}: {name} with {self.format(best.mean)} ({seeds})."
        if self.seed_deviation is None and len(self.ranked) > 1:
            yield "One seed each: how much seeds differ is unknown, so neighbors in the ranking may be equal."
        if equal := sum(self.equals_best(point) for point in self.ranked):
            yield f"Equal to it as far as these seeds tell: {plural(equal, 'point')}."
        if missing := len(self.points) - len(self.ranked):
            yield f"Not done yet: {plural(missing, 'point')}."

    def ranking(self) -> Table:
        """A row for each point."""
        rows, bars = [], list[Bar | None]()
        for place, point in enumerate(self.ranked, 1):
            low, high = min(point.values), max(point.values)
            spread = f"{self.format(low)} to {self.format(high)}" if len(point.values) > 1 else ""
            seeds = str(len(point.values)) + (f" of {point.due}" if len(point.values) < point.due else "")
            equal = self.equals_best(point)
            values = [value_text(point.point.get(name, ABSENT)) for name in self.fields]
            cells = [str(place), *values, self.format(point.mean), spread, seeds]
            rows.append([*cells, "equal to the best" if equal else ""])
            bars.append(Bar(low, point.mean, high, BEST if equal or place == 1 else OTHER))
        columns = ["rank", *map(self.short, self.fields), self.measure.name, "range", "seeds", "note"]
        numeric, folded = frozenset(range(1, len(columns) - 1)), len(rows) > MOST_OPEN
        return Table("Points", columns, rows, [RANKING], numeric, bars=draw_bars(bars), is_folded=folded)

    def field_table(self) -> Table:
        """A row for each value of each field."""
        rows, bars = [], list[Bar | None]()
        for name, values in self.effects.items():
            heading = self.short(name)
            for value, found in values:
                bar = Bar(min(found), float(np.mean(found)), max(found))
                ends = dict.fromkeys([self.format(bar.low), self.format(bar.high)])
                rows.append([heading, value_text(value), self.format(bar.mean), " to ".join(ends)])
                bars.append(bar)
            if not values:
                rows.append([heading, "values do not repeat", "", ""])
                bars.append(None)
        columns, numeric, bars = ["field", "value", "mean", "range"], frozenset({2, 3}), draw_bars(bars)
        return Table("Which fields mattered", columns, rows, [], numeric, bars=bars, is_grouped=True)


def find_grids(collection: Collection) -> Iterator[GridResult]:
    """The grid of each method and environment of each experiment."""
    names = env_names_of(collection.runs)
    for experiment in collection.experiments:
        if experiment.grid is not None:
            values = {}
            for run in collection.runs:
                if run.experiment is experiment and run.cell is not None and run.took_all_steps:
                    values[run.cell.folder] = _value(run, experiment.grid.metric)
            yield from grid_results(experiment, experiment.grid, values, names)


def _value(run: Run, measure: str) -> float | None:
    """The value of a measure in a run."""
    if is_evaluated(measure):
        return evaluated_value(measure, run.evaluation)
    return float(run.series[measure][1][-1]) if measure in run.series else None


def grid_results(
    record: ExperimentRecord,
    grid: GridRecord,
    values: Mapping[str, float | None],
    names: Mapping[str, str],
) -> Iterator[GridResult]:
    """The grids of an experiment, from values of finished runs by folder, and names of environments."""
    tuned = {cell.arm for cell in record.cells if cell.phase != "pretrain"}
    groups: dict[tuple[str, str], dict[str, list[CellRecord]]] = {}
    for cell in record.cells:
        # Pre-trainings where fine-tunings start are no grid of their own.
        if cell.point and (cell.phase != "pretrain" or cell.arm not in tuned):
            points = groups.setdefault((cell.arm, cell.task), {})
            points.setdefault(repr(sorted(cell.point.items())), []).append(cell)
    for (arm, task), points in groups.items():
        results = []
        for cells in points.values():
            found = [value for cell in cells if (value := values.get(cell.folder)) is not None]
            results.append(PointResult(cells[0].point, found, len(cells)))
        yield GridResult(grid.labels.get(arm, arm), names.get(task, task), grid, results)
