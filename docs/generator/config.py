"""docs/config.md: every field of the config, from the dataclasses."""

from __future__ import annotations

import dataclasses
import importlib
import re
import typing
from collections.abc import Iterator
from typing import Any, Literal

from generator.formatting import NOTE, code, plain, table, wrapped
from voidrl.config import (
    PIECES,
    SET_BY_COMMAND,
    Config,
    EncoderConfig,
    RepresentationConfig,
    field_docs,
    registry,
)

GROUPS = ("env", "env.atari", "env.dmc", "finetune", "bonus", "replay", "augment", "reset", "log")
SHARED = {  # configs from which several pieces derive, by the heading of their fields
    "method": {
        "skills": "SkillConfig",
        "neighbors": "ParticleConfig",
        "counts": "VisitConfig",
    },
    "representation": {"auxiliary losses": "AuxiliaryConfig"},
    "learner": {},
}


def config() -> str:
    """Return the page: every field, from the dataclasses."""
    root = Config()
    parts = [
        NOTE,
        "# Config\n",
        wrapped(
            'Look up a field and its default. Set a field in Python with `config={"learner.n_step": 3}`, and '
            "on the command line with `--learner.n-step 3`. `voidrl config pretrain ENV` shows the values of "
            "a run, and their sources. A run records its config in `config.json`. [Presets](presets.md) are "
            "named sets of values."
        ),
        "## Run\n",
        _fields(root),
    ]
    for name in GROUPS:
        piece = root
        for step in name.split("."):
            piece = getattr(piece, step)
        parts += [f"## {name}\n", f"{plain(type(piece).__doc__ or '')}\n", _fields(piece, name)]
    for kind in PIECES:
        parts += _kind(kind, type(getattr(root, kind)))
    return "\n".join(parts)


def _kind(kind: str, base: type) -> Iterator[str]:
    """The fields that all pieces of a kind have, those that some share, and those of each."""
    yield (
        f"## {kind}\n\n{plain(base.__doc__ or '')} These fields are common to all. Below, each {kind} has "
        "its other defaults, whose meaning is empty, and its own fields.\n"
    )
    yield _fields(base(), kind)
    if kind == "representation":
        yield f"### {kind}.encoder\n\n{plain(EncoderConfig.__doc__ or '')}\n"
        yield _fields(base().encoder, f"{kind}.encoder")
    elif kind == "learner":
        yield f"### {kind}.encoder\n\nAs [representation.encoder](#representationencoder), except:\n"
        yield _fields(base().encoder, f"{kind}.encoder", RepresentationConfig().encoder)
    classes = {name: registry.find(kind, name).Config for name in registry.own_names(kind)}
    shared = {title: cls for each in classes.values() for title, cls in _shared(kind, each).items()}
    for title, cls in shared.items():
        users = (f"`{name}`" for name in classes if issubclass(classes[name], cls))
        yield f"### {kind} {title}\n\nOf {', '.join(users)}.\n"
        yield _fields(cls(), kind, base())
    for name, cls in classes.items():
        above = {
            other: each for other, each in classes.items() if each in cls.__mro__[1:] and each is not base
        }
        inherited = {title for each in above.values() for title in _shared(kind, each)}
        above |= {title: each for title, each in _shared(kind, cls).items() if title not in inherited}
        more = ", ".join(f"[{each}](#{kind}-{each.replace(' ', '-')})" for each in above)
        yield f"### {kind} {name}\n\n{plain(_about(kind, name))}{more and f' Also the fields of {more}.'}\n"
        if own := _fields(cls(), kind, *(each() for each in above.values()), base()):
            yield own


def _shared(kind: str, cls: type) -> dict[str, type]:
    """The shared configs from which this one derives, by the heading of their fields."""
    found = {base.__name__: base for base in cls.__mro__[1:]}
    return {title: found[name] for title, name in SHARED[kind].items() if name in found}


def _about(kind: str, name: str) -> str:
    module = importlib.import_module(f"voidrl.{registry.KINDS[kind]}.{name}")
    return (module.__doc__ or "").partition("\n")[0]


def _fields(piece: Any, path: str = "", *bases: Any) -> str:
    """Return a table of the plain fields that differ from those of the first of `bases` that has them."""
    hints, docs = typing.get_type_hints(type(piece)), field_docs(type(piece))
    rows = []
    for field in dataclasses.fields(piece):
        value, name = getattr(piece, field.name), f"{path}.{field.name}".lstrip(".")
        base = next((base for base in bases if hasattr(base, field.name)), None)
        if name in SET_BY_COMMAND or (base is not None and getattr(base, field.name) == value):
            continue
        if dataclasses.is_dataclass(value):
            if base is not None:
                rows += _changed(value, getattr(base, field.name), name)
            continue
        meaning = plain(docs[field.name]) + _choices(hints[field.name], docs[field.name])
        if base is not None and field_docs(type(base))[field.name] == docs[field.name]:
            meaning = ""
        rows.append([f"`{name}`", code(value), meaning])
    return table(["field", "default", "meaning"], rows) + "\n" if rows else ""


def _changed(value: Any, base: Any, path: str) -> Iterator[list[str]]:
    for field in dataclasses.fields(value):
        if getattr(value, field.name) != getattr(base, field.name):
            yield [f"`{path}.{field.name}`", code(getattr(value, field.name)), ""]


def _choices(hint: Any, doc: str) -> str:
    """The values of a field that its docstring does not name."""
    values = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    if all(re.search(rf"`{re.escape(str(value))}`", doc) for value in values):
        return ""
    return f" One of {', '.join(map(code, values))}."
