"""Unknown keyword arguments of the functions that train, answered with the config field that is meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from voidrl.config import PIECES, Config, flat, similar_fields, to_json
from voidrl.errors import UnknownNameError, shown

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def known_arguments(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Refuse arguments that a function does not have, with a remedy if it takes such a field by `config`."""
    known = [*inspect.signature(function).parameters]
    takes_config = "config" in known

    @functools.wraps(function)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        for name, value in kwargs.items():
            if name not in known:
                fields = similar_fields(name, [*PIECES, *flat(to_json(Config()))]) if takes_config else []
                meant = [f"config={{{field!r}: {shown(value)}}}" for field in fields]
                raise UnknownNameError(f"argument of voidrl.{function.__name__}", name, known, near=meant)
        return function(*args, **kwargs)

    return checked
