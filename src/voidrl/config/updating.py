"""Changes to configs: nested or dotted values, merged in layers and checked against the declared types."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from voidrl.config import registry
from voidrl.config.checks import LARGEST, require
from voidrl.config.fields import LOCAL_FIELDS, USER_FIELDS, field_types, flat, similar_fields, to_json
from voidrl.config.pieces import AUTOMATIC, PIECES, EncoderConfig, PieceConfig
from voidrl.config.schema import Config
from voidrl.errors import ConfigError, UnknownNameError, by_caller, shown

T = TypeVar("T")
MAX_DOTS = 8  # in the name of a field


def update(config: T, changes: Mapping[str, Any], path: str = "") -> T:
    """A copy of `config` with nested `changes`: `{"learner": {"n_step": 3}}` or `{"learner.n_step": 3}`."""
    hints = field_types(type(config))
    values = {}
    for key, value in merge(changes).items():
        if key not in hints:
            known = [f.name for f in dataclasses.fields(config)]  # type: ignore[arg-type]
            near = [path + name for name in similar_fields(key, flat(to_json(config)))]
            raise UnknownNameError("config field", path + key, [path + n for n in known], near=near)
        current = getattr(config, key)
        if isinstance(config, EncoderConfig) and key == "stack" and isinstance(value, type):
            value = registry.register_encoder(value)
        if isinstance(current, PieceConfig):
            current, value = _switch_piece(key, current, value)
        if dataclasses.is_dataclass(current) and isinstance(value, Mapping):
            values[key] = update(current, value, f"{path}{key}.")
        else:
            values[key] = require_type(value, hints[key], path + key)
            _require_printable(values[key], path + key)
    try:
        return dataclasses.replace(config, **values)  # type: ignore[type-var]
    except ConfigError as error:  # a nested config does not know its own path
        raise ConfigError(f"{path}{error}") from None


def _require_printable(value: Any, name: str) -> None:
    """Refuse text that could change what a terminal or a page shows."""
    for each in value if isinstance(value, tuple) else (value,):
        printable = not isinstance(each, str) or each.isprintable()
        require(printable, name, each, "text on one line, without control characters")


def _switch_piece(kind: str, current: PieceConfig, value: Any) -> tuple[PieceConfig, Mapping[str, Any]]:
    """The config to change and the changes: a piece given by a new name or class starts from its defaults."""
    if not isinstance(value, Mapping):
        value = {"name": value}
    if "name" in value:
        name = value["name"]
        require(isinstance(name, str | type), kind, name, "a name, a class or a mapping of values")
        fresh = default_piece(kind, name)
        current = current if current.name == fresh.name and type(current) is type(fresh) else fresh
    return current, {k: v for k, v in value.items() if k != "name"}


def default_piece(kind: str, name: str | type) -> PieceConfig:
    """The default config of a method, representation or learner."""
    if name == "auto" and kind in AUTOMATIC:
        return AUTOMATIC[kind]("auto")
    cls = registry.find(kind, name)  # imports torch
    piece: PieceConfig = cls.Config(name=registry.name_of(kind, cls))
    return piece


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested or dotted changes as one nested dictionary; later layers win.

    A later layer that names another piece (`{"method": "random"}`) drops what was set for the one before.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            named = isinstance(key, str) and key.count(".") <= MAX_DOTS
            require(named, "config field", key, "the name of a field, such as 'learner.n_step'")
            head, _, rest = key.partition(".")
            value = _as_mapping(head, {rest: value} if rest else value)
            old = _as_mapping(head, merged.get(head))
            if isinstance(value, Mapping):
                keeps = isinstance(old, Mapping) and not (head in PIECES and _names_another(head, old, value))
                value = merge(old if keeps else {}, value)
            merged[head] = value
    return merged


def _as_mapping(head: str, value: Any) -> Any:
    """A config object as its values, a piece's name or class as its `name`; anything else unchanged."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {k: v for k, v in to_json(value).items() if (k, v) != ("name", "")}
    return {"name": value} if head in PIECES and isinstance(value, str | type) else value


def _names_another(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether both are named, and differently."""
    names = [
        registry.name_of(kind, n) if isinstance(n, type) else n for n in (old.get("name"), new.get("name"))
    ]
    return "auto" != names[0] != names[1] and None not in names


def require_type(value: Any, hint: Any, name: str) -> Any:
    """The value as its declared type, or an error that says what was expected."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    expected: list[str] = []
    for option in options:
        if typing.get_origin(option) is Literal:
            if value in typing.get_args(option):
                return value
            expected += map(repr, typing.get_args(option))
            continue
        kind: type = typing.get_origin(option) or option
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and kind in (int, float) and abs(value) >= LARGEST and value != math.inf:
            raise ConfigError(f"{name} = {shown(value)} cannot be used: expected a number below 2⁶³")
        if kind is float and number:
            return float(value)
        if kind is int and number and value == value // 1:
            return int(value)
        if kind is tuple and isinstance(value, str) and typing.get_args(option)[0] is str:
            return (value,)
        if kind is tuple and isinstance(value, list | tuple):
            return tuple(require_type(v, typing.get_args(option)[0], name) for v in value)
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        expected.append(_kind_text(kind, value))
    raise ConfigError(f"{name} = {shown(value)} cannot be used: expected {' or '.join(expected)}")


def _kind_text(kind: type, value: Any) -> str:
    """A field's type in words; the command line reads counts such as 100k."""
    if kind is int and isinstance(value, str):
        return by_caller("a whole number", "a whole number such as 5000, 100k or 2M")
    words = {
        types.NoneType: "None",
        tuple: "a list",
        list: "a list",
        dict: "a table",
        int: "a whole number",
        float: "a number",
    }
    return words.get(kind, kind.__name__)


def differences(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """The fields in which two configs differ, with both values; None for one that a config does not have."""
    mine, theirs = flat(to_json(one)), flat(to_json(other))
    names = {**mine, **theirs}
    pairs = {name: (mine.get(name), theirs.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def without_local_fields(config: Config) -> Config:
    """The config with defaults for all that belongs to the machine and its user."""
    return _with_defaults(config, LOCAL_FIELDS)


def without_user_fields(config: Config) -> Config:
    """The config with defaults for what the user of a downloaded agent decides, not its author."""
    return _with_defaults(config, (*LOCAL_FIELDS, *USER_FIELDS))


def _with_defaults(config: Config, fields: tuple[str, ...]) -> Config:
    pieces = {kind: type(getattr(config, kind))(getattr(config, kind).name) for kind in PIECES}
    defaults = flat(to_json(dataclasses.replace(Config(), **pieces)))
    return update(config, {name: defaults[name] for name in fields if name in defaults})
