"""Executors for an experiment's cells: `local`, `ray` and `slurm`, modules with one contract (`base`)."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from voidrl.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from voidrl.experiments.executors.base import Executor
    from voidrl.experiments.plan import Plan

EXECUTORS = ("local", "ray", "slurm")


def make_options(name: str, given: Mapping[str, Any]) -> Any:
    """The options of an executor; refuses options of others."""
    owners = option_owners()
    _require_name(name)
    for field in given:
        if name not in owners.get(field, ()):
            whose = (
                f"it belongs to --on {' and '.join(owners[field])}"
                if field in owners
                else "there is no such option"
            )
            raise ConfigError(f"{flag(field)} cannot be used with --on {name}: {whose}")
    return _module(name).Options(**given)


def make_executor(name: str, plan: Plan, options: Any) -> Executor:
    """Make the executor, or refuse with a sentence; nothing is started or submitted yet."""
    _require_name(name)
    executor: Executor = _module(name).make(plan, options)
    return executor


def option_owners() -> dict[str, list[str]]:
    """The executors that have each option, by the name of its field."""
    owners: dict[str, list[str]] = {}
    for name in EXECUTORS:
        for field in dataclasses.fields(_module(name).Options):
            owners.setdefault(field.name, []).append(name)
    return owners


def option_fields() -> dict[str, dataclasses.Field[Any]]:
    """The options of all executors, for the command line; one that several have is described by the first."""
    found: dict[str, dataclasses.Field[Any]] = {}
    for name in EXECUTORS:
        for field in dataclasses.fields(_module(name).Options):
            found.setdefault(field.name, field)
    return found


def flag(field: str) -> str:
    """The option of the command line for a field."""
    return f"--{field.replace('_', '-')}"


def _require_name(name: str) -> None:
    if name not in EXECUTORS:
        raise UnknownNameError("executor", name, EXECUTORS, "It is where runs of an experiment are started.")


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")
