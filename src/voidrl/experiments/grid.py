"""`[grid]` of an experiment's file: which config fields vary, between which values. Imports no torch.

A point of a grid is a value for each of its fields. The points are the product of the fields' values;
Optuna (`--tune`) draws from a range as a continuous distribution.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from voidrl.config import require
from voidrl.system.units import is_number, value_text

Point = Mapping[str, Any]
"""A value for each field of a grid, by dotted names as `--set` has them."""
DIGITS = 4  # of values inside a range, so that a folder's name has the whole value
MAX_POINTS = 10_000
MAX_NAME = 100  # characters of a point's folder
RANGE_KEYS = {"from", "to", "count", "log"}
HOW = "a list of two or more different values, or a range such as { from = 1, to = 9, count = 5 }"
RANGE = "from below to, a count of 2 or more, and from above 0 with log = true"


@dataclass(frozen=True)
class Axis:
    """A field of a grid: a list of values, or a range of numbers."""

    name: str
    """Name as in `--set`: `learner.learning_rate`, `pretrain.steps`."""
    choices: tuple[Any, ...] = ()
    """Values of a list; () for a range."""
    low: float = 0.0
    high: float = 0.0
    count: int = 0
    """Number of values of a range in the product."""
    log: bool = False

    @property
    def values(self) -> tuple[Any, ...]:
        """Its values in the product."""
        if self.choices:
            return self.choices
        space = np.geomspace if self.log else np.linspace
        return tuple(self.tidy(float(x)) for x in space(self.low, self.high, self.count))

    @property
    def is_range(self) -> bool:
        """Whether any number between two ends can be drawn."""
        return not self.choices

    @property
    def is_whole(self) -> bool:
        """Whether these are whole numbers only, as both ends are written as such."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def tidy(self, value: float) -> Any:
        """A number of the range with few digits."""
        if self.is_whole:
            return round(value)
        for end in (self.low, self.high):
            if math.isclose(value, end):
                return float(end)
        if not self.log and abs(value) < 1e-9 * (self.high - self.low):
            return 0.0
        return float(np.clip(float(f"{value:.{DIGITS}g}"), self.low, self.high))


def read_axes(where: str, values: Mapping[str, Any]) -> dict[str, Axis]:
    """The fields of a table `[grid]`, by their dotted names; errors call it `where`."""
    axes = {name: _read_axis(f"{where}.{name}", name, value) for name, value in _fields(values)}
    require(bool(axes), where, {}, 'a field, such as "method.k" = [3, 6, 12]')
    return axes


def _fields(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Nested tables as dotted names; a range is a table as well."""
    for key, value in values.items():
        if isinstance(value, Mapping) and not RANGE_KEYS & {*value}:
            yield from _fields(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _read_axis(where: str, name: str, value: Any) -> Axis:
    if isinstance(value, list):
        kinds = {"number" if is_number(each) else type(each).__name__ for each in value}
        distinct = {value_text(each) for each in value}  # 1 and 1.0 are equal
        ok = len(kinds) == 1 and "dict" not in kinds and 1 < len(value) == len(distinct)
        require(ok, where, value, HOW)
        return Axis(name, tuple(tuple(each) if isinstance(each, list) else each for each in value))
    is_range = isinstance(value, Mapping) and {"from", "to", "count"} <= {*value} <= RANGE_KEYS
    require(is_range, where, value, HOW)
    low, high, count, log = value["from"], value["to"], value["count"], value.get("log", False)
    ok = is_number(low) and is_number(high) and low < high and (low > 0 or not log)
    ok = ok and isinstance(log, bool) and isinstance(count, int) and 2 <= count <= MAX_POINTS
    require(ok, where, value, RANGE)
    axis = Axis(name, low=low, high=high, count=count, log=log)
    distinct = len({*axis.values}) == count
    require(distinct, where, value, "as many whole numbers between the two, or ends such as 0.0 and 1.0")
    return axis


def all_points(axes: Sequence[Axis]) -> list[Point]:
    """The product of all fields; one empty point without any."""
    number = math.prod(len(axis.values) for axis in axes)
    require(number <= MAX_POINTS, "grid", f"{number} points", f"at most {MAX_POINTS}; use --tune")
    names = [axis.name for axis in axes]
    return [dict(zip(names, values, strict=True)) for values in product(*(axis.values for axis in axes))]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """`learner.learning_rate` → `learning_rate`, with as much before it as it takes to be unique."""
    short = {}
    for name in names:
        parts = name.split(".")
        ends = [".".join(parts[-number:]) for number in range(1, len(parts) + 1)]
        unique = [end for end in ends if sum(f".{other}".endswith(f".{end}") for other in names) == 1]
        short[name] = unique[0] if unique else name
    return short


def point_text(point: Point, short: Mapping[str, str]) -> str:
    """`learning_rate 0.001, k 12`."""
    return ", ".join(f"{short[name]} {value_text(value, ',')}" for name, value in point.items())


def point_folder(point: Point, short: Mapping[str, str]) -> str:
    """`learning_rate=0.001,k=12`: the folder with the runs of a point; other points have other names."""
    texts = {name: value_text(value, ",") for name, value in point.items()}
    clean = {name: re.sub(r"[^\w.+-]+", "-", text, flags=re.ASCII) for name, text in texts.items()}
    folder = ",".join(f"{short[name]}={text}" for name, text in clean.items())
    if clean != texts or len(folder) > MAX_NAME:
        digest = hashlib.sha256(repr(sorted(point.items())).encode()).hexdigest()[:6]
        folder = f"{folder[:MAX_NAME].rstrip('-,.')}-{digest}"
    return folder
