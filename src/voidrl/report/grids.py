"""Grids in a report: points from best to worst, and the means at each value of a field."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from voidrl.errors import MissingExtraError
from voidrl.report.formatting import Bar, Section, Table
from voidrl.report.groups import env_names
from voidrl.report.outcomes import Measure, measure_of
from voidrl.report.read import Collection
from voidrl.report.scores.grids import GridResult, grid_results
from voidrl.report.scores.measures import evaluated_value, is_evaluated
from voidrl.system.units import value_text

Draw = Callable[[GridResult], str]
MOST_DIGITS = 1000  # above it, counts are shown as whole numbers
MOST_OPEN = 24  # points of a ranking that are shown without a click
SHARES = (
    "Shares are those of the sum of squares of all runs around their mean: between the values of a field "
    "(its main effect), and what is left for interactions of fields and for differences between seeds. They "
    "add up to 100 %, up to rounding."
)
LEGEND = (
    "The dot is the mean over seeds, the bar their range. Green: the best point, and those equal to "
    "it within two standard errors of the difference."
)


def find_grids(collection: Collection) -> dict[str, GridResult]:
    """The grid of each method and environment of each experiment, by name."""
    found = {}
    names = env_names(run.env for run in collection.runs)
    for experiment in collection.experiments:
        if experiment.grid is None:
            continue
        values, measure = {}, experiment.grid.metric
        for run in collection.runs:
            if run.experiment is not experiment or run.cell is None:
                continue
            if is_evaluated(measure):
                value = evaluated_value(measure, run.evaluation)
            else:
                value = float(run.series[measure][1][-1]) if measure in run.series else None
            if run.took_all_steps and value is not None:
                values[run.cell.folder] = value
        for result in grid_results(experiment, values):
            name = names.get(result.task, result.task)
            found[f"{experiment.name}_{result.label}_{name}"] = dataclasses.replace(result, task=name)
    return found


def grid_sections(grids: Iterable[GridResult], draw: Draw | None = None) -> list[Section]:
    """A section for each grid, with the picture that `draw` makes as a data URI."""
    return [_section(result, draw) for result in grids]


def _section(result: GridResult, draw: Draw | None) -> Section:
    best = "highest" if result.maximize else "lowest"
    title = f"{result.label} in {result.task}: {grid_measure(result).name}, {best} first"
    tables = [table for table in (_ranking(result), _field_table(result)) if table.rows]
    pictures, missing = [], []
    if draw is not None and result.effects:
        try:
            pictures.append(draw(result))
        except MissingExtraError as error:
            missing.append(f"No plots of the fields: {error}")
    return Section(title, tables, result.sentences(lambda value: _format(result, value)), missing, pictures)


def grid_measure(result: GridResult) -> Measure:
    """The compared measure, as reports show it."""
    return measure_of({"human_normalized": "normalized"}.get(result.measure, result.measure))


def _format(result: GridResult, value: float) -> str:
    """A value of the measure as text; a mean of counts keeps a digit."""
    measure = grid_measure(result)
    between = measure.unit == "count" and value != round(value) and abs(value) < MOST_DIGITS
    return f"{value:.1f}" if between else measure.format(value)


def _ranking(result: GridResult) -> Table:
    """A row for each point."""
    columns, rows = result.ranking(lambda value: _format(result, value))
    bars: list[Bar | None] = []
    for point in result.ranked:
        is_best = point is result.ranked[0] or result.equals_best(point)
        color = "competence" if is_best else "knowledge"
        bars.append(Bar(min(point.values), point.mean, max(point.values), color))
    numeric = frozenset(range(1, len(columns) - 1))
    folded = len(rows) > MOST_OPEN
    return Table("Points", columns, rows, numeric=numeric, bars=bars, legend=LEGEND, is_folded=folded)


def _field_table(result: GridResult) -> Table:
    """A row for each field: its share of the variance, and the mean at each value."""
    rows = []
    for effect in result.effects:
        share = "–" if effect.share is None else f"{effect.share:.0%}"
        means = [f"{value_text(each.value)}: {_format(result, each.mean)}" for each in effect.means]
        rows.append([effect.short, share, "; ".join(means) or "values do not repeat"])
    rows += [[name, f"{share:.0%}", ""] for name, share in result.rest.items()]
    columns = ["field", "share of the variance", "mean at each value"]
    return Table("Which fields mattered", columns, rows, [SHARES] if result.rest else [], frozenset({1}))
