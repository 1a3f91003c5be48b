"""A replay placed where there is room for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from voidrl import dist
from voidrl.config import ReplayConfig
from voidrl.errors import ConfigError, ReplayMemoryError
from voidrl.replay.replay import Replay
from voidrl.replay.ring import CPU, frame_bytes, row_count, slot_bytes
from voidrl.system.machine import memory
from voidrl.system.units import GIB
from voidrl.types import EnvSpec


def make_replay(
    config: ReplayConfig,
    spec: EnvSpec,
    num_envs: int,
    skill_dim: int,
    device: torch.device,
    say: Callable[[str], None],
    note_dim: int = 0,
) -> Replay:
    """A replay on the networks' device if it fits there.

    Otherwise its frames are in main memory, or an error says what to lower.
    """
    if config.device == "cuda" and device.type != "cuda":
        raise ConfigError(
            f"replay.device = 'cuda' cannot be used with networks on {device}: expected 'auto' or 'cpu'"
        )
    places = dict.fromkeys({"auto": [device, CPU], "cpu": [CPU], "cuda": [device]}[config.device])
    prioritized = config.priority_exponent > 0
    row_bytes = num_envs * slot_bytes(spec, skill_dim, note_dim=note_dim, prioritized=prioritized)
    rows, in_rows = row_count(config.capacity_steps, num_envs, spec), num_envs * frame_bytes(spec)
    frames, columns = rows * in_rows, rows * (row_bytes - in_rows)
    # All ranks take theirs at once.
    free = {place: free_bytes(place) // dist.current().sharing(place) for place in {**places, device: None}}
    share = 0.0  # of what is needed, the most that fits anywhere
    for place in places:
        needed = {device: frames + columns} if place == device else {device: columns, place: frames}
        share = max(share, min(0.9 * free[each] / size for each, size in needed.items()))
        if share >= 1:
            if place != device:
                why = f", since {device} has {free[device] / GIB:.2f} GiB free" if len(places) > 1 else ""
                say(
                    f"the replay's frames, {frames / GIB:.2f} GiB, are kept in main memory{why}; to pin it "
                    f"may take a second per GiB"
                )
            size = num_envs, config.capacity_steps, skill_dim
            return Replay(spec, *size, place, device, config=config, note_dim=note_dim)
    there = " and ".join(f"{f / GIB:.2f} GiB free on {p}" for p, f in free.items())
    steps = (int(share * rows) - spec.frame_stack) * num_envs
    lower = f"replay.capacity_steps to {steps} or less" if steps > 0 else "env.num_envs"
    raise ReplayMemoryError(
        f"the replay of {config.capacity_steps} steps needs {(frames + columns) / GIB:.2f} GiB and there is "
        f"{there}: lower {lower}, or the size of the frames"
    )


def free_bytes(device: torch.device) -> int:
    """Memory that can still be taken."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return memory().available
