"""Executors for an experiment's cells: `local`, `ray` and `slurm`, modules with one contract (`base`)."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

from voidrl.errors import ConfigError, UnknownNameError

EXECUTORS = ("local", "ray", "slurm")


def make_options(name: str, given: Mapping[str, Any]) -> Any:
    """The options of an executor; refuses options of others."""
    if name not in EXECUTORS:
        raise UnknownNameError("executor", name, EXECUTORS, "It is where runs of an experiment are started.")
    fields = option_fields()
    for field in given:
        owners = fields[field][1] if field in fields else []
        if name not in owners:
            why = f"it belongs to --on {' and '.join(owners)}" if owners else "there is no such option"
            raise ConfigError(f"{flag(field)} cannot be used with --on {name}: {why}")
    return executor_module(name).Options(**given)


def option_fields() -> dict[str, tuple[dataclasses.Field[Any], list[str]]]:
    """The options of all executors, as the first that has each describes it, and the names of those."""
    found: dict[str, tuple[dataclasses.Field[Any], list[str]]] = {}
    for name in EXECUTORS:
        for field in dataclasses.fields(executor_module(name).Options):
            found.setdefault(field.name, (field, []))[1].append(name)
    return found


def flag(field: str) -> str:
    """The option of the command line for a field."""
    return f"--{field.replace('_', '-')}"


def executor_module(name: str) -> Any:
    """The module of an executor, with `Options` and `make`."""
    return importlib.import_module(f"{__name__}.{name}")
