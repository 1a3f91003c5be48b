"""What the ranks of a run add up after each step of their environments, and collect for a row of metrics.

All of them decide by the same numbers: when updates are due, when to evaluate, to save and to stop. For one
process nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from voidrl.ranks import group


@dataclass
class RankMetrics:
    """What the environments of a rank did since the last row, and which cells they ever entered."""

    rewards: list[float] = field(default_factory=list)
    """Of every real step."""
    finished: list[tuple[float, int]] = field(default_factory=list)
    """Return and length of episodes."""
    visits: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """How often each cell was entered, since the run began."""
    trained: dict[str, float] = field(default_factory=dict)
    """Metrics of updates."""
    states: list[dict[str, np.ndarray]] = field(default_factory=list)
    """What `env.count_states` has counted in other ranks than the first."""


class RankTotals:
    """Sums and collects over the ranks of a run."""

    def __init__(self) -> None:
        self.is_alone = group.current().size == 1

    def add(self, steps: int, episodes: int, stop: bool) -> tuple[int, int, bool]:
        """Steps and episodes of all ranks in one step of their environments, and whether one is to stop."""
        if self.is_alone:
            return steps, episodes, stop
        steps_of_all, episodes_of_all, stops = group.total(steps, episodes, stop)
        return int(steps_of_all), int(episodes_of_all), stops > 0

    def any(self, flag: bool) -> bool:
        """Whether this is so in any rank."""
        return group.total(flag)[0] > 0 if not self.is_alone else flag

    def first_text(self, words: Sequence[str | None]) -> list[str]:
        """Of each text, the first that is not empty in any rank."""
        found = zip(*group.all_gather_object([*words]), strict=True)
        return [next(filter(None, texts), "") for texts in found]

    def merge(self, metrics: RankMetrics) -> RankMetrics:
        """What all ranks have seen; metrics of updates are averaged."""
        if self.is_alone:
            return metrics
        parts: list[RankMetrics] = group.all_gather_object(metrics)
        return RankMetrics(
            rewards=[reward for part in parts for reward in part.rewards],
            finished=[episode for part in parts for episode in part.finished],
            visits=sum_counts([part.visits for part in parts]),
            trained={name: _mean([p.trained.get(name) for p in parts]) for name in parts[0].trained},
            states=[states for part in parts for states in part.states],
        )


def sum_counts(counts: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of counts of different lengths, which end where the rest is 0."""
    total = np.zeros(max(map(len, counts)), np.int64)
    for each in counts:
        total[: len(each)] += each
    return total


def _mean(values: Sequence[float | None]) -> float:
    """The mean of those that are there; exactly their value where all agree, as ranks that exchange it do."""
    there = [value for value in values if value is not None]
    return there[0] if there.count(there[0]) == len(there) else float(np.mean(there))
