"""The updates that speed is compared on: the shape of an environment and the layers of a config, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from voidrl.types import EnvSpec

try:
    from voidrl.presets.presets import preset_values
except ModuleNotFoundError:  # an older version of voidrl
    from voidrl.protocols.presets import preset_values


class Workload(NamedTuple):
    """One kind of update."""

    spec: EnvSpec
    layers: tuple[Mapping[str, Any], ...]


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


STATES = continuous((24,))
PIXELS = continuous((3, 84, 84), 3)
ATARI = EnvSpec((1, 84, 84), True, 4, 18, raw_shape=(1, 84, 84))
VECTORS = {
    "method": {"name": "apt", "k": 12},
    "representation": "learner",
    "learner": {
        "name": "ddpg",
        "batch_size": 1024,
        "n_step": 3,
        "hidden_dim": 1024,
        "intrinsic_n_step": "single",
        "encoder": {"stack": "mlp", "hidden_dim": 0, "feature_dim": 512},
    },
}
PIXELS_DRQ = {
    "representation": {"batch_size": 256, "encoder": {"stack": "drq", "hidden_dim": 0}},
    "learner": {"batch_size": 256},
}
WORKLOADS = {
    "vectors": Workload(STATES, (VECTORS,)),
    "urlb-states": Workload(STATES, (preset_values("urlb-states"),)),
    "urlb-pixels": Workload(PIXELS, (preset_values("urlb-pixels"),)),
    "pixels-drq": Workload(PIXELS, (preset_values("dmc-paper"), PIXELS_DRQ)),
    "pixels-paper": Workload(PIXELS, (preset_values("dmc-paper"),)),
    "discrete": Workload(ATARI, (preset_values("atari-paper"),)),
    "atari-fast": Workload(ATARI, (preset_values("atari-fast"),)),
}
