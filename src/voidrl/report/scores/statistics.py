"""Scores with seeds as aggregates, bootstrap intervals, and differences between two methods.

Aggregates and intervals follow Agarwal et al. 2021, "Deep reinforcement learning at the edge of the
statistical precipice". Scores are normalized, `{game: [one per seed, …]}`, and games may differ in their
number of seeds. Games are strata: seeds are resampled within each of them.

Scores of a pre-trained method are nested: several fine-tunings start from each pre-trained agent, and share
its luck. A resample of a difference therefore draws pre-trainings first, then fine-tunings within each.
A plain bootstrap of n values has (n − 1)/n of the variance that it should have: half of it for two
pre-trainings. Deviations from a mean over n are therefore multiplied by √(n / (n − 1)), at both levels. In
simulations of five games with 2 × 3 against 6 runs, 90 % intervals of the pooled difference then contain the
truth in 88 to 93 % of cases, without that in 76 to 90 %. Intervals of a single game do in 92 % if
pre-trainings are alike, in 84 % if they differ as much as fine-tunings do, in 76 % if twice as much. With
2 × 1 against 2 runs, it is 84 to 88 % for the pooled difference and 75 to 78 % for a single game.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from voidrl.errors import ConfigError

Scores = Mapping[str, Sequence[float]]
NestedScores = Mapping[str, Sequence[Sequence[float]]]
"""Scores of the fine-tunings of each pre-training, by game."""
Statistic = Callable[[np.ndarray], np.ndarray]
"""Takes a batch of tables (B, games, seeds), NaN where a game has fewer seeds, and returns (B,)."""

CELLS = 2**20  # of the tables in one batch of resamples: 8 MiB
DIFFERENCE_LEVEL = 0.9


@dataclass(frozen=True)
class Interval:
    """A bootstrap interval around the statistic of the given scores."""

    low: float
    point: float
    high: float

    @property
    def is_flat(self) -> bool:
        """Whether it has no width, as with one seed each: no estimate, rather than certainty."""
        return self.low == self.high


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


def mean(tables: np.ndarray) -> np.ndarray:
    """Mean over games of the mean over seeds."""
    return np.asarray(np.nanmean(tables, axis=2).mean(axis=1))


def median(tables: np.ndarray) -> np.ndarray:
    """Median over games of the mean over seeds."""
    return np.asarray(np.median(np.nanmean(tables, axis=2), axis=1))


def iqm(tables: np.ndarray) -> np.ndarray:
    """Mean of all runs without the lowest and the highest ⌊n/4⌋ of them."""
    runs = np.sort(tables.reshape(len(tables), -1), axis=1)  # (B, games × seeds), NaN last
    count = int(np.sum(~np.isnan(runs[0])))  # equal in all resamples of seeds
    cut = count // 4
    return np.asarray(runs[:, cut : count - cut].mean(axis=1))


def above_reference(tables: np.ndarray) -> np.ndarray:
    """Number of tasks whose mean over seeds is at least 1."""
    return np.asarray(np.sum(np.nanmean(tables, axis=2) >= 1.0, axis=1))


STATISTICS: dict[str, Statistic] = {"mean": mean, "median": median, "iqm": iqm, "above": above_reference}
"""Mean and median over games are the paper's convention; the IQM counts a game with more seeds more."""


def bootstrap(
    scores: Scores, statistic: str, *, resamples: int = 10_000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Percentile interval of one of `STATISTICS`: seeds are resampled within each game.

    A game with one seed adds nothing to the width. Intervals from few seeds are too narrow: for a mean over n
    seeds by about √((n − 1)/n), 0.8 for three.
    """
    function, table = STATISTICS[statistic], _table(scores)
    rng, draws = np.random.default_rng(seed), []
    batch = max(1, CELLS // table.size)
    for start in range(0, resamples, batch):
        tables = np.tile(table, (min(batch, resamples - start), 1, 1))  # (B, games, seeds)
        draws.append(function(_redraw_seeds(tables, rng)))
    return _interval(float(function(table[None])[0]), np.concatenate(draws), level)


def differences(
    nested: NestedScores,
    plain: Scores,
    *,
    level: float = DIFFERENCE_LEVEL,
    resamples: int = 10_000,
) -> Differences:
    """Mean of nested scores minus mean of plain ones, on shared games.

    The mean of nested scores is that over pre-trainings of the mean over their fine-tunings. The pooled
    difference is the mean over games. A mean of one value adds no width: with one pre-training, the interval
    says nothing about how pre-trainings differ.
    """
    if {*nested} != {*plain}:
        alone = [f"{game!r} is only in one" for game in sorted({*nested} ^ {*plain})]
        raise ConfigError(f"two methods are compared in the same games, but {', '.join(alone)}")
    rng = np.random.default_rng(0)
    points, drawn = {}, {}
    for game in sorted(nested):  # no interval depends on the order of games
        groups = [_row(game, group) for group in nested[game]]
        runs = [_row(game, [score]) for score in plain[game]]
        points[game] = float(np.mean([g.mean() for g in groups]) - np.mean(runs))
        drawn[game] = _draw_means(groups, resamples, rng) - _draw_means(runs, resamples, rng)
    games = {game: _interval(points[game], drawn[game], level) for game in nested}
    pooled = _interval(float(np.mean([*points.values()])), np.mean([*drawn.values()], axis=0), level)
    return Differences(games, pooled, level)


def _interval(point: float, draws: np.ndarray, level: float) -> Interval:
    low, high = np.quantile(draws, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Interval(float(low), point, float(high))


def _redraw_seeds(tables: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    empty = np.isnan(tables)  # (B, games, seeds), always the last places of a game
    counts = np.sum(~empty, axis=2, keepdims=True)
    picked = np.take_along_axis(tables, rng.integers(0, counts, size=tables.shape), axis=2)
    return np.where(empty, np.nan, picked)


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


def _table(scores: Scores) -> np.ndarray:
    """(games, seeds), NaN where a game has fewer; sorted, so that no interval depends on the order given."""
    rows = [_row(game, values) for game, values in sorted(scores.items())]
    if not rows:
        raise ConfigError("no scores: expected at least one game with at least one score")
    table = np.full((len(rows), max(map(len, rows))), np.nan)
    for place, row in zip(table, rows, strict=True):
        place[: len(row)] = row
    return table


def _row(game: str, values: Sequence[float]) -> np.ndarray:
    """Sorted scores of a game."""
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1 or not row.size or not np.isfinite(row).all():
        raise ConfigError(f"scores {values!r} of game {game!r}: expected a finite number for each seed")
    return np.sort(row)


def percent(share: float) -> str:
    """Format a share as tables show it: 0.5 → `50.0 %`."""
    return f"{round(100 * share, 1) + 0.0:.1f} %"  # + 0.0 turns −0.0 into 0.0
