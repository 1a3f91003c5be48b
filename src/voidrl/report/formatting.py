"""Formats of numbers, lists and tables in a report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

ABSENT = "–"


def count(value: float) -> str:
    """A whole number with thousands separators: `16,000`."""
    return f"{value:,.0f}"


def steps(value: float) -> str:
    """A number of steps, abbreviated where that loses nothing: `16k`, `2M`, `12,345`."""
    for size, unit in ((1_000_000, "M"), (1000, "k")):
        short = value / size
        if value >= size and abs(short - round(short, 2)) < 1e-9:
            return f"{short:g}{unit}"
    return count(value)


def step_range(values: Iterable[float]) -> str:
    """The lowest and highest number of steps, `8k to 16k`, or the only one."""
    found = {*values}
    return " to ".join(dict.fromkeys([steps(min(found)), steps(max(found))]))


def join_names(names: Iterable[str], most: int = 8, separator: str = ", ") -> str:
    """`a, b, c`, shortened to the first `most` names: `a, b, 12 more`."""
    found = [*names]
    rest = [f"{count(len(found) - most)} more"] if len(found) > most else []
    return separator.join([*found[:most], *rest])


def seed_list(seeds: Iterable[int]) -> str:
    """`1–5, 8`: consecutive seeds are shown as a range."""
    ranges: list[list[int]] = []
    for seed in sorted({*seeds}):
        if ranges and seed == ranges[-1][-1] + 1:
            ranges[-1].append(seed)
        else:
            ranges.append([seed])
    return ", ".join(
        f"{part[0]}–{part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in ranges
    )


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
    status_column: int | None = None
    """The column in which anything but `done` is highlighted."""

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
