"""Formats of numbers, lists, tables and sections in a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
class Bar:
    """The picture in a row of a table: a mean and its range, on an axis that all rows share."""

    low: float
    mean: float
    high: float
    color: str = "none"
    """The family that it is colored by."""
    mark: float | None = None
    """An upright line, such as a published mean."""
    seeds: Sequence[float] = ()
    """Values that are shown as dots."""


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
    bars: list[Bar | None] = field(default_factory=list)
    """A picture for each row, drawn after its first cell; empty for a table without pictures."""
    legend: str = ""
    """What the bars show."""
    axis: tuple[float, ...] = ()
    """Values that the axis of the bars covers in any case."""
    is_folded: bool = False
    """Whether the page shows it on a click only."""

    def position(self, value: float) -> str:
        """The position of a value on the axis of the bars, in percent."""
        bars = [bar for bar in self.bars if bar is not None]
        marks = [bar.mark for bar in bars if bar.mark is not None]
        ends = [*self.axis, *marks, *(end for bar in bars for end in (bar.low, bar.high))]
        low, high = min(ends), max(ends)
        return f"{100 * (value - low) / (high - low) if high > low else 50:.1f}%"

    def markdown(self) -> str:
        """The table in GitHub's Markdown."""
        rule = "|".join("--:" if i in self.numeric else "---" for i in range(len(self.columns)))
        cells = [" | ".join(map(escape_markdown, row)) for row in (self.columns, *self.rows)]
        return "\n".join([f"| {cells[0]} |", f"|{rule}|", *(f"| {row} |" for row in cells[1:])])


@dataclass(frozen=True)
class Section:
    """Sentences about a set of runs, and tables."""

    title: str
    tables: list[Table]
    findings: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Sentences about what was not run."""
    pictures: list[str] = field(default_factory=list)
    """Figures for the page, as data URIs."""


def escape_markdown(text: str) -> str:
    """Text that Markdown shows literally: no markup, HTML or cell separators."""
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split("\n"))
