"""docs/config.md: every field of the config, from the dataclasses."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from collections.abc import Iterator
from typing import Any, Literal

from generator.formatting import NOTE, code, plain, table, wrapped
from voidrl.config import PIECES, SET_BY_COMMAND, Config, field_docs, registry


def config() -> str:
    """Return the page: every field, from the dataclasses."""
    root = Config()
    parts = [
        NOTE,
        "# Config\n",
        wrapped(
            "Look up a field and its default. Set a field in Python with "
            '`config={"learner.n_step": 3}`, and on the command line with `--learner.n-step 3`. '
            "`voidrl config pretrain ENV` shows the values for a run on ENV, and their sources. A run "
            "records its config in `config.json`. [Presets](presets.md) are named sets of these values."
        ),
        "## Run\n",
        _fields(root),
    ]
    for name in ("env", "env.dmc", "finetune", "replay", "augment", "log"):
        piece = root
        for step in name.split("."):
            piece = getattr(piece, step)
        parts += [f"## {name}\n", f"{plain(type(piece).__doc__ or '')}\n", _fields(piece, name)]
    for kind in PIECES:
        base = type(getattr(root, kind))
        parts += [
            f"## {kind}\n",
            f"{plain(base.__doc__ or '')} Fields of all of them:\n",
            _fields(base(), kind),
        ]
        if kind != "method":
            encoder = base().encoder
            parts += [f"### {kind}.encoder\n", f"{plain(type(encoder).__doc__ or '')}\n"]
            parts.append(_fields(encoder, f"{kind}.encoder"))
        for name in registry.names(kind):
            piece = registry.find(kind, name).Config()
            own = _fields(piece, kind, base())
            parts += [f"### {kind} {name}\n"]
            text = f"{plain(_about(kind, name))} Its own fields, and those with another default:\n"
            parts += [text, own] if own else [f"{plain(_about(kind, name))} It has no fields of its own.\n"]
    return "\n".join(parts)


def _about(kind: str, name: str) -> str:
    module = importlib.import_module(f"voidrl.{registry.KINDS[kind]}.{name}")
    return (module.__doc__ or "").partition("\n")[0]


def _fields(piece: Any, path: str = "", base: Any = None) -> str:
    """Return a table of the plain fields; with a `base`, only those that differ from it."""
    hints, docs = typing.get_type_hints(type(piece)), field_docs(type(piece))
    rows = []
    for field in dataclasses.fields(piece):
        value, name = getattr(piece, field.name), f"{path}.{field.name}".lstrip(".")
        if name in SET_BY_COMMAND:
            continue
        if base is not None and getattr(base, field.name, ...) == value:
            continue
        if dataclasses.is_dataclass(value):
            if base is not None:
                rows += _changed(value, getattr(base, field.name), name)
            continue
        choices = _choices(hints[field.name])
        meaning = plain(docs[field.name]) + (f" One of {choices}." if choices else "")
        rows.append([f"`{name}`", code(value), meaning])
    return table(["field", "default", "meaning"], rows) + "\n" if rows else ""


def _changed(value: Any, base: Any, path: str) -> Iterator[list[str]]:
    for field in dataclasses.fields(value):
        if getattr(value, field.name) != getattr(base, field.name):
            yield [f"`{path}.{field.name}`", code(getattr(value, field.name)), "as above"]


def _choices(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return ", ".join(map(code, typing.get_args(hint)))
    return ""
