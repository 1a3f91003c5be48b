"""Difference between a method with and one without pre-training, with intervals over both kinds of seeds.

Scores of the first are nested: several fine-tunings start from each pre-trained agent, and share its
luck. A resample therefore draws pre-trainings first, then fine-tunings within each of them; of the second
method it draws runs. Games are strata: each is resampled on its own, and the pooled difference is the mean
over games.

A plain bootstrap of n values has (n − 1)/n of the variance that it should have: half of it for two
pre-trainings. Deviations from a mean over n are therefore multiplied by √(n / (n − 1)), at both levels. In
simulations of five games with 2 × 3 against 6 runs, 90 % intervals of the pooled difference then contain the
truth in 88 to 93 % of cases, without that in 76 to 90 %. Intervals of a single game do in 92 % if
pre-trainings are alike, in 84 % if they differ as much as fine-tunings do, in 76 % if twice as much. With
2 × 1 against 2 runs, it is 84 to 88 % for the pooled difference and 75 to 78 % for a single game.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from voidrl.errors import ConfigError
from voidrl.report.scores.statistics import Interval, Scores

NestedScores = Mapping[str, Sequence[Sequence[float]]]
"""Scores of the fine-tunings of each pre-training, by game."""
LEVEL = 0.9


@dataclass(frozen=True)
class Differences:
    """Differences between two methods, in each game and in their mean."""

    games: dict[str, Interval]
    pooled: Interval
    level: float

    @property
    def percent(self) -> str:
        """The level as text."""
        return f"{100 * self.level:g} %"


def differences(
    nested: NestedScores, plain: Scores, *, level: float = LEVEL, resamples: int = 10_000, seed: int = 0
) -> Differences:
    """Mean of nested scores minus mean of plain ones, on shared games.

    The mean of nested scores is that over pre-trainings of the mean over their fine-tunings. A mean of one
    value adds no width: with one pre-training, the interval says nothing about how pre-trainings differ.
    """
    if {*nested} != {*plain}:
        alone = [f"{game!r} is only in one" for game in sorted({*nested} ^ {*plain})]
        raise ConfigError(f"two methods are compared in the same games, but {', '.join(alone)}")
    if not nested:
        raise ConfigError("no scores: expected at least one game with a score of both methods")
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level = {level} cannot be used: expected a share between 0 and 1, such as 0.9")
    if resamples < 1:
        raise ConfigError(f"resamples = {resamples} cannot be used: expected at least 1, better 10 000")
    rng = np.random.default_rng(seed)
    points, drawn = {}, {}
    for game in sorted(nested):  # no interval depends on the order of games
        groups = [_scores(game, group) for group in nested[game]]
        runs = [_scores(game, [score]) for score in plain[game]]
        if not groups or not runs:
            raise ConfigError(f"game {game!r} has no score of one of the methods: leave it out of both")
        points[game] = float(np.mean([g.mean() for g in groups]) - np.mean(runs))
        drawn[game] = _draw_means(groups, resamples, rng) - _draw_means(runs, resamples, rng)
    ends = [(1.0 - level) / 2.0, (1.0 + level) / 2.0]
    games = {game: _interval(points[game], drawn[game], ends) for game in nested}
    pooled = _interval(float(np.mean([*points.values()])), np.mean([*drawn.values()], axis=0), ends)
    return Differences(games, pooled, level)


def _scores(game: str, values: Sequence[float]) -> np.ndarray:
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1 or not row.size or not np.isfinite(row).all():
        raise ConfigError(f"scores {values!r} of game {game!r}: expected a finite number for each seed")
    return np.sort(row)


def _interval(point: float, draws: np.ndarray, ends: Sequence[float]) -> Interval:
    low, high = np.quantile(draws, ends)
    return Interval(float(low), point, float(high))


def _draw_means(groups: Sequence[np.ndarray], resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Means (B,) of resampled groups, each of which is resampled within; deviations are of unbiased size."""
    groups = sorted(groups, key=lambda group: tuple(group))  # nor on the order of seeds
    means = np.array([group.mean() for group in groups])
    center, count = means.mean(), len(groups)
    picked = rng.integers(0, count, size=(resamples, count))  # (B, P)
    between = _unbiased(count) * (means[picked] - center)
    if all(len(group) == 1 for group in groups):
        return np.asarray(center + between.mean(axis=1))
    within = np.empty((count, resamples, count))  # of each group, in case it was picked in that place
    for place, group in enumerate(groups):
        chosen = rng.integers(0, len(group), size=(resamples, count, len(group)))
        within[place] = _unbiased(len(group)) * (group[chosen].mean(axis=2) - means[place])
    inside = np.take_along_axis(within, picked[None], axis=0)[0]  # (B, P)
    return np.asarray(center + (between + inside).mean(axis=1))


def _unbiased(count: int) -> float:
    return float(np.sqrt(count / (count - 1))) if count > 1 else 0.0
