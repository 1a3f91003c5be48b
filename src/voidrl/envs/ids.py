"""Environment ids: `atari/ms_pacman`, `dmc/walker_run`, `voidrl/PixelMaze-v0?goal=far`.

Imports no Gymnasium.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

from voidrl.errors import ConfigError
from voidrl.suites import dmcontrol

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


def parse_id(text: str) -> tuple[str, dict[str, Any]]:
    """Split `id?key=value&…` into the id and its options, with values as JSON or Python literals."""
    name, _, query = text.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise ConfigError(
            f"environment {text!r} cannot be read: expected id?option=value&option=value"
        ) from None
    return name, {key: _value(value) for key, value in pairs}


def _value(text: str) -> Any:
    if text in PYTHON_VALUES:
        return PYTHON_VALUES[text]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
