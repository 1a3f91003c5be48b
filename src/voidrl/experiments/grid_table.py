"""The ranking of a grid's points in the terminal, and which fields mattered."""

from __future__ import annotations

from typing import TextIO

from voidrl.experiments.measures import cell_value, show_value
from voidrl.experiments.plan import Plan
from voidrl.experiments.record import make_record
from voidrl.experiments.state import no_results, state_of
from voidrl.report.scores.grids import GridResult, grid_results
from voidrl.runs.status import is_pruned
from voidrl.system.terminal.tables import print_table, wrap_text
from voidrl.system.units import value_text

MOST_POINTS = 20  # in the terminal; the report has all of them


def grids_of(plan: Plan) -> list[GridResult]:
    """The grids of a plan with the values of its finished runs."""
    record = make_record(plan, ())
    assert record.grid is not None
    values, pruned = {}, set()
    for cell in plan.cells:
        folder = plan.path(cell)
        if state_of(cell, folder).kind == "done":
            value = cell_value(cell, folder, record.grid.measure(cell.arm.name))
            if value is not None:
                values[cell.folder] = float(value)
        elif is_pruned(folder):
            pruned.add(cell.folder)
    return grid_results(record, values, pruned)


def print_grids(plan: Plan, file: TextIO | None = None) -> None:
    """Print the ranking of each method and task, and sentences about it."""
    results = grids_of(plan)
    if not any(result.ranked for result in results):
        print(wrap_text(no_results(plan), file=file), file=file)
        return
    several = len(results) > 1
    for result in results:
        columns = ["rank", *(result.short[name] for name in result.log), result.measure, "range", "seeds", ""]
        rows = []
        for place, point in enumerate(result.ranked[:MOST_POINTS], 1):
            mean, low, high = (
                show_value(result.measure, each)
                for each in (point.mean, min(point.values), max(point.values))
            )
            seeds = str(len(point.values)) + (f" of {point.due}" if len(point.values) < point.due else "")
            cells = [value_text(point.point.get(name, "")) for name in result.log]
            note = "equal to the best" if result.equals_best(point) else ""
            spread = f"{low} to {high}" if len(point.values) > 1 else ""
            rows.append([str(place), *cells, mean, spread, seeds, note])
        for point in result.pruned[: max(0, MOST_POINTS - len(rows))]:
            cells = [value_text(point.point.get(name, "")) for name in result.log]
            rows.append(["–", *cells, "", "", "", "pruned"])
        used = [i for i, name in enumerate(columns) if name == "rank" or any(row[i] for row in rows)]
        title = plan.experiment.title + (f": {result.label} in {result.task}" if several else "")
        print_table(
            [columns[i] for i in used], [[row[i] for i in used] for row in rows], title=title, file=file
        )
        left = len(result.ranked) + len(result.pruned) - len(rows)
        lines = [f"… and {left} more, in the report"] if left else []
        lines += result.sentences(lambda value, result=result: show_value(result.measure, value))
        print(wrap_text("\n".join(["", *lines, ""]), file=file), file=file)
