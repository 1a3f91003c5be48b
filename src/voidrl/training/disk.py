"""The disk space that the checkpoints of a run need, compared with the free space before it begins."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from torch import Tensor, nn

from voidrl.agent import Agent
from voidrl.config import Config, update
from voidrl.errors import RunFolderError, by_caller
from voidrl.replay.sizes import slot_bytes
from voidrl.runs import checkpoint
from voidrl.system.machine import free_disk
from voidrl.system.units import human_bytes
from voidrl.types import EnvSpec

ADAM_MOMENTS = 2


def saved_bytes(tensors: Iterable[Tensor], optimized: Iterable[nn.Parameter]) -> int:
    """Size of an agent in a checkpoint: its weights and buffers, and Adam's moments."""
    return sum(t.nbytes for t in tensors) + ADAM_MOMENTS * sum(p.nbytes for p in optimized)


def checkpoint_bytes(
    config: Config, spec: EnvSpec, skill_dim: int, agent: int, *, count: int, note_dim: int = 0
) -> int:
    """Disk space of the last `count` checkpoints of a complete run, of its snapshots and its best agent.

    A checkpoint holds the agent, of `saved_bytes`, and the whole replay; the last one only with
    `log.keep_replay`. Checkpoints share the files of what has not changed in the replay, up to one chunk.
    """
    log, capacity = config.log, config.replay.capacity_steps
    saves = [*range(log.checkpoint_every_steps, config.steps, log.checkpoint_every_steps), config.steps]
    if config.effective.adapts:
        saves.insert(0, 0)  # the pre-trained agent
    saves = saves[-count:]
    with_replay = saves if log.keep_replay else saves[:-1]
    stored = min(with_replay[-1], capacity) if with_replay else 0
    for before, after in pairwise(with_replay):  # steps in the one before that the one after has overwritten
        stored += max(0, min(after, before + capacity) - max(before, capacity))
    agents = len(saves) + sum(steps <= config.steps for steps in log.snapshot_steps) + config.effective.adapts
    positions = 8 * capacity * len(with_replay)  # of episodes, which are written in full each time
    return agents * agent + stored * (slot_bytes(spec, skill_dim, note_dim=note_dim) - 8) + positions


def require_disk_space(folder: Path, agent: Agent) -> None:
    """Refuse a run whose newest checkpoint would not fit alongside the previous one."""
    size = saved_bytes(agent.tensors().values(), agent.optimizers.all_parameters())
    config = update(agent.config, {"log.keep_replay": True})  # all but the last one hold it
    needed = checkpoint_bytes(
        config, agent.spec, agent.method.skill_dim, size, count=2, note_dim=agent.note_dim
    )
    roots = [folder / "checkpoints", *(folder / "ranks").glob("*")]
    needed -= sum(map(checkpoint.bytes_on_disk, roots))  # those of a resumed run
    free = free_disk(folder)
    if free is not None and needed > free:
        raise RunFolderError(
            f"the disk of {folder} has {human_bytes(free)} free, and by its end the run needs "
            f"{human_bytes(needed)} for a checkpoint and its successor: choose another "
            f"{by_caller('out', '--out')}, or lower replay.capacity_steps"
        )
