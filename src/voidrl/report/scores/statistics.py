"""Scores over games and seeds: aggregates, bootstrap intervals, and the comparison of two methods.

The definitions follow Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical
precipice". Scores are normalized, `{game: [one per seed, …]}`, and games may differ in their number of seeds:
internally they are a table with a row per game, padded with NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from voidrl.envs.suites.atari import find_game, human_normalized
from voidrl.errors import ConfigError, UnknownNameError

Scores = Mapping[str, Sequence[float]]
Over = Literal["seeds", "games", "both"]
Statistic = Callable[[np.ndarray], np.ndarray]
"""Takes a batch of tables (B, games, seeds), NaN where a game has fewer seeds, and returns (B,)."""

CELLS = 2**20  # of the tables in one batch of resamples: 8 MiB


@dataclass(frozen=True)
class Aggregate:
    """One number for many games."""

    mean: float
    """Mean over games of each game's mean over seeds."""
    median: float
    """Median over games of each game's mean over seeds."""
    iqm: float
    """Mean of the middle half of all runs; a game with more seeds has more of them."""
    above_human: int
    """Games whose mean over seeds is at least 1."""
    games: int
    seeds: int
    """Seeds in the game with the fewest."""
    runs: int
    """Runs in all games."""


@dataclass(frozen=True)
class Interval:
    """A bootstrap interval around the statistic of the given scores."""

    low: float
    point: float
    high: float


def mean(tables: np.ndarray) -> np.ndarray:
    """Mean over games of the mean over seeds."""
    return np.asarray(np.nanmean(tables, axis=2).mean(axis=1))


def median(tables: np.ndarray) -> np.ndarray:
    """Median over games of the mean over seeds."""
    return np.asarray(np.median(np.nanmean(tables, axis=2), axis=1))


def iqm(tables: np.ndarray) -> np.ndarray:
    """Mean of all runs without the lowest and the highest ⌊n/4⌋ of them."""
    runs = np.sort(tables.reshape(len(tables), -1), axis=1)  # (B, games × seeds), NaN last
    count = np.sum(~np.isnan(runs), axis=1, keepdims=True)  # (B, 1); differs where games are resampled
    cut, place = count // 4, np.arange(runs.shape[1])
    middle = np.where((place >= cut) & (place < count - cut), runs, 0.0)
    return np.asarray(middle.sum(axis=1) / (count - 2 * cut)[:, 0])


def above_human(tables: np.ndarray) -> np.ndarray:
    """Number of games whose mean over seeds is at least 1."""
    return np.asarray(np.sum(np.nanmean(tables, axis=2) >= 1.0, axis=1))


STATISTICS: dict[str, Statistic] = {"mean": mean, "median": median, "iqm": iqm, "above_human": above_human}


def aggregate(scores: Scores) -> Aggregate:
    """Mean and median over games (the paper's convention), interquartile mean, and games above human."""
    table = _table(scores)
    seeds = np.sum(~np.isnan(table), axis=1)
    return Aggregate(
        mean=float(mean(table[None])[0]),
        median=float(median(table[None])[0]),
        iqm=float(iqm(table[None])[0]),
        above_human=int(above_human(table[None])[0]),
        games=len(table),
        seeds=int(seeds.min()),
        runs=int(seeds.sum()),
    )


def bootstrap(
    scores: Scores,
    statistic: str | Statistic,
    *,
    resamples: int = 10_000,
    level: float = 0.95,
    over: Over = "seeds",
    seed: int = 0,
) -> Interval:
    """Percentile interval of a statistic, one of `STATISTICS` or a function of a batch of tables.

    `over` selects the resampled unit. "seeds": seeds within each game, as a table of results needs.
    "games": games. "both": games, then seeds within each of them.

    With "seeds", a game with one seed adds nothing to the width; where no game has a second seed, low =
    point = high, which is no estimate rather than certainty. Intervals from few seeds are too narrow: for a
    mean over n seeds by about √((n − 1)/n), 0.8 for three.
    """
    if not callable(statistic) and statistic not in STATISTICS:
        raise UnknownNameError("statistic", statistic, STATISTICS)
    function = statistic if callable(statistic) else STATISTICS[statistic]
    return _interval(function, [_table(scores)], resamples, level, over, seed)


