"""Packages to import for environment ids: `MiniGrid-DoorKey-8x8-v0` imports minigrid.

Gymnasium knows only environments whose package was imported. Only the packages listed here are imported by
themselves, so that an id from somebody else's config cannot import anything. Imports nothing by itself.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import NamedTuple

from voidrl.errors import ConfigError, UnknownNameError

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
