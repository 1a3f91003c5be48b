"""Grids in a report: points from best to worst, and a small plot for each field that varies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from voidrl.report.formatting import Table
from voidrl.report.groups import env_names
from voidrl.report.outcomes import Measure, measure_of
from voidrl.report.read import Collection
from voidrl.report.scores.grids import FieldEffect, GridResult, PointResult, grid_results
from voidrl.report.scores.measures import measured_value
from voidrl.system.units import value_text

WIDTH, HEIGHT = 300.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 12.0, 12.0, 38.0  # margins of a plot
TICK_ROOM = 34.0  # between two labels below the axis
MOST_DIGITS = 1000  # above it, counts are shown as whole numbers
MOST_OPEN = 24  # points of a ranking that are shown without a click
BALANCED = (
    "Shares are those of the sum of squares of all runs around their mean: between the values of a field "
    "(its main effect), and what is left for interactions of fields and for differences between seeds. They "
    "add up to 100 %, up to rounding."
)
UNKNOWN = (
    "No field has a share: all runs have the same value, or there are too few to tell a field from chance."
)
UNBALANCED = (
    "A share is the adjusted R² of a fit to the points' means by this field alone: by its values where they "
    "repeat, else by a parabola (with five or six points, a straight line) in the value, on a log axis in "
    "its logarithm. With fewer points a fit would follow any noise, and there is no share. Shares need not "
    "add up to 100 %."
)


@dataclass(frozen=True)
class Tick:
    """A label on an axis of a plot."""

    at: float
    text: str


@dataclass(frozen=True)
class FieldPlot:
    """The picture of a field: coordinates in a frame of `WIDTH` × `HEIGHT`."""

    effect: FieldEffect
    x: list[Tick]
    y: list[Tick]
    line: str
    """Points of the means, or of the fitted curve, as SVG wants them."""
    band: str
    """The range of runs at each value; empty for a curve."""
    means: list[tuple[float, float, str]]
    """Place, height and text of each mean."""
    dots: list[tuple[float, float]]
    """Every point of the grid."""
    log: bool

    @property
    def description(self) -> str:
        """Alternative text of the picture."""
        return "; ".join([f"{self.effect.name}: {self.share}", *(text for _, _, text in self.means)])

    @property
    def share(self) -> str:
        """The field's share of the variance, as text."""
        known = self.effect.share is not None
        return f"{self.effect.share:.0%} of the variance" if known else "share of the variance unknown"


@dataclass(frozen=True)
class GridSection:
    """The grid of one method in one environment."""

    result: GridResult
    env_name: str
    experiment: str

    @property
    def title(self) -> str:
        """Method, environment and measure."""
        name = self.measure.name
        best = "highest" if self.result.maximize else "lowest"
        return f"{self.result.label} in {self.env_name}: {name}, {best} first"

    @property
    def measure(self) -> Measure:
        """The compared measure, as reports show it."""
        return measure_of({"human_normalized": "normalized"}.get(self.result.measure, self.result.measure))

    def format(self, value: float) -> str:
        """A value of the measure as text; a mean of counts keeps a digit."""
        measure = self.measure
        between = measure.unit == "count" and value != round(value) and abs(value) < MOST_DIGITS
        return f"{value:.1f}" if between else measure.format(value)

    @property
    def sentences(self) -> list[str]:
        """Conclusions as sentences."""
        return self.result.sentences(self.format)

    @property
    def many(self) -> bool:
        """Whether the ranking is folded."""
        return len(self.result.ranked) > MOST_OPEN

    def name(self, point: PointResult) -> str:
        """A point as text."""
        return self.result.name(point)

    def bar(self, point: PointResult) -> dict[str, str]:
        """Positions of a point's mean and range, in percent of the axis of all points."""
        values = [value for each in self.result.ranked for value in each.values]
        low, high = min(values), max(values)
        ends = {"low": min(point.values), "mean": point.mean, "high": max(point.values)}
        if low == high:
            return dict.fromkeys(ends, "50.0%")
        return {name: f"{100 * (value - low) / (high - low):.1f}%" for name, value in ends.items()}

    @property
    def axis(self) -> str:
        """The range of the bars' axis, as a sentence."""
        values = [value for each in self.result.ranked for value in each.values]
        low, high = self.format(min(values)), self.format(max(values))
        if min(values) == max(values):
            return f"All runs have the same value, {low}."
        return f"The axis goes from {low} to {high}."

    def seeds(self, point: PointResult) -> str:
        """Number of a point's seeds, as text."""
        return str(len(point.values)) + (f" of {point.due}" if len(point.values) < point.due else "")

    def table(self) -> Table:
        """A row for each point; pruned ones last."""
        result = self.result
        fields = [result.short.get(name, name) for name in result.log]
        columns = ["rank", *fields, "mean", "lowest", "highest", "seeds", "note"]
        rows = []
        for place, point in enumerate(result.ranked, 1):
            cells = [value_text(point.point.get(name, "–")) for name in result.log]
            ends = [self.format(point.mean), self.format(min(point.values)), self.format(max(point.values))]
            note = "equal to the best within the spread of seeds" if result.equals_best(point) else ""
            rows.append([str(place), *cells, *ends, self.seeds(point), note])
        for point in result.pruned:
            cells = [value_text(point.point.get(name, "–")) for name in result.log]
            rows.append(["–", *cells, "–", "–", "–", "–", "pruned"])
        return Table(self.title, columns, rows, numeric=frozenset(range(1, len(columns) - 1)))

    def field_table(self) -> Table | None:
        """A row for each field: its share of the variance, and the mean at each value."""
        result, rows = self.result, []
        if not result.effects:
            return None
        for effect in sorted(result.effects, key=lambda each: -(each.share or 0.0)):
            share = "unknown" if effect.share is None else f"{effect.share:.0%}"
            means = "; ".join(f"{value_text(each.value)}: {self.format(each.mean)}" for each in effect.means)
            rows.append([effect.short, share, means or "values do not repeat"])
        rows += [[name, f"{share:.0%}", ""] for name, share in result.rest.items()]
        notes = [BALANCED if result.is_balanced else UNBALANCED]
        if all(effect.share is None for effect in result.effects):
            notes = [UNKNOWN]
        columns = ["field", "share", "mean at each value"]
        return Table("Which fields mattered: shares of the variance", columns, rows, notes, frozenset({1}))

    def plots(self) -> list[FieldPlot]:
        """A plot of each field with a shared vertical axis, the most important field first."""
        effects = sorted(self.result.effects, key=lambda each: -(each.share or 0.0))
        heights = [mean for effect in effects for _, mean in effect.dots]
        heights += [end for effect in effects for each in effect.means for end in (each.low, each.high)]
        heights += [height for effect in effects for _, height in effect.curve]
        return [self._plot(effect, min(heights), max(heights)) for effect in effects]

    def _plot(self, effect: FieldEffect, low: float, high: float) -> FieldPlot:
        margin = 0.06 * ((high - low) or abs(high) or 1.0)
        ticks = _round_values(low - margin, high + margin)
        if self.measure.key == "success":  # a fitted curve may leave what is possible
            ticks = [tick for tick in ticks if 0.0 <= tick <= 1.0]
        low, high = low - margin, high + margin
        places = _places(effect)

        def down(value: float) -> float:
            return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

        line = [(places(x), down(y)) for x, y in effect.curve]
        line = line or [(places(each.value), down(each.mean)) for each in effect.means]
        band = [(places(each.value), down(each.high)) for each in effect.means]
        band += [(places(each.value), down(each.low)) for each in reversed(effect.means)]
        joined = effect.is_numeric  # a line between words would mean nothing
        means = [
            (places(each.value), down(each.mean), f"{value_text(each.value)}: {self.format(each.mean)}")
            for each in effect.means
        ]
        return FieldPlot(
            effect=effect,
            x=_x_ticks(effect, places),
            y=[Tick(down(value), text) for value, text in self._tick_texts(ticks)],
            line=_path(line) if joined else "",
            band=_path(band) if joined and len(effect.means) > 1 else "",
            means=means,
            dots=[(places(value), down(mean)) for value, mean in effect.dots],
            log=effect.log,
        )

    def _tick_texts(self, ticks: Sequence[float]) -> list[tuple[float, str]]:
        """Ticks with as many digits as make them different."""
        texts = [self.format(tick) for tick in ticks]
        if self.measure.unit == "fraction":
            texts = [f"{100 * tick:g}%" for tick in ticks]
        elif len({*texts}) < len(texts):
            texts = [f"{tick:g}" for tick in ticks]
        return [*zip(ticks, texts, strict=True)]


