"""Formats of numbers and lists; tables and sections of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

ABSENT = "–"
ONE_SEED = ", one seed"  # ends a cell that the page flags


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
    """The picture in a row of a table: a mean, its range, and values as dots."""

    low: float
    mean: float
    high: float
    style: int = 0
    """Index of its color."""
    mark: float | None = None
    """An upright line, such as a published mean."""
    dots: Sequence[float] = ()


def draw_bars(bars: Iterable[Bar | None], *axis: float) -> list[Bar | None]:
    """Bars in percent of a common axis, which covers them and the given values."""
    found = [*bars]
    covered = [*axis]
    for bar in filter(None, found):
        covered += [bar.low, bar.high, *bar.dots, *([] if bar.mark is None else [bar.mark])]

    def place(value: float) -> float:
        start, width = min(covered), max(covered) - min(covered)
        return round(100 * (value - start) / width, 1) if width else 50.0

    def placed(bar: Bar) -> Bar:
        mark = None if bar.mark is None else place(bar.mark)
        low, mean, high = map(place, (bar.low, bar.mean, bar.high))
        return Bar(low, mean, high, bar.style, mark, [*map(place, bar.dots)])

    return [None if bar is None else placed(bar) for bar in found]


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
    """The column of statuses, which the page colors."""
    bars: list[Bar | None] = field(default_factory=list)
    """A picture for each row, as `draw_bars` returns them; empty for a table without pictures."""
    has_lines: bool = False
    """Whether the styles of bars are those of lines in charts."""
    is_grouped: bool = False
    """Whether the first column is a heading for the rows that share it."""
    is_folded: bool = False
    """Whether the page shows it on a click only."""


@dataclass(frozen=True)
class Section:
    """Sentences about a set of runs, and tables."""

    name: str
    """The section of the page that it belongs to."""
    title: str
    tables: list[Table]
    findings: list[str] = field(default_factory=list)
