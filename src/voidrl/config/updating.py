"""Config fields: their names, types and docs, and changes to them, merged in layers and checked."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeVar

from voidrl.config import registry
from voidrl.config.checks import LARGEST, require
from voidrl.config.pieces import AUTOMATIC, PIECES, EncoderConfig, PieceConfig
from voidrl.config.schema import Config
from voidrl.errors import ConfigError, UnknownNameError, shown

T = TypeVar("T")
MAX_DOTS = 8  # in the name of a field
TYPE_NAMES = {
    types.NoneType: "None",
    int: "a whole number",
    float: "a number",
    tuple: "a list",
    list: "a list",
    dict: "a table",
}
SET_BY_COMMAND = frozenset({"phase", "env.id", *(f"{kind}.name" for kind in PIECES)})  # no options
# Fields that belong to the machine and its user, not to the agent: shared agents have none of them.
LOCAL_FIELDS = (
    *("device", "cpu_threads", "engine", "env.backend", "env.timeout_s", "replay.data", "replay.device"),
    *("representation.weights", "log.keep_last", "log.keep_replay", "log.tensorboard", "log.wandb_project"),
)
# Fields of measuring and logging, which whoever runs a downloaded agent decides. `log.eval_epsilon` is not
# among them, since it belongs to the protocol of evaluations.
USER_FIELDS = (
    *("env.count_states", "log.log_every_steps", "log.eval_every_steps", "log.eval_episodes"),
    *("log.probe_every_steps", "log.checkpoint_every_steps", "log.snapshot_steps"),
)
# Fields that begin like this may change when a run is resumed. All others define the run.
RESUMABLE_FIELDS = (
    # How long, where and how it is computed.
    *("steps", "device", "cpu_threads", "engine", "precision", "replay.device"),
    # How environments are run.
    *("env.backend", "env.timeout_s", "env.check_bounds"),
    "log.",  # what is written, and when; checkpoints at other steps also cut episodes elsewhere
    # The remedies for a run that diverges.
    *("learner.learning_rate", "method.learning_rate", "representation.learning_rate"),
    *("finetune.learning_rate", "learner.max_grad_norm"),
)
# What other libraries call our fields.
OTHER_NAMES = {
    "lr": "learning_rate",
    "gamma": "discount",
    "tau": "target_tau",
    "n_envs": "num_envs",
    "n_steps": "n_step",
    "batch": "batch_size",
    "buffer_size": "capacity_steps",
    "total_timesteps": "steps",
    "timesteps": "steps",
    "learning_starts": "warmup_steps",
    "train_freq": "updates_per_step",
    "gradient_steps": "updates_per_step",
    "eval_freq": "eval_every_steps",
    "n_eval_episodes": "eval_episodes",
    "frame_skip": "action_repeat",
    "wandb": "wandb_project",
}


# Names, types and docs


def to_json(config: object) -> Any:
    """Nested plain values; the inverse of `update` on a config of the same pieces."""
    if dataclasses.is_dataclass(config):
        return {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return list(config) if isinstance(config, tuple) else config


def flat(nested: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` → `{"a.b": 1}`."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        inside = isinstance(value, Mapping)
        found |= flat(value, f"{path}{name}.") if inside else {f"{path}{name}": value}
    return found


def similar_fields(name: str, fields: Iterable[str]) -> list[str]:
    """Up to three dotted names that end like this one, or like its name in other libraries, learner first."""
    leaf = name.rpartition(".")[2]
    ends = {leaf, OTHER_NAMES.get(leaf, leaf)}
    found = [field for field in fields if field.rpartition(".")[2] in ends]
    return sorted(found, key=lambda field: (field.count("."), not field.startswith("learner.")))[:3]


def may_change(field: str, phase: str) -> bool:
    """Whether a run of this phase may be resumed with another value of a field."""
    later = ("finetune.", "bonus.", "reward_scale") if phase == "pretrain" else ()  # of what follows it
    return field.startswith(RESUMABLE_FIELDS + later)


def bonus_method(config: Mapping[str, Any]) -> str:
    """The method whose reward a run adds to the task's, given its config as JSON; "" for none."""
    coefficient = config.get("bonus", {}).get("coefficient", 0)
    return str(config["method"]["name"]) if coefficient and config["phase"] != "pretrain" else ""


def bonus_suffix(config: Mapping[str, Any]) -> str:
    """The suffix that a bonus adds to the label of a run, given its config as JSON; "" without one."""
    method = bonus_method(config).rpartition(":")[2]
    return f" + {method if config['phase'] == 'train' else 'bonus'}" if method else ""


field_types: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)
"""The type of each field of a dataclass."""


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, and of those it derives from.

    It takes long, as whole files are parsed: only what prints the docs should ask.
    """
    found: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        with suppress(OSError):  # a class typed into an interpreter has no source
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(tree, ast.ClassDef)
            for above, below in zip(tree.body, tree.body[1:], strict=False):
                match above, below:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        found[name] = " ".join(text.split())
    return found


# Changes


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
        expected.append(TYPE_NAMES.get(kind, kind.__name__))
    raise ConfigError(f"{name} = {shown(value)} cannot be used: expected {' or '.join(expected)}")


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
