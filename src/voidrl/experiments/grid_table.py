"""The ranking of a grid's points in the terminal, and which fields mattered."""

from __future__ import annotations

from functools import partial
from typing import TextIO

from voidrl.experiments.measures import cell_value, show_value
from voidrl.experiments.plan import Plan
from voidrl.experiments.record import make_record
from voidrl.experiments.state import state_of
from voidrl.report.scores.grids import GridResult, grid_results
from voidrl.runs.status import is_pruned
from voidrl.system.terminal.tables import print_table, wrap_text

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
        print("no run is done yet: no results", file=file)
        return
    for result in results:
        show = partial(show_value, result.measure)
        columns, rows = result.ranking(show)
        used = [i for i in range(len(columns)) if any(row[i] for row in rows)]
        several = f": {result.label} in {result.task}" if len(results) > 1 else ""
        shown = [[row[i] for i in used] for row in rows[:MOST_POINTS]]
        print_table([columns[i] for i in used], shown, title=plan.experiment.title + several, file=file)
        left = len(rows) - len(shown)
        lines = [f"… and {left} more, in the report"] if left else []
        print(wrap_text("\n".join(["", *lines, *result.sentences(show), ""]), file=file), file=file)