def _places(effect: FieldEffect) -> Any:
    """The function from a field's value to its position on the plot."""
    width = WIDTH - LEFT - RIGHT
    if not effect.is_numeric:
        order = {repr(each.value): number for number, each in enumerate(effect.means)}
        return lambda value: LEFT + width * (order[repr(value)] + 0.5) / len(order)
    move = math.log if effect.log else float
    ends = [move(value) for value, _ in effect.dots]
    low, high = min(ends), max(ends)
    inner = width - 24  # room for dots and labels at the ends
    return lambda value: LEFT + 12 + inner * ((move(value) - low) / (high - low) if high > low else 0.5)


def _x_ticks(effect: FieldEffect, places: Any) -> list[Tick]:
    if effect.means:
        values = [each.value for each in effect.means]
    elif effect.log:
        ends = [math.log10(value) for value, _ in effect.dots]
        values = [10.0**power for power in range(math.ceil(min(ends)), math.floor(max(ends)) + 1)]
        values = (
            values if len(values) > 1 else [min(v for v, _ in effect.dots), max(v for v, _ in effect.dots)]
        )
    else:
        values = _round_values(min(v for v, _ in effect.dots), max(v for v, _ in effect.dots))
    ticks: list[Tick] = []
    for value in values:
        at = places(value)
        if not ticks or at - ticks[-1].at >= TICK_ROOM:
            ticks.append(Tick(at, value_text(value)))
    return ticks


def _round_values(low: float, high: float) -> list[float]:
    """Three to five round numbers between two ends."""
    raw = (high - low) / 4 or 1.0
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.8)
    first = math.ceil(low / step)
    return [float(f"{step * i:.12g}") for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def grid_sections(collection: Collection) -> list[GridSection]:
    """A section for each method and environment of each experiment with a grid."""
    sections = []
    names = env_names(run.env for run in collection.runs)
    for experiment in collection.experiments:
        if experiment.grid is None:
            continue
        runs = [run for run in collection.runs if run.experiment is experiment and run.cell is not None]
        values = {}
        for run in runs:
            assert run.cell is not None
            if not run.took_all_steps:
                continue
            last = {name: column[-1] for name, (_, column) in run.series.items()}
            value = measured_value(experiment.grid.measure(run.cell.arm), run.evaluation, last)
            if value is not None:
                values[run.cell.folder] = value
        pruned = {run.cell.folder for run in runs if run.cell is not None and run.status == "pruned"}
        sections += [
            GridSection(result, names.get(result.task, result.task), experiment.name)
            for result in grid_results(experiment, values, pruned)
        ]
    return sections
