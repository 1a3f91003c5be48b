"""Limits of config values, declared in the types of their fields, and the checks that refuse others."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from voidrl.errors import ConfigError, shown

MAX_SIZE = 2**16
LARGEST = 2**63  # numbers of a config are below it, as torch's are


class Limit(NamedTuple):
    """The values that a field may have: `rate: Annotated[float, Limit(...)]`."""

    fits: Callable[[Any], bool]
    expected: str
    """The values that fit, for errors."""


def between(low: float, high: float, unit: str = "") -> Limit:
    """Values from `low` to `high`, both included."""
    return Limit(lambda value: low <= value <= high, f"{low} to {high} {unit}".rstrip())


Positive = Annotated[float, Limit(lambda value: 0 < value < math.inf, "a finite number above 0")]
NotNegative = Annotated[float, Limit(lambda value: 0 <= value < math.inf, "a finite number, 0 or more")]
Share = Annotated[float, Limit(lambda value: 0 <= value <= 1, "a number in [0, 1]")]
Count = Annotated[int, Limit(lambda value: value >= 0, "0 or more")]
PositiveCount = Annotated[int, Limit(lambda value: value > 0, "a finite number above 0")]
# Widths, batches and everything else that takes memory in proportion.
Size = Annotated[int, between(1, MAX_SIZE)]
OptionalSize = Annotated[int, between(0, MAX_SIZE)]
Polyak = Annotated[float, Limit(lambda value: 0 < value <= 1, "a number in (0, 1]")]
Momentum = Annotated[float, Limit(lambda value: 0 <= value < 1, "None or a number in [0, 1)")]
UpdateRate = Annotated[float, Limit(lambda value: 0 < value <= 1024, "a number above 0, up to 1024")]


class Checked:
    """Base of all configs: refuses values beyond the limits of their fields."""

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, limit in _limits(cls):
            value = getattr(self, name)
            for each in value if isinstance(value, tuple) else (value,):
                require(each is None or limit.fits(each), name, each, limit.expected)


@functools.cache
def _limits(cls: type) -> list[tuple[str, Limit]]:
    """The limits of a config's fields; `Positive | None` and `tuple[Positive, ...]` have their member's.

    A class that gives a field another default keeps the limits of the field in its bases.
    """
    found = [
        (name, limit)
        for base in cls.__mro__[-2::-1]
        for name, hint in typing.get_type_hints(base, include_extras=True).items()
        for option in (hint, *typing.get_args(hint))
        for limit in getattr(option, "__metadata__", ())
        if isinstance(limit, Limit)
    ]
    return [*dict.fromkeys(found)]


def require(ok: bool, name: str, value: object, expected: str) -> None:
    """Raise one clear sentence unless `ok`."""
    if not ok:
        raise ConfigError(f"{name} = {shown(value)} cannot be used: expected {expected}")
