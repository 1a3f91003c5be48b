"""Finds a method, representation or learner by file name, by `module:Class`, or takes a class as it is.

Other packages register theirs by entry points: `voidrl.methods`, `voidrl.representations` and
`voidrl.learners` name a class; `voidrl.environments` a module, or a function to call, that registers ids with
Gymnasium.
"""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from voidrl.errors import ConfigError, UnknownNameError, printable, similar_names

KINDS = {"method": "methods", "representation": "representations", "learner": "learners"}

_given: dict[tuple[str, str], type] = {}  # classes passed in by this process; they may not be importable


def names(kind: str) -> list[str]:
    """Names of all files of a kind, then of what other packages register; nothing heavy is imported."""
    return [*own_names(kind), *registered(kind)]


def own_names(kind: str) -> list[str]:
    """Names of all files of a kind."""
    package = importlib.import_module(f"voidrl.{KINDS[kind]}")
    return sorted(
        m.name for m in pkgutil.iter_modules(package.__path__) if m.name != "base" and m.name[0] != "_"
    )


def registered(kind: str) -> dict[str, EntryPoint]:
    """The entry points of other packages by name; a name of our own is not one of them."""
    found = {point.name: point for point in entry_points(group=f"voidrl.{KINDS[kind]}")}
    return {name: found[name] for name in sorted(found.keys() - {*own_names(kind)})}


def load_entry_point(kind: str, point: EntryPoint) -> Any:
    """What an entry point names; an error if it cannot be imported."""
    try:
        return point.load()
    except Exception as error:
        raise ConfigError(_failure(kind, point, "cannot be imported", error)) from error


@cache
def import_environments() -> str:
    """Import what other packages register as `voidrl.environments`; returns what failed first, or ""."""
    failures = []
    for point in entry_points(group="voidrl.environments"):
        try:
            found = load_entry_point("environments", point)
            if callable(found):
                found()
        except ConfigError as error:
            failures.append(str(error))
        except Exception as error:
            failures.append(_failure("environments", point, "failed", error))
    return failures[0] if failures else ""


def _failure(kind: str, point: EntryPoint, what: str, error: Exception) -> str:
    package = f" of package {point.dist.name}" if point.dist else ""
    why = f"{type(error).__name__}: {printable(error)}"
    return f"{kind} {point.name!r}{package} ({point.value}) {what} ({why})"


def find(kind: str, name: str | type) -> type[Any]:
    """The class behind a name: the last class of its file that derives from the kind's base."""
    package = f"voidrl.{KINDS[kind]}"
    base: Any = getattr(importlib.import_module(f"{package}.base"), kind.capitalize())
    if isinstance(name, type):
        found: object = name
    elif (kind, name) in _given:
        found = _given[kind, name]
    elif ":" in name:
        found = import_path(kind, name)
    elif name in own_names(kind):
        module = importlib.import_module(f"{package}.{name}")
        mine = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
        found = next((c for c in reversed(mine) if issubclass(c, base)), None)
    elif name in (others := registered(kind)):
        found = load_entry_point(kind, others[name])
    else:
        remedy = f"Your own: 'module:Class', or `voidrl list {KINDS[kind]}`."
        raise UnknownNameError(kind, name, names(kind), remedy, with_colon(name))
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(
            f"{kind} {name!r} cannot be used: expected a subclass of {base.__module__}.{base.__name__}"
        )
    given, options = getattr(found, "Config", None), base.Config
    if not (isinstance(given, type) and issubclass(given, options)):
        raise ConfigError(
            f"Config of {kind} {name!r} is {given!r}: expected a dataclass derived from "
            f"voidrl.config.{options.__name__}"
        )
    if isinstance(name, type):
        _given[kind, name_of(kind, name)] = name
    return found


def find_encoder(name: str) -> type[Any]:
    """The class of a custom encoder stack, by `module:Class` or as `register_encoder` named it."""
    from torch import nn

    found = _given.get(("encoder", name)) or import_path("encoder stack", name)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"encoder stack {name!r} cannot be used: expected a subclass of torch.nn.Module")
    return found


def register_encoder(cls: type) -> str:
    """The name under which `find_encoder` finds a class of this process."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    _given["encoder", name] = cls
    return name


def name_of(kind: str, cls: type) -> str:
    """The name under which `find` finds this class again."""
    module, package = cls.__module__, f"voidrl.{KINDS[kind]}."
    return module.removeprefix(package) if module.startswith(package) else f"{module}:{cls.__qualname__}"


def with_colon(path: str) -> list[str]:
    """`module:name` for `module.name`, if there is such a package, which is not imported for that."""
    module, _, name = path.rpartition(".")
    with suppress(ValueError):  # a module without a spec, such as __main__
        if path.replace(".", "").isidentifier() and module and find_spec(module.partition(".")[0]):
            return [f"{module}:{name}"]
    return []


def import_path(kind: str, path: str) -> object:
    """Import the object at `module:name`."""
    module, _, name = path.partition(":")
    is_file = module.endswith(".py")
    if not module or module.startswith(".") or not name or is_file:
        meant = f", here {module.removesuffix('.py').rpartition('/')[2]}:{name}" * is_file
        raise ConfigError(f"{kind} {path!r} cannot be imported: expected 'module:name'{meant}")
    try:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            if not hasattr(found, part):
                near = " or ".join(map(repr, similar_names(part, dir(found))))
                raise ImportError(f"{module!r} has no {part!r}{near and f', did you mean {near}?'}")
            found = getattr(found, part)
    except ImportError as error:
        raise ConfigError(
            f"{kind} {path!r} cannot be imported ({error}): expected 'module:name', with the module in the "
            f"current folder or on the Python path"
        ) from error
    return found
