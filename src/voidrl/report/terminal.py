"""The results of a report in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from voidrl.report.contents import Report
from voidrl.report.formatting import Table, join_names
from voidrl.system.terminal.tables import print_table, wrap_text

MOST_POINTS = 20  # of a grid; the page has all of them
MOST_DETAILS = 3  # of a caveat
SHOWN = ("failed", "warn", "running")  # caveats


def print_results(report: Report, file: TextIO | None = None) -> None:
    """Print the tables of results, then who is ahead, then how far the numbers can be compared."""
    for table in _tables(report):
        print_table(table.columns, table.rows, title=table.title, file=file)
        print(wrap_text("\n".join([*table.notes, ""]), file=file), file=file)
    lines = [*report.findings, *(line for grid in report.grids for line in grid.sentences)]
    lines += [line for panel in report.panels for line in panel.verdicts]
    for caveat in report.caveats:
        if caveat.kind in SHOWN:
            lines.append(f"{caveat.title}: {join_names(caveat.details, MOST_DETAILS, '; ')}")
    print(wrap_text("\n".join(lines), file=file), file=file)


def _tables(report: Report) -> Iterator[Table]:
    if report.before_after is not None:
        yield report.before_after
    for results in report.results:
        if not results.is_folded:
            yield results.pivot() or results.table()
    for grid in report.grids:
        table = grid.table()
        left = len(table.rows) - MOST_POINTS
        notes = [f"… and {left} more, in the report"] if left > 0 else []
        yield Table(table.title, table.columns, table.rows[:MOST_POINTS], notes)
    if report.atari is not None:
        yield report.atari
    for urlb in report.urlb:
        yield urlb.overview
        yield urlb.bodies[0].table()
    for panel in report.panels:
        yield panel.difference_table()
    yield from report.published
