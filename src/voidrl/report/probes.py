"""The probes of a report: what representations and rewards see of the true state, run by run."""

from __future__ import annotations

from collections.abc import Sequence

from voidrl.probing.sentences import lines, play, variable_columns, variable_notes, variable_rows
from voidrl.report.formatting import Table
from voidrl.report.read import Run


def probe_tables(runs: Sequence[Run]) -> list[Table]:
    """Two tables for each run with a probe.json: variables, and measures of the rewards."""
    tables = []
    for run in runs:
        saved = run.probe
        if saved is None:
            continue
        columns, rows = variable_columns(saved), variable_rows(saved)
        numeric = frozenset(range(2, len(columns)))
        notes = [*variable_notes(saved), f"Measured on {play(saved)}."]
        tables.append(Table(f"{run.name}: representation", columns, rows, notes, numeric))
        rewards = [[*line] for line in lines(saved)]
        columns = ["measure", "value", "meaning"]
        tables.append(Table(f"{run.name}: reward", columns, rewards, [], frozenset({1})))
    return tables
