"""Finds a method, representation or learner by file name, by `module:Class`, or takes a class as it is."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import Any

from voidrl.errors import ConfigError, UnknownNameError, similar_names

KINDS = {"method": "methods", "representation": "representations", "learner": "learners"}

ABOUT_FIELDS = ("family", "year", "reward", "paper", "skills", "actions")  # of `methods.base.About`

_given: dict[tuple[str, str], type] = {}  # classes passed in by this process; they may not be importable


def names(kind: str) -> list[str]:
    """Names of all files of a kind; nothing heavy is imported."""
    package = importlib.import_module(f"voidrl.{KINDS[kind]}")
    return sorted(
        m.name for m in pkgutil.iter_modules(package.__path__) if m.name != "base" and m.name[0] != "_"
    )


@cache
def read_about(method: str) -> dict[str, Any]:
    """Read the `About` of a method from its file, without importing it; empty for other methods."""
    path = Path(__file__).parents[1] / "methods" / f"{method}.py"
    return parse_about(path.read_text("utf-8")) if method.isidentifier() and path.is_file() else {}


def parse_about(source: str) -> dict[str, Any]:
    """The values of `about = About(...)` in the last class that has it; empty if they are not literals."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    calls = [node for node in nodes if ast.unparse(node.func) == "About"]
    try:
        pairs = zip(ABOUT_FIELDS, calls[-1].args, strict=False)
        given = {field: ast.literal_eval(value) for field, value in pairs}
        return given | {str(each.arg): ast.literal_eval(each.value) for each in calls[-1].keywords}
    except (IndexError, ValueError):
        return {}


def find(kind: str, name: str | type) -> type[Any]:
    """The class behind a name: the last class of its file that derives from the kind's base."""
    package = f"voidrl.{KINDS[kind]}"
    base: type = getattr(importlib.import_module(f"{package}.base"), kind.capitalize())
    if isinstance(name, type):
        found: object = name
    elif (kind, name) in _given:
        found = _given[kind, name]
    elif ":" in name:
        found = import_path(kind, name)
    elif name in names(kind):
        module = importlib.import_module(f"{package}.{name}")
        mine = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
        found = next((c for c in reversed(mine) if issubclass(c, base)), None)
    else:
        remedy = f"Your own: 'module:Class', or `voidrl list {KINDS[kind]}`."
        raise UnknownNameError(kind, name, names(kind), remedy)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(
            f"{kind} {name!r} cannot be used: expected a subclass of {base.__module__}.{base.__name__}"
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


def import_path(kind: str, path: str) -> object:
    """Import the object at `module:name`."""
    module, _, name = path.partition(":")
    if not module or module.startswith(".") or not name:
        raise ConfigError(f"{kind} {path!r} cannot be imported: expected 'module:name'")
    try:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            if not hasattr(found, part):
                near = similar_names(part, dir(found))
                hint = f", did you mean {' or '.join(map(repr, near))}?" if near else ""
                raise ImportError(f"{module!r} has no {part!r}{hint}")
            found = getattr(found, part)
    except ImportError as error:
        raise ConfigError(
            f"{kind} {path!r} cannot be imported ({error}): "
            f"expected 'module:name' of something on the Python path"
        ) from error
    return found
