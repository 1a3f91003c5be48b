"""The probes of a report: what representations and rewards see of the true state, run by run."""

from __future__ import annotations

from collections.abc import Sequence

from voidrl.probing.result import columns, heading, notes, rows
from voidrl.report.formatting import Table
from voidrl.report.read import Run


def probe_tables(runs: Sequence[Run]) -> list[Table]:
    """A table for each run with a probe.json."""
    tables = []
    for run in runs:
        if (saved := run.probe) is not None:
            names = columns(saved)
            numeric = frozenset(range(2, len(names)))
            tables.append(Table(run.name, names, rows(saved), [*notes(saved), heading(saved)], numeric))
    return tables
