"""How much memory the replay of a preset takes. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voidrl.config import ReplayConfig
from voidrl.presets.presets import PROTOCOLS

# Bytes per frame with its action, reward and flags; for states the widest of URLB, a quadruped.
SLOT_BYTES = {
    "maze": 3 * 39 * 39,
    "atari": 84 * 84 + 25,
    "dmc": 3 * 84 * 84 + 65,
    "urlb-pixels": 3 * 84 * 84 + 65,
    "urlb-states": 4 * 78 + 65,
    "cpu": 84 * 84 + 25,  # such as Atari's
}


def replay_bytes(protocol: str) -> int:
    """Return roughly how many bytes the full replay of a protocol takes."""
    family = max((name for name in SLOT_BYTES if protocol.startswith(name)), key=len, default="dmc")
    return _capacity(PROTOCOLS[protocol].values) * SLOT_BYTES[family]


def agent_replay_bytes(family: str, values: Mapping[str, Any]) -> int:
    """Return the same for an agent with these values in a family of environments."""
    dmc = values.get("env", {}).get("dmc", {})
    if family == "dmc" and dmc.get("observation") != "pixels":
        return _capacity(values) * SLOT_BYTES["urlb-states"]
    side = dmc.get("image_size", 84)
    slot = 3 * side * side + 65 if family == "dmc" else SLOT_BYTES[family]
    return _capacity(values) * slot


def _capacity(values: Mapping[str, Any]) -> int:
    capacity: int = values.get("replay", {}).get("capacity_steps", ReplayConfig().capacity_steps)
    return capacity
