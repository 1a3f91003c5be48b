"""Environment ids: `atari/ms_pacman`, `dmc/walker_run`, `voidrl/PixelMaze-v0?goal=far`.

Imports no Gymnasium.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import parse_qsl

from voidrl.envs.suites import dmcontrol
from voidrl.errors import ConfigError, shown
from voidrl.system.files import parse_json

ATARI = "atari/"
DMC = dmcontrol.PREFIX
PYTHON_VALUES = {"True": True, "False": False, "None": None}  # as strings they would all be true


def atari_game(env: str) -> str | None:
    """The game in `atari/<game>?…`, as spelled there; None for other environments."""
    return env.removeprefix(ATARI).partition("?")[0] if env.startswith(ATARI) else None


def is_importable(env: str) -> bool:
    """Whether another process can import this environment: no function of a script, lambda or object."""
    name = env.partition("?")[0]
    return not (":" in name and (name.startswith("__main__:") or "<" in name or name.endswith("()")))


def names_code(env: str, wrappers: Sequence[str] = ()) -> bool:
    """Whether making this environment may import code that the id or its wrappers name.

    That is `module:factory`, `module:Name-v0`, and an option with a colon: an environment may import it,
    like Gymnasium's `GymV26Environment-v0?env_id=module:Name-v0` does.
    """
    if wrappers:
        return True
    try:
        name, options = parse_id(env)
    except ConfigError:  # it cannot be made either
        return ":" in env
    return ":" in name or has_colon(options)


def names_path(env: str) -> bool:
    """Whether an option of this environment looks like a path, which the environment may read or write."""
    try:
        _, options = parse_id(env)
    except ConfigError:  # it cannot be made
        return False
    return any(text.startswith("~") or "/" in text or "\\" in text for text in _texts(options))


def has_colon(value: object) -> bool:
    """Whether any text in a value has a colon, as `module:name` does."""
    return any(":" in text for text in _texts(value))


def _texts(value: object) -> Iterator[str]:
    """Every text in nested values, including keys."""
    if isinstance(value, dict):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value


def parse_id(text: str, kind: str = "environment") -> tuple[str, dict[str, Any]]:
    """Split `id?key=value&…` into the id and its options, with values as JSON or Python literals."""
    name, _, query = text.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        form = f"{'id' if kind == 'environment' else 'name'}?option=value&option=value"
        raise ConfigError(f"{kind} {shown(text)} cannot be read: expected {form}") from None
    return name, {key: _value(value) for key, value in pairs}


def _value(text: str) -> Any:
    if text in PYTHON_VALUES:
        return PYTHON_VALUES[text]
    try:
        return parse_json(text)
    except ValueError:
        return text
