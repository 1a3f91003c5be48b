"""Results of a probe as data: for Python, as JSON, as rows of metrics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Scores = dict[str, float]
"""A number for each feature space; NaN where it cannot be computed."""


@dataclass(frozen=True)
class VariableScore:
    """Linear predictability of one variable of the true state from features, on held-out episodes."""

    name: str
    controllable: bool
    measure: Literal["R²", "F1"]
    """R² of ridge regression, or for discrete variables macro-F1 of logistic regression."""
    scores: Scores
    chance: float
    """Score of uninformative features: 0 for R², the mean class frequency for F1."""


@dataclass(frozen=True)
class TaskRewardScore:
    """Predictability of the sign of the task's reward from f(s) and f(s')."""

    scores: Scores
    """Mean F1 of the rare classes."""
    chance: float
    """F1 of always predicting a rare class, the highest without features."""
    rate: float
    """Share of steps with a reward other than the commonest one."""


@dataclass(frozen=True)
class RarityScore:
    """Dependence of the intrinsic reward on the rarity of a state, in some of its variables."""

    variables: tuple[str, ...]
    cells: int
    """Distinct cells that were visited."""
    additive: bool
    """Whether each variable is binned separately, since tuples would be too many."""
    correlation: float
    """Rank correlation of the reward with rarity."""
    mean_correlation: float
    """Rank correlation of E[reward | cell] with rarity."""
    effect: float
    """Mean reward in the rarest minus in the commonest tenth of steps, in deviations of the reward."""
    share: float
    """Share of the reward's variance that the cell explains, above chance."""


@dataclass(frozen=True)
class RewardScore:
    """Behavior that the intrinsic reward pays for."""

    mean: float
    deviation: float
    controllable: RarityScore | None
    """None where no variable that varies is known to be controllable."""
    everything: RarityScore | None
    survival_share: float
    """Share of the variance of discounted returns that the number of steps left explains."""
    discount: float
    noise: float
    """Deviation of a state's reward between batches over the deviation between states; NaN where the play
    has fewer steps than two batches."""
    batch_size: int


@dataclass(frozen=True)
class ProbeResult:
    """Everything that `voidrl probe` measures."""

    agent: dict[str, Any]
    """The probed agent: environment, method, representation, steps …"""
    settings: dict[str, Any]
    """Settings of the probe."""
    steps: int
    """Number of played steps."""
    episodes: int
    split: str
    """Method of holding out steps, as a phrase."""
    spaces: dict[str, int]
    """Width of each feature space."""
    variables: list[VariableScore]
    constant: list[str]
    """Variables that never changed, or too seldom to be probed."""
    task_reward: TaskRewardScore | None
    """None where the sign of the task's reward is constant, or too rarely another to be scored."""
    reward: RewardScore | None
    reward_note: str = ""
    """Why there is no intrinsic reward to measure."""

    def mean_score(self, space: str, *, controllable: bool = False) -> float:
        """Mean over all or only controllable variables; a score below 0 counts as 0."""
        chosen = [v for v in self.variables if v.controllable or not controllable]
        return mean(max(0.0, v.scores[space]) for v in chosen if _known(v.scores.get(space)))

    def metrics(self, space: str = "z") -> dict[str, float]:
        """One row for the log, without undefined values."""
        own = None if self.reward is None else self.reward.controllable
        row = {
            "probe/controllable": self.mean_score(space, controllable=True),
            "probe/variables": self.mean_score(space),
            "probe/task_reward_f1": math.nan if self.task_reward is None else self.task_reward.scores[space],
            "probe/rarity_correlation": math.nan if own is None else own.correlation,
            "probe/controllable_share": math.nan if own is None else own.share,
            "probe/survival_share": math.nan if self.reward is None else self.reward.survival_share,
            "probe/reward_noise": math.nan if self.reward is None else self.reward.noise,
        }
        return {name: value for name, value in row.items() if math.isfinite(value)}

    def to_json(self) -> dict[str, Any]:
        """Plain values; numbers that are not finite become None."""
        found = _plain(dataclasses.asdict(self))
        assert isinstance(found, dict)
        means = {
            name: {space: self.mean_score(space, controllable=own) for space in self.spaces}
            for name, own in (("controllable", True), ("all", False))
        }
        return {**found, "means": _plain(means)}


def mean(values: Iterable[float]) -> float:
    """Mean; NaN if empty."""
    found = list(values)
    return float(np.mean(found)) if found else math.nan


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
