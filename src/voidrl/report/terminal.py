"""The results of a report in the terminal."""

from __future__ import annotations

from voidrl.report.contents import Report
from voidrl.report.formatting import Table, join_names
from voidrl.system.terminal.tables import print_table, wrap_text

MOST_ROWS = 20  # of a section's table; the page has all of them
MOST_DETAILS = 3  # of a caveat
SHOWN = ("failed", "warn", "running")  # caveats


def print_results(report: Report) -> None:
    """Print the tables of results, then who is ahead, then how far the numbers can be compared."""
    for table in report.tables:
        if not table.is_folded:
            _print_table(table, len(table.rows))
    lines = [*report.findings]
    for section in report.sections:
        if section.name == "probes":
            continue
        if all(table.title != section.title for table in section.tables):
            print(wrap_text(f"{section.title}\n"))
        for table in section.tables:
            _print_table(table, MOST_ROWS)
        lines += section.findings
    for caveat in report.caveats:
        if caveat.kind in SHOWN:
            lines.append(f"{caveat.title}: {join_names(caveat.details, MOST_DETAILS, '; ')}")
    print(wrap_text("\n".join(lines)))


def _print_table(table: Table, most_rows: int) -> None:
    """The first rows of a table without its empty columns, and its notes."""
    shown = table.rows[:most_rows]
    used = [i for i in range(len(table.columns)) if any(row[i] for row in shown)]
    cells = [[row[i] for i in used] for row in shown]
    print_table([table.columns[i] for i in used], cells, title=table.title)
    more = len(table.rows) - len(shown)
    notes = [*([f"… and {more} more, in the report"] if more else []), *table.notes]
    print(wrap_text("\n".join([*notes, ""])))
