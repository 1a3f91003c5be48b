"""The workloads of `voidrl bench update`: an environment's shape and a config. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from voidrl.errors import UnknownNameError
from voidrl.presets.presets import AGENTS, Preset, preset_values
from voidrl.types import EnvSpec

DEFAULT_ON_CPU = ("maze",)  # one update of the others takes seconds on a CPU


class Workload(NamedTuple):
    """One kind of update: an environment's shape and a config."""

    about: str
    spec: EnvSpec | None
    """None for the demo's maze, whose spec comes from the environment."""
    layers: tuple[Mapping[str, Any], ...]
    """Layers for `voidrl.training.build.build_config`."""
    preset: str | None = None
    """The preset, if `layers` consist only of it: other methods have a recipe for it."""

    def with_method(self, method: str) -> Workload:
        """The preset with another method's recipe."""
        assert self.preset is not None
        return self._replace(layers=(preset_values(self.preset, method),))


def continuous(frame_shape: tuple[int, ...], frame_stack: int = 1, action_dim: int = 6) -> EnvSpec:
    """An environment with images or vectors and continuous actions."""
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
    """An environment with images and discrete actions."""
    return EnvSpec(frame_shape, True, frame_stack, num_actions, raw_shape=frame_shape)


STATES = continuous((24,))
PIXELS = continuous((3, 84, 84), 3)
ATARI = discrete((1, 84, 84), 4, 18)
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

WORKLOADS = {
    "vectors": Workload(
        "24-d states, DDPG, batch 1024, z of 512 from the learner, reward of the n-th step alone (URLB)",
        STATES,
        (VECTORS, {"learner.intrinsic_n_step": "single"}),
    ),
    "vectors-summed": Workload(
        "the same with the rewards of all n steps",
        STATES,
        (VECTORS, {"learner.intrinsic_n_step": "summed"}),
    ),
    "urlb-states": Workload(
        "24-d states, preset urlb-states: DDPG with trunks, z from ICM, batches 1024",
        STATES,
        (preset_values("urlb-states"),),
        "urlb-states",
    ),
    "urlb-pixels": Workload(
        "3 frames of 3×84×84, preset urlb-pixels: DDPG, contrastive loss, DrQ's convolutions, batches 256",
        PIXELS,
        (preset_values("urlb-pixels"),),
        "urlb-pixels",
    ),
    "pixels-drq": Workload(
        "3 frames of 3×84×84, SAC, contrastive loss, DrQ's convolutions, batches 256",
        PIXELS,
        (preset_values("dmc-paper"), PIXELS_DRQ),
    ),
    "pixels-paper": Workload(
        "3 frames of 3×84×84, preset dmc-paper, both batches 512",
        PIXELS,
        (preset_values("dmc-paper"),),
        "dmc-paper",
    ),
    "discrete": Workload(
        "4 frames of 1×84×84, 18 actions, preset atari-paper, batches 32 and 512",
        ATARI,
        (preset_values("atari-paper"),),
        "atari-paper",
    ),
    "atari-fast": Workload(
        "4 frames of 1×84×84, 18 actions, preset atari-fast, both batches 256",
        ATARI,
        (preset_values("atari-fast"),),
        "atari-fast",
    ),
    "maze": Workload(
        "the update of `voidrl demo`, preset maze-demo",
        None,
        (preset_values("maze-demo"),),
        "maze-demo",
    ),
}


def _agent_workload(agent: Preset, family: str) -> Workload:
    """The update of an agent that is trained from scratch, on Atari or DMControl."""
    values = agent.values_for(EXAMPLES[family])
    size = values["env"].get("dmc", {}).get("image_size", 84)
    pixels = values["env"].get("dmc", {}).get("observation", "pixels") == "pixels"
    continuous_spec = continuous((3, size, size), 3) if pixels else STATES
    spec = ATARI if family == "atari" else continuous_spec
    return Workload(agent.about, spec, (values, {"phase": "train"}))


EXAMPLES = {"atari": "atari/assault", "dmc": "dmc/walker_walk"}
AGENT_WORKLOADS = {
    f"{family}/{name}": _agent_workload(agent, family)
    for family in EXAMPLES
    for name, agent in AGENTS.items()
    if family in agent.families
}
"""Agents by family and preset: `atari/spr`."""


def find_workloads(name: str) -> list[str]:
    """The workload with this name; all agents for `agents`, or an error that suggests similar names."""
    known = WORKLOADS | AGENT_WORKLOADS
    if name == "agents":
        return [*AGENT_WORKLOADS]
    if name not in known:
        raise UnknownNameError("workload", name, (*known, "agents"), "See `voidrl bench update --help`.")
    return [name]


def find_workload(name: str) -> Workload:
    """The workload with this name."""
    return (WORKLOADS | AGENT_WORKLOADS)[name]
