"""Measures of what an intrinsic reward pays for: rarity, controllability, survival, noise.

**Cells.** Variables are cut into bins: up to 16 distinct values are kept, more become 16 bins of
equal width. A state's cell is the tuple of its bins, as long as cells are visited 8 times on average; coarser
bins (8, then 4) are tried before. Where even these leave too few visits, as with many variables, each
variable has its own cells (`additive`): rarity is then the mean of the variables' own rarities, and the
reward given the cells is a sum of one term for each variable.

**Rarity** is −log of the share of steps in the cell. Which variables are controllable is up to the
environment; if positions are among the controllable ones (`x`, `player_y`, `rootz`), only these are used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

BINS = (16, 8, 4)
VISITS_PER_CELL = 8
MIN_VISITS = 5
"""Visits of a cell without which the mean of its rewards is left out."""
SHIFTS = 20
"""Random shifts of the rewards in time, by which chance is estimated."""
POSITION = re.compile(r"(^|_|root)[xyz](_\d+)?$", re.IGNORECASE)
"""Names of positions: `x`, `player_y`, MuJoCo's `rootz`, but not `hinge_velocity`."""
TAIL = 0.01
"""Weight of rewards after the end of the play, below which a return counts as complete."""


# Rank correlation


def ranks(values: np.ndarray) -> np.ndarray:
    """(n,): ranks from 1; ties share their mean rank."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = counts.cumsum()
    mean: np.ndarray = (last - (counts - 1) / 2)[inverse]
    return mean


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation, with ties; NaN where one of the two is constant."""
    return _pearson(ranks(a), ranks(b))


def _pearson(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / norm) if norm > 0 else float("nan")


# Cells and rarity


@dataclass(frozen=True)
class Cells:
    """The cell of each state: one column, or one for each variable where the tuple would be too fine."""

    index: np.ndarray  # (n, C) int64, from 0
    bins: int

    @property
    def additive(self) -> bool:
        """Whether each variable has its own cells."""
        return len(self.index.T) > 1

    @property
    def count(self) -> int:
        """Number of distinct cells, of all columns together."""
        return int((self.index.max(0) + 1).sum())

    @cached_property
    def _solver(self) -> _Additive:
        """Made once, as it takes much longer than a fit."""
        return _Additive(self)

    def means(self, reward: np.ndarray) -> np.ndarray:
        """(n,): E[reward | cell], the least-squares fit of rewards (n,) by the cells."""
        reward = np.asarray(reward, np.float64)
        if self.additive:
            return self._solver.fit(reward)
        column = self.index[:, 0]
        means: np.ndarray = (np.bincount(column, reward) / np.bincount(column))[column]
        return means

    def visits(self) -> np.ndarray:
        """(n, C): visits of each state's cell."""
        columns = self.index.T
        return np.stack([np.bincount(column)[column] for column in columns], 1)

    def rarity(self) -> np.ndarray:
        """(n,): −log of the share of steps in the state's cell, the mean over columns."""
        rarity: np.ndarray = -np.log(self.visits() / len(self.index)).mean(1)
        return rarity


def binned(values: np.ndarray, bins: int) -> np.ndarray:
    """(n,): the number of each value's bin, from 0 without gaps."""
    distinct, inverse = np.unique(values, return_inverse=True)
    if len(distinct) > bins:
        low, high = float(distinct[0]), float(distinct[-1])
        at = (
            ((np.asarray(values, np.float64) - low) / (high - low) * bins).astype(np.int64).clip(max=bins - 1)
        )
        inverse = np.unique(at, return_inverse=True)[1]
    return inverse.astype(np.int64)


def cells(state: np.ndarray) -> Cells:
    """The cells of true states (n, V): of the tuple if visits allow it, else of each variable."""
    state = np.asarray(state).reshape(len(state), -1)
    for bins in BINS:
        columns = np.stack([binned(column, bins) for column in state.T])
        joint = np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1)
        if len(state) >= VISITS_PER_CELL * (joint.max(initial=0) + 1):
            return Cells(joint[:, None].astype(np.int64), bins)
    return Cells(np.stack([binned(column, BINS[0]) for column in state.T], 1), BINS[0])


def rarity_columns(names: Sequence[str], controllable: Sequence[bool]) -> list[int]:
    """The columns whose rarity the agent can influence: controllable positions, else all controllable."""
    own = [i for i, is_own in enumerate(controllable) if is_own]
    positions = [i for i in own if POSITION.search(names[i])]
    return positions or own


# Dependence of the reward on states


@dataclass(frozen=True)
class Dependence:
    """Dependence of a reward on the cell of a state."""

    correlation: float
    """Rank correlation of the reward of a step with the rarity of its cell."""
    mean_correlation: float
    """Rank correlation of E[reward | cell] with rarity, over steps: a learner averages the rest away."""
    effect: float
    """Mean reward in the rarest minus in the commonest tenth of steps, in deviations of the reward."""
    share: float
    """Share of the reward's variance that the cell explains (η²), above what chance explains."""


