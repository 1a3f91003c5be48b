"""A table of text, which the page and Markdown render."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """Rows of text under column names."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    """Sentences below the table: how its numbers were computed and where they fall short."""
    numeric: frozenset[int] = frozenset()
    """Columns of numbers, which are aligned right."""
    flags: dict[tuple[int, int], str] = field(default_factory=dict)
    """Highlighted cells, by row and column: `failed`, `warn` or `running`."""

    def markdown(self) -> str:
        """The table in GitHub's Markdown."""
        rule = "|".join("--:" if i in self.numeric else "---" for i in range(len(self.columns)))
        cells = [" | ".join(map(escape_markdown, row)) for row in (self.columns, *self.rows)]
        return "\n".join([f"| {cells[0]} |", f"|{rule}|", *(f"| {row} |" for row in cells[1:])])


def escape_markdown(text: str) -> str:
    """Text that Markdown shows literally: no markup, HTML or cell separators."""
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split("\n"))
