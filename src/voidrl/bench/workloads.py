"""The workloads of `voidrl bench update`: an environment's shape and a config. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from voidrl.errors import UnknownNameError
from voidrl.protocols.presets import DEMO_ENV, preset_values
from voidrl.types import EnvSpec

DEFAULT_ON_CPU = ("maze",)  # the others take seconds for one update there


class Work(NamedTuple):
    """One kind of update."""

    about: str
    spec: Callable[[], EnvSpec]
    layers: tuple[Mapping[str, Any], ...]
    """For `voidrl.build.build_config`."""


def continuous(frame_shape: tuple[int, ...], frame_stack: int = 1, action_dim: int = 6) -> EnvSpec:
    """Frames, or vectors, and continuous actions."""
    return EnvSpec(
        frame_shape,
        len(frame_shape) == 3,
        frame_stack,
        num_actions=0,
        action_low=(-1.0,) * action_dim,
        action_high=(1.0,) * action_dim,
        raw_shape=frame_shape,
        action_shape=(action_dim,),
    )


def discrete(frame_shape: tuple[int, ...], frame_stack: int, num_actions: int) -> EnvSpec:
    """Frames and numbered actions."""
    return EnvSpec(frame_shape, True, frame_stack, num_actions, raw_shape=frame_shape)


def demo_maze() -> EnvSpec:
    """What the demo's maze looks like."""
    from voidrl.config import EnvConfig
    from voidrl.envs.make import make_envs

    envs = make_envs(EnvConfig(id=DEMO_ENV))
    envs.close()
    return envs.spec


VECTORS = {
    "method": {"name": "apt", "k": 12},
    "representation": "learner",
    "learner": {
        "name": "ddpg",
        "batch_size": 1024,
        "n_step": 3,
        "hidden_dim": 1024,
        "encoder": {"stack": "mlp", "hidden_dim": 0, "feature_dim": 512},
    },
}
PIXELS_DRQ = {
    "representation": {"batch_size": 256, "encoder": {"stack": "drq", "hidden_dim": 0}},
    "learner": {"batch_size": 256},
}

WORKS = {
    "vectors": Work(
        "24-d states, DDPG, batch 1024, z learned and 512 wide, only the n-th step scored (URLB)",
        lambda: continuous((24,)),
        (VECTORS, {"learner.intrinsic_n_step": "single"}),
    ),
    "vectors-summed": Work(
        "the same with every one of the n steps scored",
        lambda: continuous((24,)),
        (VECTORS, {"learner.intrinsic_n_step": "summed"}),
    ),
    "urlb-states": Work(
        "24-d states, preset urlb-states: DDPG with trunks, z from dynamics, batches 1024",
        lambda: continuous((24,)),
        (preset_values("urlb-states"),),
    ),
    "urlb-pixels": Work(
        "3 frames of 3×84×84, preset urlb-pixels: DDPG and contrast on DrQ's convolutions, batches 256",
        lambda: continuous((3, 84, 84), 3),
        (preset_values("urlb-pixels"),),
    ),
    "pixels-drq": Work(
        "3 frames of 3×84×84, SAC and contrast on DrQ's convolutions, both batches 256",
        lambda: continuous((3, 84, 84), 3),
        (preset_values("dmc-paper"), PIXELS_DRQ),
    ),
    "pixels-paper": Work(
        "3 frames of 3×84×84, preset dmc-paper, both batches 512",
        lambda: continuous((3, 84, 84), 3),
        (preset_values("dmc-paper"),),
    ),
    "discrete": Work(
        "4 frames of 1×84×84, 18 actions, preset atari-paper, batches 32 and 512",
        lambda: discrete((1, 84, 84), 4, 18),
        (preset_values("atari-paper"),),
    ),
    "atari-fast": Work(
        "4 frames of 1×84×84, 18 actions, preset atari-fast, both batches 256",
        lambda: discrete((1, 84, 84), 4, 18),
        (preset_values("atari-fast"),),
    ),
    "maze": Work("what `voidrl demo` runs, preset maze-demo", demo_maze, (preset_values("maze-demo"),)),
}


def find_work(name: str) -> Work:
    """By name, or an error with the nearest ones."""
    if name not in WORKS:
        raise UnknownNameError("workload", name, WORKS, "See `voidrl bench update --help`.")
    return WORKS[name]
