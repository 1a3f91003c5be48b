"""Episodes in a replay, as the environment produced them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from voidrl.data.units import observations_of
from voidrl.envs.spaces import env_action
from voidrl.replay import TERMINATED, TRUNCATED, Replay


@dataclass(frozen=True)
class Episode:
    """One episode of T steps in the environment's own units; the last observation follows the last step."""

    observations: Any  # (T + 1, …), or a dictionary or tuple of such arrays
    actions: np.ndarray  # (T, …)
    rewards: np.ndarray  # (T,) float32
    terminations: np.ndarray  # (T,) bool; before the end, on Atari, a lost life
    truncations: np.ndarray  # (T,) bool
    skills: np.ndarray | None = None  # (T, skill_dim), if they were acted by

    def __len__(self) -> int:
        return len(self.rewards)


class Span(NamedTuple):
    """The location of an episode in a replay."""

    column: int
    rows: np.ndarray  # (T,) in order of time
    cut: bool  # whether the ring has overwritten its beginning
    open: bool  # whether it was still being played


def find_spans(replay: Replay) -> list[Span]:
    """The episodes of a replay in the order in which they begin."""
    n, rows = replay.num_envs, replay.rows
    is_start = np.zeros(rows * n, bool)
    is_start[replay.newest(len(replay)).cpu().numpy()] = True
    head = int(replay.head)
    order = (head + 1 + np.arange(rows)) % rows  # oldest first; rows that were never written have no starts
    starts = is_start.reshape(rows, n)[order]  # (rows, N)
    age, ending = (tensor.cpu().numpy().reshape(rows, n) for tensor in (replay.age, replay.ending))
    spans = []
    for column in range(n):
        # Between two episodes there is always a row without a transition: the last frame of the first.
        edges = np.flatnonzero(np.diff(starts[:, column], prepend=False, append=False))
        for first, end in edges.reshape(-1, 2):
            within = order[first:end]
            unfinished = ending[within[-1], column] not in (TERMINATED, TRUNCATED)
            spans.append((first, Span(column, within, bool(age[within[0], column]), bool(unfinished))))
    return [span for _, span in sorted(spans, key=lambda found: (found[0], found[1].column))]


def read_episodes(replay: Replay, spans: list[Span]) -> Iterator[Episode]:
    """The episodes at these places; one that was still being played ends as truncated."""
    spec, n = replay.spec, replay.num_envs
    for span in spans:
        slots = span.rows * n + span.column
        after = (span.rows[-1] + 1) % replay.rows * n + span.column
        within = torch.from_numpy(np.append(slots, after)).to(replay.device)
        frames = replay.read_frames(within).cpu().numpy()
        ending = replay.ending[slots].cpu().numpy()
        truncated = ending == TRUNCATED
        truncated[-1] |= span.open
        yield Episode(
            observations=observations_of(frames, spec),
            actions=env_action(replay.action[slots].cpu().numpy(), spec),
            rewards=replay.reward[slots].cpu().numpy(),
            terminations=ending == TERMINATED,
            truncations=truncated,
            skills=replay.skill[slots].cpu().numpy() if replay.skill.shape[1] else None,
        )
