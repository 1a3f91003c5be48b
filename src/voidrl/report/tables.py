"""A table of text, which the page, Markdown and CSV each write in their own way."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """Rows of words under the names of their columns."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    """Sentences that belong to it: how its numbers were made, and what they are not."""
    numeric: frozenset[int] = frozenset()
    """Columns that hold numbers, which stand at the right."""
    flags: dict[tuple[int, int], str] = field(default_factory=dict)
    """Kind of the cell in a row and column that has to catch the eye: `failed`, `warn`, `running`."""

    def markdown(self) -> str:
        """As GitHub shows it."""
        lines = [_line(self.columns)]
        lines.append(
            "|" + "|".join("--:" if i in self.numeric else "---" for i in range(len(self.columns))) + "|"
        )
        lines += map(_line, self.rows)
        return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(map(escape_markdown, cells)) + " |"


def escape_markdown(text: str) -> str:
    """Text that a Markdown reader shows as it is: nothing in it becomes markup, HTML or another cell."""
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split("\n"))


def write_csv(columns: list[str], rows: list[list[object]]) -> str:
    """As RFC 4180 has it, with lines that end in a newline alone; None is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()
