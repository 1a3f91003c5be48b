"""Environment ids, and the packages that register them. Imports no Gymnasium by itself.

Examples are `atari/ms_pacman`, `dmc/walker_run` and `voidrl/PixelMaze-v0?goal=far`. Gymnasium knows only
environments whose package was imported: `MiniGrid-DoorKey-8x8-v0` imports minigrid. Only the packages listed
here are imported by themselves, so that an id from somebody else's config cannot import anything.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from voidrl.envs.suites import dmcontrol
from voidrl.errors import ConfigError, UnknownNameError, shown
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


def format_id(name: str, options: dict[str, Any]) -> str | None:
    """`id?key=value&…`, from which `parse_id` reads these options; None where it cannot."""
    try:
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in options.items()}
    except (TypeError, ValueError):
        return None
    env = f"{name}?{urlencode(texts)}" if options else name
    return env if parse_id(env) == (name, options) else None


def _value(text: str) -> Any:
    if text in PYTHON_VALUES:
        return PYTHON_VALUES[text]
    try:
        return parse_json(text)
    except ValueError:
        return text


ROADS = (
    *("highway", "merge", "roundabout", "parking", "intersection", "racetrack", "exit", "two-way", "u-turn"),
    "lane-keeping",
)


class Package(NamedTuple):
    """A package that registers environments with Gymnasium."""

    module: str
    """Importing it registers the environments."""
    pip: str
    """The distribution to install."""
    prefixes: tuple[str, ...]
    """Prefixes of the ids."""
    example: str
    register: str = ""
    """`module:function` to call where the import does not register them."""


PACKAGES = (
    Package("minigrid", "minigrid", ("MiniGrid-", "BabyAI-"), "MiniGrid-DoorKey-8x8-v0"),
    Package("highway_env", "highway-env", tuple(f"{road}-" for road in ROADS), "highway-fast-v0"),
    Package(
        "gymnasium_robotics",
        "gymnasium-robotics",
        ("Fetch", "HandReach", "HandManipulate", "AdroitHand", "PointMaze_", "AntMaze_", "FrankaKitchen-"),
        "PointMaze_UMaze-v3",
    ),
    Package("minatar", "minatar", ("MinAtar/",), "MinAtar/Breakout-v1", "minatar.gym:register_envs"),
    Package("flappy_bird_gymnasium", "flappy-bird-gymnasium", ("FlappyBird-",), "FlappyBird-v0"),
    Package("miniworld", "miniworld", ("MiniWorld-",), "MiniWorld-Hallway-v0"),
    Package("panda_gym", "panda-gym", ("Panda",), "PandaReach-v3"),
    Package("metaworld", "metaworld", ("Meta-World/",), "Meta-World/MT1?env_name=reach-v3"),
    Package("vizdoom.gymnasium_wrapper", "vizdoom", ("Vizdoom",), "VizdoomBasic-v1"),
    Package("nle", "nle", ("NetHack",), "NetHackScore-v0"),
    Package("gym_pusht", "gym-pusht", ("gym_pusht/",), "gym_pusht/PushT-v0"),
    Package("tetris_gymnasium.envs", "tetris-gymnasium", ("tetris_gymnasium/",), "tetris_gymnasium/Tetris"),
    Package("ale_py", "ale-py", ("ALE/",), "ALE/Pong-v5"),
)


def package_of(name: str) -> Package | None:
    """The package that has the environments whose ids begin like this one."""
    return next((package for package in PACKAGES if name.startswith(package.prefixes)), None)


def import_package(name: str) -> None:
    """Import the listed package that registers this id, if Gymnasium does not know it yet."""
    import gymnasium as gym

    package = package_of(name)
    if package is None or name in gym.registry:
        return
    root = package.module.partition(".")[0]
    if importlib.util.find_spec(root) is None:
        raise ConfigError(
            f"environment {name!r} needs the package {package.pip}, which is not installed: "
            f"pip install {package.pip}"
        )
    importlib.import_module(package.module)

    def registered() -> list[str]:
        return [known for known in gym.registry if known.startswith(package.prefixes)]

    if package.register and not registered():
        module, _, function = package.register.partition(":")
        getattr(importlib.import_module(module), function)()
    known = registered()
    if name not in known:
        raise UnknownNameError("environment", name, known, f"These are the ids of {package.pip}.")
