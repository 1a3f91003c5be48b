"""Human-readable values, counts, sizes and durations: `0.001`, `100k`, `145 kB`, `2h03m`."""

from __future__ import annotations

import math
import re
from collections import deque
from decimal import Decimal
from typing import Any

from voidrl.errors import ConfigError

GIB = 2**30
_COUNT = re.compile(r"([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?)(?:e\+?([0-9]{1,2})|([kmbg]))?", re.IGNORECASE)
_ZEROS = {"k": 3, "m": 6, "b": 9, "g": 9}


def parse_count(value: str | float, name: str = "steps", *, zero: bool = False) -> int:
    """Parse a positive whole number such as `"1M"`, `"100k"`, `"2.5k"`, `"1e6"`, `"1_000_000"` or `1000`.

    With `zero`, 0 is allowed, too.
    """
    exact = Decimal(-1)
    if isinstance(value, str) and (match := _COUNT.fullmatch(value.strip())):
        digits, exponent, unit = match.groups()
        exact = Decimal(digits).scaleb(int(exponent or 0) + _ZEROS.get((unit or "").lower(), 0))
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        exact = Decimal(value)  # 1e6 is a float in Python
    if exact < (0 if zero else 1) or exact != exact.to_integral_value():
        raise ConfigError(
            f"{name} must be a positive whole number such as 1M, 100k, 1e6 or 1_000_000; got {value!r}"
        )
    return int(exact)


def plural(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def is_number(value: object) -> bool:
    """Whether a value is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def value_text(value: Any, separator: str = ", ") -> str:
    """A value of a config field as short as it can be read back: `0.001`, `12`, `true`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):  # values that are close must not look equal
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list | tuple):
        return separator.join(value_text(each, separator) for each in value)
    return str(value)


def human_count(value: float) -> str:
    """Format a number with three significant digits and a unit: 12345 → `12.3k`."""
    if not math.isfinite(value):
        return str(value)
    for unit in ("", "k", "M", "B", "T"):
        if abs(value) < 999.5 or unit == "T":  # 999.5 would round to 1e+03
            break
        value /= 1000
    return f"{value:.3g}{unit}"


def human_bytes(size: float) -> str:
    """Format a size with three significant digits and a decimal unit: 231849828352 → `232 GB`."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if abs(size) < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if abs(size) >= 100 else f"{size:.3g} {unit}"


def human_seconds(seconds: float) -> str:
    """Format a duration with its two largest units: 73 → `1m13s`, 7380 → `2h03m`."""
    if not math.isfinite(seconds):
        return "?"
    whole = max(0, round(seconds))
    for size, part, large, small in ((86400, 3600, "d", "h"), (3600, 60, "h", "m"), (60, 1, "m", "s")):
        if whole >= size:
            return f"{whole // size}{large}{whole % size // part:02d}{small}"
    return f"{whole}s"


class Rates:
    """Rates per second of counts over the last `window` seconds."""

    def __init__(self, window: float, *first: float) -> None:
        """`first` is the time and the counts then."""
        self._window = window
        self._samples = deque([first] if first else [])

    def add(self, now: float, *counts: int) -> list[float | None]:
        """The rates until now; None in the moment of the first sample."""
        while len(self._samples) > 1 and now - self._samples[1][0] >= self._window:
            self._samples.popleft()
        self._samples.append((now, *counts))
        then, *before = self._samples[0]
        pairs = zip(counts, before, strict=True)
        return [round((n - old) / (now - then), 3) if now > then else None for n, old in pairs]