def probability_of_improvement(
    x: Scores,
    y: Scores,
    *,
    resamples: int = 10_000,
    level: float = 0.95,
    over: Over = "seeds",
    seed: int = 0,
) -> Interval:
    """Probability that a run of x beats a run of y: mean over games of P(x > y) + ½ P(x = y).

    Seeds of x and y are drawn independently, games together.
    """
    if set(x) != set(y):
        alone = [f"{game!r} is only in {'x' if game in x else 'y'}" for game in sorted({*x} ^ {*y})]
        raise ConfigError(f"two methods are compared in the same games, but {', '.join(alone)}")

    def wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        left, right = x[..., :, None], y[..., None, :]  # NaN neither exceeds nor equals anything
        won = np.sum(left > right, axis=(2, 3)) + 0.5 * np.sum(left == right, axis=(2, 3))  # (B, games)
        pairs = np.sum(~np.isnan(x), axis=2) * np.sum(~np.isnan(y), axis=2)
        return np.asarray((won / pairs).mean(axis=1))

    return _interval(wins, [_table(x), _table(y)], resamples, level, over, seed)


def _interval(
    statistic: Callable[..., np.ndarray],
    tables: list[np.ndarray],
    resamples: int,
    level: float,
    over: str,
    seed: int,
) -> Interval:
    if over not in get_args(Over):
        raise UnknownNameError("resampling", over, get_args(Over))
    if resamples < 1:
        raise ConfigError(f"resamples = {resamples} cannot be used: expected at least 1, better 10 000")
    if not 0.0 < level < 1.0:
        raise ConfigError(f"level = {level} cannot be used: expected a share between 0 and 1, such as 0.95")
    point = statistic(*(table[None] for table in tables))
    if np.shape(point) != (1,):
        raise ConfigError(f"the statistic gave {point!r} for a batch of one table: expected an array of one")
    batches = _resample(tables, resamples, over, seed)
    draws = np.concatenate([statistic(*batch).copy() for batch in batches])  # a view would keep its batch
    low, high = np.quantile(draws, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Interval(float(low), float(point[0]), float(high))


def _resample(tables: list[np.ndarray], resamples: int, over: str, seed: int) -> Iterator[list[np.ndarray]]:
    """Batches (B, games, seeds) of each table: games are drawn for all tables together, seeds for each."""
    rng = np.random.default_rng(seed)
    games = len(tables[0])
    batch = max(1, CELLS // (games * int(np.prod([table.shape[1] for table in tables]))))
    for start in range(0, resamples, batch):
        size = min(batch, resamples - start)
        rows = np.tile(np.arange(games), (size, 1))  # (B, games)
        rows = rows if over == "seeds" else rng.integers(0, games, size=rows.shape)
        drawn = [table[rows] for table in tables]
        yield drawn if over == "games" else [_redraw_seeds(batched, rng) for batched in drawn]


def _redraw_seeds(tables: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    empty = np.isnan(tables)  # (B, games, seeds), always the last places of a game
    counts = np.sum(~empty, axis=2, keepdims=True)
    picked = np.take_along_axis(tables, rng.integers(0, counts, size=tables.shape), axis=2)
    return np.where(empty, np.nan, picked)


def _table(scores: Scores) -> np.ndarray:
    """(games, seeds), NaN where a game has fewer; sorted, so that no interval depends on the order given."""
    if not scores:
        raise ConfigError("no scores: expected at least one game with at least one score")
    rows = []
    for game, values in sorted(scores.items()):
        try:
            row = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            row = np.empty(0)  # text, or lists of different lengths: refused below
        if row.ndim != 1 or not row.size or not np.isfinite(row).all():
            raise ConfigError(f"scores {values!r} of game {game!r}: expected a finite number for each seed")
        rows.append(np.sort(row))
    table = np.full((len(rows), max(map(len, rows))), np.nan)
    for place, row in zip(table, rows, strict=True):
        place[: len(row)] = row
    return table


def percent(share: float) -> str:
    """Format a share as tables show it: 0.5 → `50.0 %`."""
    return f"{round(100 * share, 1) + 0.0:.1f} %"  # + 0.0 turns −0.0 into 0.0


@dataclass(frozen=True)
class GameScore:
    """One game's line in a summary."""

    scores: list[float]
    """Raw scores, one per seed."""
    score: float
    """Mean over seeds."""
    normalized: float
    """Human-normalized mean: 0 is a random policy, 1 the human tester."""


@dataclass(frozen=True)
class Summary:
    """Scores of a set of runs: each game, and the aggregates with their intervals."""

    games: dict[str, GameScore]
    aggregate: Aggregate
    intervals: dict[str, Interval]
    """Interval of each of `STATISTICS`."""
    level: float
    resamples: int
    over: Over

    @property
    def flat(self) -> bool:
        """Whether intervals have no width: every game has one seed, and only seeds are resampled."""
        return self.over == "seeds" and self.aggregate.runs == self.aggregate.games

    def table(self) -> str:
        """Return the summary as text for a terminal."""
        wide = max(len("above human"), *map(len, self.games))
        lines = [f"{'game':{wide}}  seeds       score  normalized"]
        for name, game in self.games.items():
            cells = f"{len(game.scores):5}  {game.score:10.1f}  {percent(game.normalized):>10}"
            lines.append(f"{name:{wide}}  {cells}")
        lines.append("")
        for name, value in self.intervals.items():
            label = {"iqm": "IQM", "above_human": "above human"}.get(name, name)
            shown = (value.point, value.low, value.high)
            if name == "above_human":
                point, low, high = (f"{number:g}" for number in shown)
                point += f" of {len(self.games)}"
            else:
                point, low, high = map(percent, shown)
            lines.append(f"{label:{wide}}  {point:>10}" + ("" if self.flat else f"  [{low}, {high}]"))
        if self.flat:
            return "\n".join([*lines, "", "One seed per game: no intervals over seeds."])
        drawn = {"seeds": "seeds within games", "games": "games", "both": "games and of seeds within them"}
        note = f"[{100 * self.level:g} % intervals] from {self.resamples} resamples of {drawn[self.over]}."
        single = sum(len(game.scores) == 1 for game in self.games.values())
        if single and self.over == "seeds":
            note += f" Games with one seed, which add no width: {single}."
        return "\n".join([*lines, "", note])


def summarize(
    raw: Scores, *, resamples: int = 10_000, level: float = 0.95, over: Over = "seeds", seed: int = 0
) -> Summary:
    """Normalize raw Atari scores, `{game: [one per seed, …]}` in any spelling, and aggregate them."""
    names: dict[str, str] = {}
    for name in raw:
        if (other := names.setdefault(find_game(name), name)) != name:
            raise ConfigError(f"{other!r} and {name!r} are the same game: put their scores into one list")
    _table(raw)  # complains about the scores as the user gave them, before they are normalized
    scores = {game: [float(score) for score in raw[names[game]]] for game in sorted(names)}
    normalized = {game: [human_normalized(game, score) for score in row] for game, row in scores.items()}
    options: dict[str, Any] = {"resamples": resamples, "level": level, "over": over}
    return Summary(
        games={
            game: GameScore(row, float(np.mean(row)), float(np.mean(normalized[game])))
            for game, row in scores.items()
        },
        aggregate=aggregate(normalized),
        intervals={name: bootstrap(normalized, name, **options, seed=seed) for name in STATISTICS},
        **options,
    )
