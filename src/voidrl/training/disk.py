"""The disk space that the checkpoints of a run need, compared with the free space before it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from torch import Tensor, nn

from voidrl.config import Config
from voidrl.errors import RunFolderError, by_caller
from voidrl.replay.sizes import chunk_row_count, row_count, slot_bytes
from voidrl.system.machine import free_disk
from voidrl.system.units import human_bytes
from voidrl.types import EnvSpec

ADAM_MOMENTS = 2
OVERHEAD_BYTES = 10_000  # random states, headers and manifest of a checkpoint
FEWEST = 2  # checkpoints that must fit: the newest is kept until its successor is complete


def saved_bytes(tensors: Iterable[Tensor], optimized: Iterable[nn.Parameter]) -> int:
    """Size of an agent in a checkpoint: its weights and buffers, and Adam's moments."""
    return sum(t.nbytes for t in tensors) + ADAM_MOMENTS * sum(p.nbytes for p in optimized)


def checkpoint_bytes(
    config: Config, spec: EnvSpec, skill_dim: int, agent: int, *, count: int, note_dim: int = 0
) -> int:
    """Disk space of the last `count` checkpoints of a complete run, of its snapshots and its best agent.

    A checkpoint holds the agent and the whole replay, the last one only with `log.keep_replay`. Chunks of the
    replay that have not changed since the checkpoint before are the same files, so another one costs an agent
    and the chunks written to since.

    Args:
        config: The config of the run.
        spec: The spaces of its environment.
        skill_dim: The width of its method's skills.
        note_dim: The width of its method's notes.
        agent: `saved_bytes` of the agent.
        count: How many checkpoints; fewer if the run writes fewer.
    """
    num_envs, log = config.env.num_envs, config.log
    rows = row_count(config.replay.capacity_steps, num_envs, spec)
    # `starts` is in a file of its own.
    row_size = num_envs * (slot_bytes(spec, skill_dim, note_dim=note_dim) - 8)
    chunk_rows = chunk_row_count(spec, num_envs, skill_dim)
    positions = 8 * (rows * num_envs + rows)  # `starts` and `row_starts`, written in full each time
    if config.replay.priority_exponent:
        positions += 8 * rows * num_envs

    every = log.checkpoint_every_steps
    saves = [*range(every, config.steps, every), config.steps]
    if config.effective.adapts:
        saves.insert(0, 0)  # the pre-trained agent
    # Rows written by then: one for each step of all environments, and one for each reset after a checkpoint.
    written = [-(-steps // num_envs) + -(-steps // every) for steps in saves[-count:]]

    def chunk(index: int, rows_by_then: int) -> int:
        return row_size * min(chunk_rows, max(0, min(rows_by_then, rows) - index * chunk_rows))

    chunks = range(-(-rows // chunk_rows))
    total = len(written) * (agent + OVERHEAD_BYTES)
    stored = written if log.keep_replay else written[:-1]  # with the replay
    if stored:
        total += len(stored) * positions + sum(chunk(i, stored[-1]) for i in chunks)
    for before, after in pairwise(stored):
        first, last = before - 2, min(after, before + rows) - 1  # a reset marks the last step as cut
        touched = [*range(first, last, chunk_rows), last] if before else []
        total += sum(chunk(i, before) for i in {row % rows // chunk_rows for row in touched})
    kept = sum(steps <= config.steps for steps in log.snapshot_steps) + config.effective.adapts
    return total + kept * agent


def require_disk(
    folder: Path, needed: Callable[[int], int], keep_last: int, say: Callable[[str], None]
) -> None:
    """Refuse a run whose checkpoints cannot fit on the disk of its folder; warn if not all of them may.

    Args:
        folder: The run folder, which need not exist yet.
        needed: The disk space of a number of checkpoints, by the end of the run.
        keep_last: How many are kept.
        say: Takes the warning.
    """
    free = free_disk(folder)
    if free is None:
        return
    fewest, most = needed(FEWEST), needed(keep_last + 1)
    if fewest > free:
        out = by_caller("out", "--out")
        raise RunFolderError(
            f"the disk of {folder} has {human_bytes(free)} free, and by its end the run needs "
            f"{human_bytes(fewest)} for a checkpoint and its successor: choose another {out}, or lower "
            f"replay.capacity_steps"
        )
    if most > free:
        say(
            f"the disk of {folder} may become full: {human_bytes(free)} are free, and by its end the run "
            f"needs {human_bytes(most)} for checkpoints; lower log.keep_last or replay.capacity_steps"
        )
