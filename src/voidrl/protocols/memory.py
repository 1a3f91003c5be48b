"""How much memory the replay of a preset needs. Imports no torch."""

from __future__ import annotations

from voidrl.config import ReplayConfig
from voidrl.protocols.presets import PRESETS

# One stored frame with its transition. For states, of URLB's widest domain, the quadruped.
SLOT_BYTES = {
    "maze": 3 * 39 * 39,
    "atari": 84 * 84 + 25,
    "dmc": 3 * 84 * 84 + 65,
    "urlb-pixels": 3 * 84 * 84 + 65,
    "urlb-states": 4 * 78 + 65,
}


def replay_bytes(preset: str) -> int:
    """Approximate memory of a preset's full replay."""
    values = PRESETS[preset].values
    slot = SLOT_BYTES[max((name for name in SLOT_BYTES if preset.startswith(name)), key=len, default="dmc")]
    capacity: int = values.get("replay", {}).get("capacity_steps", ReplayConfig().capacity_steps)
    return capacity * slot


def presets_larger_than(room: int, copies: int = 1) -> dict[str, int]:
    """Presets of which `copies` replays exceed `room` bytes, with the bytes they need, smallest first."""
    needed = {name: copies * replay_bytes(name) for name in PRESETS}
    return {name: size for name, size in sorted(needed.items(), key=lambda item: item[1]) if size > room}
