"""Presets: a protocol (`<preset>.toml`) and the recipes of methods for it (`recipes/<method>.toml`).

A protocol says environment, learner, steps, fine-tuning, evaluation, replay, augmentation and the shape of
f's encoder. A recipe says what one method takes within it: its values, its representation, what f shares with
the learner and whose losses train f. A table of a recipe is for the preset that it is named after, or for a
family of presets by their first word (`atari`), whose table is read first. A table such as `urlb+identity` or
`urlb+jaco` is for the representation or the domain of DMControl that it names, and is read last.

`atari-paper` and `dmc-paper` have the values of the paper's tables; comments say what we chose where it is
silent or contradicts itself. `urlb-states` and `urlb-pixels` follow URLB (Laskin et al. 2021) and its code.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from voidrl.config import merge
from voidrl.envs.ids import ATARI, DMC
from voidrl.errors import UnknownNameError

DEMO_ENV = "voidrl/PixelMaze-v0?size=13&loops=0.1&layout_seed=3&image_size=39"
NAMES = (
    *("maze-demo", "atari-paper", "atari-fast", "atari-demo"),
    *("dmc-paper", "dmc-fast", "urlb-states", "urlb-pixels"),
)


class Preset(NamedTuple):
    """A protocol."""

    about: str
    values: dict[str, Any]


def _read(name: str) -> Preset:
    values = tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text("utf-8"))
    about, base = values.pop("about"), values.pop("extends", None)
    return Preset(about, merge({} if base is None else _read(base).values, values))


PRESETS = {name: _read(name) for name in NAMES}


def find_preset(name: str) -> Preset:
    """The preset of this name, or an error with the nearest ones."""
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    return PRESETS[name]


def protocol_for(env: object, name: str | None) -> dict[str, Any]:
    """The values of a protocol, {} for None; without DMControl's options for any other environment."""
    values = {} if name is None else find_preset(name).values
    if isinstance(env, str) and env.startswith(DMC):
        return values
    return {**values, "env": {key: value for key, value in values.get("env", {}).items() if key != "dmc"}}


@cache
def recipe(method: str, preset: str | None, *special: str | None) -> dict[str, Any]:
    """The values of a method's recipe for a preset; {} where it has none.

    `special` are the representation that the user names and DMControl's domain, if any.
    """
    file = files(__package__).joinpath("recipes", f"{method}.toml")
    if preset is None or not file.is_file():
        return {}
    tables = tomllib.loads(file.read_text("utf-8"))
    names = (preset.partition("-")[0], preset)
    return merge(*(tables.get(name + end, {}) for end in ("", *(f"+{s}" for s in special)) for name in names))


def preset_values(name: str, method: str = "apt") -> dict[str, Any]:
    """Protocol and recipe in one."""
    return merge(find_preset(name).values, {"method": method}, recipe(method, name))


def default_preset(env: object) -> str | None:
    """The preset of an environment where none is named."""
    if not isinstance(env, str):
        return None
    return "atari-paper" if env.startswith(ATARI) else "urlb-states" if env.startswith(DMC) else None
