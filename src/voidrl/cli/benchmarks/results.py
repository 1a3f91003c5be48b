"""The result of a benchmark, and the number formats of its table."""

from __future__ import annotations

from typing import Any, NamedTuple

MISSING = "–"


class Result(NamedTuple):
    """One row of a benchmark."""

    figures: dict[str, Any]
    """Every figure, for `--json`."""
    cells: dict[str, str]
    """Text by column title, for the table; all rows of a table share their titles."""
    notes: tuple[str, ...] = ()
    """Lines printed below the row."""


def number(value: float | None) -> str:
    """A value with four significant digits, or a dash for None."""
    if value is None:
        return MISSING
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 10 else 3
    return f"{value:,.{digits}f}"


def percent(fraction: float | None) -> str:
    """A whole percentage, or a dash for None."""
    return MISSING if fraction is None else f"{fraction:.0%}"


def value_range(figures: dict[str, Any], key: str) -> str:
    """The slowest and the fastest repeat."""
    return f"{number(figures[f'{key}_min'])}–{number(figures[f'{key}_max'])}"


def speedup(figures: dict[str, Any]) -> dict[str, str]:
    """A column with the speedup over the baseline, if the run has a baseline."""
    if "against" not in figures:
        return {}
    ratio = figures["ratio"]
    return {f"× {figures['against']}": MISSING if ratio is None else f"{ratio:.2f}×"}
