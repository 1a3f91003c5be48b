"""What an environment looks like, as far as a config depends on it; without making it where its id tells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from voidrl.config import EnvConfig
from voidrl.envs.dmc import resolve
from voidrl.envs.ids import ATARI, DMC
from voidrl.envs.make import probe_env
from voidrl.suites.dmcontrol import find_dmc_task
from voidrl.types import EnvSpec

ATARI_SIZE = 84
# Widths of DMControl's states and actions, for estimates of what a replay takes; others are not known here.
STATE_DIMS = {
    "walker": (24, 6),
    "quadruped": (78, 12),
    "jaco": (55, 9),
    "cheetah": (17, 6),
    "hopper": (15, 4),
}


@dataclass(frozen=True)
class Look:
    """Observations and actions of an environment."""

    spec: EnvSpec
    env: EnvConfig
    """In which nothing is left for the environment to decide."""
    sized: bool = True
    """Whether the widths in `spec` are the true ones."""


@cache
def look(config: EnvConfig) -> Look:
    """Atari and DMControl are known by their ids; any other environment is made once and closed."""
    stack = config.frame_stack
    if config.id.startswith(ATARI):
        frame = (1, ATARI_SIZE, ATARI_SIZE)
        return Look(EnvSpec(frame, pixels=True, frame_stack=stack, num_actions=18), config)
    if not config.id.startswith(DMC):
        return Look(*probe_env(config))
    place = find_dmc_task(config.id)
    assert place is not None
    state, action = STATE_DIMS.get(place.domain, (1, 1))
    low, high = (-1.0,) * action, (1.0,) * action
    if config.dmc.observation == "pixels":
        size = config.dmc.image_size
        return Look(EnvSpec((3, size, size), True, stack, 0, low, high), resolve(config))
    known = place.domain in STATE_DIMS and place.task not in ("escape", "fetch")
    return Look(EnvSpec((state,), False, stack, 0, low, high), resolve(config), known)
