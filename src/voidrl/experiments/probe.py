"""Observations and actions of an environment before its runs start."""

from __future__ import annotations

from functools import cache

from voidrl.config import EnvConfig
from voidrl.envs.dmc import resolve
from voidrl.envs.ids import ATARI, DMC
from voidrl.envs.make import probe_env
from voidrl.types import EnvSpec

ATARI_SIZE = 84


@cache
def probe(config: EnvConfig) -> tuple[EnvSpec, EnvConfig]:
    """The spec of an environment, and its config with the environment's defaults filled in.

    Atari and DMControl are known by their ids, but for the width of states, as a plan may be made where no
    simulator is installed. Any other environment is made once and closed.
    """
    stack = config.frame_stack
    if config.id.startswith(ATARI):
        return EnvSpec((1, ATARI_SIZE, ATARI_SIZE), pixels=True, frame_stack=stack, num_actions=18), config
    if not config.id.startswith(DMC):
        return probe_env(config)
    resolved, pixels = resolve(config), config.dmc.observation == "pixels"
    frame = (3, config.dmc.image_size, config.dmc.image_size) if pixels else (1,)
    return EnvSpec(frame, pixels, stack, 0, (-1.0,), (1.0,)), resolved
