"""`[grid]` of an experiment's file: which config fields vary, between which values. Imports no torch.

A point of a grid is a value for each of its fields. All points are the product of the fields' values;
`draw_points` draws some of them, with ranges as continuous distributions.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from voidrl.errors import ConfigError, shown
from voidrl.system.units import is_number, value_text

Point = Mapping[str, Any]
"""A value for each field of a grid, by dotted names as `--set` has them."""
DIGITS = 4  # by which values inside a range differ: a value's name in folders is then the whole of it
MAX_VALUES = 10_000  # of one field
MAX_POINTS = 100_000
MAX_NAME = 100  # characters of a point's folder
RANGE_KEYS = ("from", "to", "step", "count", "log")
HOW = "a list of values, or a range such as { from = 1, to = 9, step = 2 } or { from = 1, to = 9, count = 5 }"


@dataclass(frozen=True)
class Axis:
    """A field of a grid: values of a list, or a range of numbers."""

    name: str
    """Name as in `--set`: `learner.learning_rate`, `pretrain.steps`."""
    choices: tuple[Any, ...] = ()
    """Values of a list, or of a range with a step; () for a range that is continuous when drawn from."""
    low: float = 0.0
    high: float = 0.0
    count: int = 0
    """Values of a continuous range in the full product."""
    log: bool = False
    whole: bool = False
    """Whether the field takes whole numbers only."""

    @property
    def values(self) -> tuple[Any, ...]:
        """Its values in the full product."""
        if self.choices or self.count == 1:
            return self.choices or (self.tidy(self.low),)
        return tuple(self._at(i / (self.count - 1)) for i in range(self.count))

    @property
    def is_range(self) -> bool:
        """Whether any number between two ends can be drawn."""
        return not self.choices and self.low < self.high

    def draw(self, u: float) -> Any:
        """The value at a uniform random number in [0, 1)."""
        if not self.is_range:
            return self.values[int(u * len(self.values))]
        if not self.whole:
            return self._at(u)
        # Every whole number gets an equal part of the axis; on a log axis, in proportion to its logarithm.
        low, high = self.low - 0.5, self.high + 0.5
        x = math.exp(_between(math.log(low), math.log(high), u)) if self.log else _between(low, high, u)
        return min(max(round(x), round(self.low)), round(self.high))

    def _at(self, u: float) -> Any:
        """The value at a part of the way from its low end to its high one."""
        if u in (0.0, 1.0):
            return self.tidy(self.high if u else self.low)
        if self.log:
            return self.tidy(math.exp(_between(math.log(self.low), math.log(self.high), u)))
        return self.tidy(_between(self.low, self.high, u))

    def tidy(self, value: float) -> Any:
        """A number of the range with few digits, so that its text is exact."""
        if self.whole:
            return round(value)
        if value in (self.low, self.high):
            return value
        width, largest = self.high - self.low, max(abs(self.low), abs(self.high))
        if abs(value) < 1e-9 * width:
            return 0.0
        same = max(0, math.floor(math.log10(largest / width)))  # leading digits that all values share
        return min(max(float(f"{value:.{DIGITS + same}g}"), self.low), self.high)

    def as_whole(self, file: str) -> Axis:
        """The axis for a field of whole numbers."""
        if self.choices:
            return self
        made = replace(self, whole=True)
        ends = self.low == round(self.low) and self.high == round(self.high)
        _require(ends, file, self.name, [self.low, self.high], "a range between whole numbers for this field")
        values = made.values
        few = f"count up to {len({*values})}, as this field takes whole numbers"
        _require(len({*values}) == len(values), file, self.name, f"{{ count = {self.count} }}", few)
        return made


def _between(low: float, high: float, u: float) -> float:
    return low + (high - low) * u


# Reading


def read_axes(file: str, table: str, values: Mapping[str, Any]) -> dict[str, Axis]:
    """The fields of a table `[grid]`, by their dotted names."""
    axes = {}
    for name, value in _fields(values):
        axes[name] = _read_axis(file, table, name, value)
    if not axes:
        raise ConfigError(f'{file}: [{table}] is empty: expected a field, such as "method.k" = [3, 6, 12]')
    return axes


def _fields(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Nested tables as dotted names; a range is a table as well, with an end."""
    for key, value in values.items():
        if isinstance(value, Mapping) and not {"from", "to"} & {*value}:
            yield from _fields(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _read_axis(file: str, table: str, name: str, value: Any) -> Axis:
    where = f"{table}.{name}"
    if isinstance(value, list):
        return Axis(name, _read_list(file, where, value))
    _require(isinstance(value, Mapping), file, where, value, HOW)
    unknown = [key for key in value if key not in RANGE_KEYS]
    _require(
        not unknown, file, where, value, f"{HOW}; {', '.join(unknown)} is none of {', '.join(RANGE_KEYS)}"
    )
    _require("from" in value and "to" in value, file, where, value, "a range with both ends, from and to")
    low, high, log = value["from"], value["to"], value.get("log", False)
    _require(is_number(low) and is_number(high) and low <= high, file, where, value, "numbers, from ≤ to")
    _require(isinstance(log, bool), file, where, value, "log = true or false")
    one = ("step" in value) != ("count" in value)
    _require(one, file, where, value, "a range with one of step and count")
    if log:
        _require(low > 0, file, where, value, "a log-range between numbers above 0, as 0 has no logarithm")
        _require("count" in value, file, where, value, "a log-range with count, as its values have no step")
    if "step" in value:
        return Axis(name, _steps(file, where, value))
    count = value["count"]
    enough = isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= MAX_VALUES
    _require(enough, file, where, value, f"a count from 2 to {MAX_VALUES}")
    _require(count > 1 or low == high, file, where, value, "count = 2 or more, as its ends differ")
    if low == high:
        return Axis(name, (low,))
    return Axis(name, low=low, high=high, count=count, log=log)


def _read_list(file: str, where: str, values: list[Any]) -> tuple[Any, ...]:
    _require(values, file, where, values, "at least one value")
    kinds = {_kind(value) for value in values}
    expected = f"values of one type, and not {' and '.join(sorted(kinds))}"
    _require(len(kinds) == 1, file, where, values, expected)
    finite = all(math.isfinite(value) for value in values if is_number(value))
    _require(kinds != {"tables"} and finite, file, where, values, "plain values")
    _require(len(values) <= MAX_VALUES, file, where, values, f"at most {MAX_VALUES} values")
    texts = [value_text(value) for value in values]  # 1 and 1.0 are equal
    _require(len({*texts}) == len(texts), file, where, values, "each value once")
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


def _steps(file: str, where: str, value: Mapping[str, Any]) -> tuple[Any, ...]:
    low, high, step = value["from"], value["to"], value["step"]
    _require(is_number(step) and step > 0, file, where, value, "a step above 0")
    number = math.floor((high - low) / step + 1e-9) + 1
    _require(
        number <= MAX_VALUES, file, where, value, f"a step with which there are at most {MAX_VALUES} values"
    )
    if all(isinstance(each, int) for each in (low, step)):
        return tuple(low + i * step for i in range(number))
    return tuple(float(f"{low + i * step:.12g}") for i in range(number))  # 0.3, not 0.30000000000000004


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "numbers"
    names: dict[type, str] = {str: "text", list: "lists", dict: "tables"}
    return names.get(type(value), type(value).__name__)


def _require(ok: object, file: str, name: str, value: object, expected: str) -> None:
    if not ok:
        raise ConfigError(f"{file}: {name} = {shown(value)} cannot be used: expected {expected}")


# Points


def all_points(axes: Sequence[Axis]) -> list[Point]:
    """The product of all fields; one empty point without any."""
    if count_points(axes) > MAX_POINTS:
        raise ConfigError(
            f"the grid has {count_points(axes)} points: expected at most {MAX_POINTS}; use --samples or "
            f"--tune"
        )
    return [
        dict(zip([axis.name for axis in axes], values, strict=True))
        for values in product(*(axis.values for axis in axes))
    ]


def count_points(axes: Sequence[Axis]) -> int:
    """Number of points in the product."""
    return math.prod(len(axis.values) for axis in axes)


def draw_points(axes: Sequence[Axis], number: int, seed: int) -> list[Point]:
    """Distinct points at random; a larger number only adds points to a smaller one.

    Each field has its own random stream, so that methods that share a field get equal values.
    """
    if not any(axis.is_range for axis in axes) and number >= count_points(axes):
        return all_points(axes)
    numbers = {axis.name: random.Random(f"{seed} {axis.name}") for axis in axes}
    found: dict[str, Point] = {}
    for _ in range(1000 + 100 * number):  # a bound for ranges of few whole numbers
        point = {axis.name: axis.draw(numbers[axis.name].random()) for axis in axes}
        found.setdefault(repr(point), point)
        if len(found) == number:
            break
    return [*found.values()]


# Names


def short_names(names: Sequence[str]) -> dict[str, str]:
    """`learner.learning_rate` → `learning_rate`, with as much before it as it takes to be unique."""
    short = {}
    for name in names:
        parts = name.split(".")
        for number in range(1, len(parts) + 1):
            short[name] = ".".join(parts[-number:])
            if sum(f".{other}".endswith(f".{short[name]}") for other in names) == 1:
                break
    return short


def point_text(point: Point, short: Mapping[str, str], separator: str = ", ", equals: str = " ") -> str:
    """`learning_rate 0.001, k 12`."""
    texts = {name: value_text(value, ",") for name, value in point.items()}
    return separator.join(f"{short[name]}{equals}{text}" for name, text in texts.items())


def point_folder(point: Point, short: Mapping[str, str]) -> str:
    """`learning_rate=0.001,k=12`: the folder with the runs of a point; other points have other names."""
    text = point_text(point, short, ",", "=")
    name = re.sub(r"[^\w.,=+-]+", "-", text, flags=re.ASCII)  # a character is a byte
    ambiguous = any(re.search("[,=]", part) for value in point.values() for part in _texts(value))
    if name != text or ambiguous or len(name) > MAX_NAME:
        digest = hashlib.sha256(repr(sorted(point.items())).encode()).hexdigest()[:6]
        name = f"{name[:MAX_NAME].rstrip('-,.')}-{digest}"
    return name


def _texts(value: Any) -> list[str]:
    """The words of a value."""
    return [value_text(each) for each in (value if isinstance(value, list | tuple) else [value])]
