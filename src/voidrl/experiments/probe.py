"""Observations, actions and sizes of a run before it starts; Atari and DMControl are known by their ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from voidrl.agent.dry_build import dry_build
from voidrl.config import Config, EnvConfig
from voidrl.envs.dmc import resolve
from voidrl.envs.ids import ATARI, DMC
from voidrl.envs.make import probe_env
from voidrl.envs.suites.dmcontrol import find_dmc_task
from voidrl.training.disk import saved_bytes
from voidrl.types import EnvSpec

ATARI_SIZE = 84
# State and action dimensions of DMControl domains, for estimates of the replay's size.
STATE_DIMS = {
    "walker": (24, 6),
    "quadruped": (78, 12),
    "jaco": (55, 9),
    "cheetah": (17, 6),
    "hopper": (15, 4),
}


@dataclass(frozen=True)
class EnvProbe:
    """Observations and actions of an environment."""

    spec: EnvSpec | None
    """None where the run needs custom code, which is not run in a dry run."""
    env: EnvConfig
    """Config with the environment's defaults filled in."""
    is_exact: bool = True
    """Whether the dimensions in `spec` are exact."""


@cache
def probe(config: EnvConfig) -> EnvProbe:
    """Atari and DMControl are known by their ids; any other environment is made once and closed."""
    stack = config.frame_stack
    if config.id.startswith(ATARI):
        frame = (1, ATARI_SIZE, ATARI_SIZE)
        return EnvProbe(EnvSpec(frame, pixels=True, frame_stack=stack, num_actions=18), config)
    if not config.id.startswith(DMC):
        return EnvProbe(*probe_env(config))
    place = find_dmc_task(config.id)
    assert place is not None
    state, action = STATE_DIMS.get(place.domain, (1, 1))
    low, high = (-1.0,) * action, (1.0,) * action
    if config.dmc.observation == "pixels":
        size = config.dmc.image_size
        return EnvProbe(EnvSpec((3, size, size), True, stack, 0, low, high), resolve(config))
    known = place.domain in STATE_DIMS and place.task not in ("escape", "fetch")
    return EnvProbe(EnvSpec((state,), False, stack, 0, low, high), resolve(config), known)


def agent_bytes(spec: EnvSpec, config: Config) -> int | None:
    """Size of the agent and its optimizers in a checkpoint; an error where the agent cannot be built.

    None where a custom component cannot be built without memory.
    """
    agent = dry_build(spec, config)
    if agent is None:
        return None
    return saved_bytes(agent.tensors().values(), agent.optimizers.all_parameters())
