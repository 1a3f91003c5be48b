"""How much memory the replay of a preset takes. Does not import torch."""

from __future__ import annotations

from voidrl.config import ReplayConfig
from voidrl.protocols.presets import PRESETS

# Bytes per frame with its action, reward and flags; for states the widest of URLB, a quadruped.
SLOT_BYTES = {
    "maze": 3 * 39 * 39,
    "atari": 84 * 84 + 25,
    "dmc": 3 * 84 * 84 + 65,
    "urlb-pixels": 3 * 84 * 84 + 65,
    "urlb-states": 4 * 78 + 65,
}


def replay_bytes(preset: str) -> int:
    """Return roughly how many bytes the full replay of a preset takes."""
    family = max((name for name in SLOT_BYTES if preset.startswith(name)), key=len, default="dmc")
    replay = PRESETS[preset].values.get("replay", {})
    capacity: int = replay.get("capacity_steps", ReplayConfig().capacity_steps)
    return capacity * SLOT_BYTES[family]