def dependence(
    reward: np.ndarray, where: Cells, *, episode: np.ndarray | None = None, seed: int = 0
) -> Dependence:
    """Measure how rewards (n,) depend on the cells of the states they were given for.

    Args:
        reward: (n,).
        where: The cell of each state.
        episode: (n,) the episode of each row, rows of one being in order of time.
        seed: Seed of the random shifts that estimate chance.
    """
    reward = np.asarray(reward, np.float64)
    if reward.std() <= 1e-12 * max(1.0, np.abs(reward).max(initial=0)):
        nan = float("nan")
        return Dependence(nan, nan, nan, nan)
    rarity = where.rarity()
    fitted = cell_means(reward, where)
    enough = where.visits().min(1) >= MIN_VISITS
    order = np.argsort(rarity, kind="stable")
    tenth = max(1, len(order) // 10)
    common, rare = rarity[order[tenth - 1]], rarity[order[-tenth]]
    difference = reward[rarity >= rare].mean() - reward[rarity <= common].mean() if rare > common else 0.0
    return Dependence(
        spearman(reward, rarity),
        spearman(fitted[enough], rarity[enough]) if enough.any() else float("nan"),
        float(difference / reward.std()),
        explained_share(reward, where, episode=episode, seed=seed),
    )


def cell_means(reward: np.ndarray, where: Cells) -> np.ndarray:
    """(n,): E[reward | cell], the least-squares fit of the reward by the cells."""
    return where.means(reward)


def eta_squared(reward: np.ndarray, where: Cells) -> float:
    """η²: the share of the variance that the means of cells have, without any correction."""
    reward = np.asarray(reward, np.float64)
    return float(cell_means(reward, where).var() / reward.var())


def explained_share(
    reward: np.ndarray, where: Cells, *, episode: np.ndarray | None = None, seed: int = 0
) -> float:
    """η² above chance: (η² − chance) / (1 − chance).

    Many cells explain some of any reward, and more of one that changes slowly, since states that follow each
    other share a cell. Chance is therefore the mean η² of the rewards shifted against the states by
    random numbers of steps, which keeps the autocorrelation of both.
    """
    reward = np.asarray(reward, np.float64)
    if episode is not None:
        order = np.argsort(episode, kind="stable")
        reward, where = reward[order], Cells(where.index[order], where.bins)
    n, variance = len(reward), reward.var()
    offsets = np.random.default_rng(seed).integers(n // 10, max(n - n // 10, n // 10 + 1), SHIFTS)
    chance = float(np.mean([where.means(np.roll(reward, offset)).var() for offset in offsets]) / variance)
    found = float(where.means(reward).var() / variance)
    return (found - chance) / (1 - chance) if chance < 1 else float("nan")


class _Additive:
    """Least squares on one indicator for each bin of each variable."""

    def __init__(self, where: Cells) -> None:
        offsets = np.concatenate([[0], (where.index.max(0) + 1).cumsum()[:-1]])
        self.columns = where.index + offsets  # (n, C)
        width = int(self.columns.max()) + 1
        indicators = np.zeros((len(self.columns), width), np.float32)
        np.put_along_axis(indicators, self.columns, 1, 1)
        gram = (indicators.T @ indicators).astype(np.float64)  # counts, exact in float32
        self.inverse = np.linalg.pinv(gram, rcond=1e-10, hermitian=True)

    def fit(self, reward: np.ndarray) -> np.ndarray:
        """(n,): the fitted values."""
        weights = np.repeat(reward, self.columns.shape[1])
        sums = np.bincount(self.columns.ravel(), weights, minlength=len(self.inverse))
        fitted: np.ndarray = (self.inverse @ sums)[self.columns].sum(1)
        return fitted


# Survival and noise


def survival_share(reward: np.ndarray, ends: np.ndarray, segment: np.ndarray, discount: float) -> float:
    """Share of the variance of discounted returns that the discounted number of steps left explains.

    A constant reward has a share of 1: all it says is to stay alive.

    Args:
        reward: (n,) as the learner gets them, rows of one segment in order of time.
        ends: (n,) where the learner sees a terminal state, after which nothing is earned.
        segment: (n,) the episode of each row. Its last steps are left out unless it ends in a terminal
            state: their remaining reward is unknown.
        discount: γ.

    Returns:
        NaN if no step that counts leads to a terminal state: then survival plays no part.
    """
    order = np.argsort(segment, kind="stable")
    reward, ends, segment = (np.asarray(v)[order] for v in (reward, ends, segment))
    n = len(reward)
    returns, left, missing = np.zeros(n), np.zeros(n), np.zeros(n)
    later = (0.0, 0.0, 1.0)  # return, discounted steps, weight of the unknown
    for t in reversed(range(n)):
        if ends[t]:
            later = (0.0, 0.0, 0.0)
        elif t == n - 1 or segment[t] != segment[t + 1]:
            later = (0.0, 0.0, 1.0)
        later = (reward[t] + discount * later[0], 1 + discount * later[1], discount * later[2])
        returns[t], left[t], missing[t] = later
    whole = missing < TAIL
    if whole.sum() < 3 or not ((missing[whole] == 0).any()) or left[whole].std() < 1e-9:
        return float("nan")
    return _pearson(returns[whole], left[whole]) ** 2


def noise_ratio(scores: np.ndarray) -> float:
    """Deviation of a state's reward between batches over the deviation of rewards between states.

    Args:
        scores: (R, n): the rewards of n states, each time among other states; R ≥ 2.

    Returns:
        0 for a reward that depends only on the state; infinite for pure noise.
    """
    scores = np.asarray(scores, np.float64)
    within = float(scores.var(0, ddof=1).mean())
    # The means of R scores have a part of the noise as well.
    between = float(scores.mean(0).var(ddof=1)) - within / len(scores)
    if within <= 1e-12 * float((scores**2).mean()):
        return 0.0
    return float(np.sqrt(within / between)) if between > 0 else float("inf")
