"""Tables of results as Markdown, for the scripts in this folder."""

from __future__ import annotations

from voidrl.report.formatting import Table


def as_markdown(table: Table) -> str:
    """The table in GitHub's Markdown."""
    rule = "|".join("--:" if i in table.numeric else "---" for i in range(len(table.columns)))
    cells = [" | ".join(map(_escaped, row)) for row in (table.columns, *table.rows)]
    return "\n".join([f"| {cells[0]} |", f"|{rule}|", *(f"| {row} |" for row in cells[1:])])


def _escaped(text: str) -> str:
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split("\n"))
