"""A replay made of columns of others: what a run is resumed with on another number of ranks.

Columns are environments. The ranks of a run have consecutive ones each, in rings of equally many rows with
the same newest row, so that a column can be moved as it is: only `starts`, which lists the slots of all
columns in order of time, is written again.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from voidrl.errors import CheckpointError
from voidrl.replay.replay import Replay


def take_columns(target: Replay, first: int, sources: Iterable[tuple[int, Replay]]) -> None:
    """Fill an empty replay from others.

    Args:
        target: Has columns `first`, `first + 1`, … of a run.
        first: The number of its first column.
        sources: Replays, each with the number of its first column, which together have all those columns.
            One at a time is needed.
    """
    n, rows = target.num_envs, target.rows
    is_start = np.zeros((rows, n), bool)
    age, ended, taken = np.zeros(n, np.int32), np.zeros(n, bool), np.zeros(n, bool)
    newest: tuple[int, int] | None = None
    writes, highest = 1, 0.0
    for begin, source in sources:
        low, high = max(first, begin), min(first + n, begin + source.num_envs)
        if low >= high:
            continue
        mine, theirs = slice(low - first, high - first), slice(low - begin, high - begin)
        state = source.state()
        row, filled, starts_head, size = state["counters"].tolist()
        if source.rows != rows or newest not in (None, (row, filled)):
            raise CheckpointError(
                f"the parts of a replay do not fit together: one of {source.rows} rows, {filled} of them "
                f"filled up to row {row}, and one of {rows} rows, filled as {newest or 'none'}"
            )
        newest = row, filled
        stored = source.stored()
        for name, tensor in target.stored().items():
            _grid(target, tensor)[:, mine] = _grid(source, stored[name])[:, theirs].to(tensor.device)
        back = (starts_head - 1 - torch.arange(size)) % len(source.starts)
        slots = state["starts"].cpu()[back].numpy()
        found = np.zeros((rows, source.num_envs), bool)
        found[slots // source.num_envs, slots % source.num_envs] = True
        is_start[:, mine] = found[:, theirs]
        age[mine], ended[mine] = state["age"].numpy()[theirs], state["ended"].numpy()[theirs]
        taken[mine] = True
        writes += int(state["chunk_writes"].sum())
        if target.priorities is not None and source.priorities is not None:
            _grid(target, target.priorities.values)[:, mine] = _grid(source, source.priorities.values)[
                :, theirs
            ].to(target.priorities.values.device)
            highest = max(highest, float(source.priorities.highest))
    assert taken.all(), "columns without a source"
    assert newest is not None
    row, filled = newest
    in_time = (row + 1 + np.arange(rows)) % rows  # oldest first
    which, column = np.nonzero(is_start[in_time])
    slots = in_time[which] * n + column
    starts = torch.zeros(rows * n, dtype=torch.int64)
    starts[: len(slots)] = torch.from_numpy(slots)
    state = target.state()
    chunk_writes = torch.zeros_like(state["chunk_writes"])
    chunk_writes[: target.chunks_in(filled)] = writes  # more than any source has: written with the next save
    state |= {
        "starts": starts,
        "counters": torch.tensor((row, filled, len(slots) % len(starts), len(slots))),
        "row_starts": torch.from_numpy(is_start.sum(1)),
        "age": torch.from_numpy(age),
        "ended": torch.from_numpy(ended),
        "chunk_writes": chunk_writes,
        "chunk_sums": torch.zeros_like(state["chunk_sums"]),
    }
    if target.priorities is not None:
        state |= {"highest_priority": torch.full_like(target.priorities.highest, highest)}
    target.load(state, iter(()), sums_known=False)


def _grid(replay: Replay, stored: Tensor) -> Tensor:
    """A view of (slots, …), which may be padded, as (rows, columns, …)."""
    grid: Tensor = stored[: replay.rows * replay.num_envs].unflatten(0, (replay.rows, replay.num_envs))
    return grid
