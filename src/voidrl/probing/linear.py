"""Linear probes: how much of a true variable, or of the task's reward, can be read off features linearly.

Everything is scored on episodes that the probe was not fitted to. Features are standardized by the training
rows. Validation episodes choose the strength of regularization and are fitted afterwards as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Array = np.ndarray | Tensor

RIDGE_PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)
"""λ per training row: 1 shrinks the weight of a lone standardized feature to one half."""
LOGISTIC_PENALTY = 1e-2
PRIOR_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of log class frequencies added to balanced logits: 0 predicts rare classes often, 1 seldom."""
LBFGS_ITERATIONS = 30
MAX_WIDTH = 256
"""Features for logistic regression; wider spaces are reduced to as many principal components."""
MIN_EPISODES = 8
"""Least number of episodes to split by; fewer are cut into blocks of consecutive steps."""
MIN_EXAMPLES = 5
"""Rows of a class, in training and in test, without which it is not scored."""
LIMIT = 5.0
"""Standardized features are clipped to ±this: one that hardly varies in training, such as a pixel lit
once, would otherwise outweigh all others where it does."""
MAX_CLASSES = 24
"""Discrete variables with more values are probed as continuous ones."""


class Split(NamedTuple):
    """Rows to fit, to choose the penalty and to score, as indices; no episode is in two of them."""

    fit: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    by: str = "episodes"
    """`episodes`, or `blocks` where there are too few of them."""

    @property
    def train(self) -> np.ndarray:
        """The rows to fit once the penalty is chosen."""
        return np.concatenate([self.fit, self.validation])


def split_rows(episode: np.ndarray, *, seed: int = 0, test: float = 0.3, validation: float = 0.2) -> Split:
    """Divide rows, given the episode of each, (n,), by whole episodes.

    With fewer than 8 episodes, each is cut into blocks of consecutive rows instead: neighboring blocks share
    a border, so that scores are a little too good.
    """
    unit, by = np.unique(episode, return_inverse=True)[1], "episodes"
    if unit.max(initial=0) + 1 < MIN_EPISODES:
        by, length = "blocks", max(1, -(-len(episode) // (4 * MIN_EPISODES)))
        position = np.zeros_like(unit)
        for one in np.unique(unit):
            rows = np.flatnonzero(unit == one)
            position[rows] = np.arange(len(rows)) // length
        unit = np.unique(np.stack([unit, position]), axis=1, return_inverse=True)[1].ravel()
    order = np.random.default_rng(seed).permutation(int(unit.max(initial=0)) + 1)
    # By rows rather than by episodes: one long episode must not leave the others too few.
    reached = np.zeros(len(order))
    reached[order] = np.bincount(unit)[order].cumsum() / max(1, len(unit))
    part = np.searchsorted([test, test + validation], reached)  # 0 test, 1 validation, 2 fit
    part[order[:2]] = 0, 1  # at least one unit each
    held_out, chosen, fit = (np.flatnonzero(part[unit] == i) for i in range(3))
    return Split(fit, chosen, held_out, by)


# Continuous variables


def r2(truth: Array, predicted: Array) -> np.ndarray:
    """(V,): the explained share of the variance of each column of (n, V); NaN for a constant column."""
    truth, predicted = (torch.as_tensor(values).double().numpy() for values in (truth, predicted))
    total = ((truth - truth.mean(0)) ** 2).sum(0)
    left = ((truth - predicted) ** 2).sum(0)
    constant = total <= 1e-12 * np.maximum(1.0, (truth**2).sum(0))
    return np.where(constant, np.nan, 1 - left / np.where(constant, 1.0, total))


def ridge_r2(features: Array, targets: Array, split: Split) -> np.ndarray:
    """(V,): R² of each column of targets (n, V) on the test rows, from features (n, d).

    Below 0 where the mean of the test rows would have been a better prediction.
    NaN for variables that are constant in the training or in the test rows.
    """
    x, y = _standardized(features, split.train), torch.as_tensor(targets)
    seen = y[split.train]
    scale = seen.std(0, correction=0)
    varies = scale > 1e-9 * seen.abs().amax(0).clamp(min=1)
    y = ((y - seen.mean(0)) / scale.where(varies, torch.ones(()))).float()
    tried = _predictions(x, y, split.fit, split.validation, RIDGE_PENALTIES)
    errors = [(y[split.validation] - predicted).square().sum(0) for predicted in tried.values()]
    best = [RIDGE_PENALTIES[i] for i in torch.stack(errors).argmin(0)]  # of each variable
    final = _predictions(x, y, split.train, split.test, sorted({*best}))
    predicted = torch.stack([final[penalty][:, v] for v, penalty in enumerate(best)], 1)
    # No variable is predicted beyond the values it had in training.
    predicted = predicted.clamp(y[split.train].amin(0), y[split.train].amax(0))
    return np.where(varies.numpy(), r2(y[split.test], predicted), np.nan)


def _predictions(
    x: Tensor, y: Tensor, fit: np.ndarray, on: np.ndarray, penalties: Sequence[float]
) -> dict[float, Tensor]:
    """The predictions for rows `on` with each of the penalties.

    Weights are those of ‖x w − y‖² + penalty · n ‖w‖² in closed form, from d×d products, or n×n where n < d.
    """
    center, mean = x[fit].mean(0), y[fit].mean(0)
    seen, wanted, inputs = x[fit] - center, y[fit] - mean, x[on] - center
    is_dual = len(seen) < seen.shape[1]
    # In float32, at twice the speed: its rounding is far below the smallest penalty.
    gram = (seen @ seen.T if is_dual else seen.T @ seen).double()
    right = (wanted if is_dual else seen.T @ wanted).double()
    found = {}
    for penalty in penalties:
        regularized = gram.clone()
        regularized.diagonal().add_(penalty * len(seen))
        solved = torch.cholesky_solve(right, torch.linalg.cholesky(regularized)).float()
        found[penalty] = inputs @ (seen.T @ solved if is_dual else solved) + mean
    return found


# Discrete variables and the task's reward


class ClassScores(NamedTuple):
    """F1 of a classifier on the test rows, the mean over the scored classes."""

    mean: float
    chance: float
    """The F1 of always predicting a class, the best without features."""


def f1(truth: np.ndarray, predicted: np.ndarray, value: int) -> float:
    """F1 of one class: the harmonic mean of precision and recall; 0 if it is never rightly predicted."""
    hits = int(((truth == value) & (predicted == value)).sum())
    named = int((predicted == value).sum()) + int((truth == value).sum())
    return 2 * hits / named if named else 0.0


def principal(features: Array, rows: np.ndarray, width: int = MAX_WIDTH) -> Tensor:
    """(n, width): features (n, d) in the space of the main principal components of `rows`.

    The space is found by one power iteration on random vectors; in it, axes are not the components
    themselves, which does not affect the fit. Few features are returned unchanged.
    """
    x = torch.as_tensor(features).float()
    if min(x.shape[1], len(rows)) <= width:
        return x
    x = _standardized(x, rows)
    start = torch.from_numpy(np.random.default_rng(0).standard_normal((x.shape[1], width), np.float32))
    axes = torch.linalg.qr(x[rows].T @ (x[rows] @ start)).Q  # (d, width)
    reduced: Tensor = x @ axes
    return reduced


def logistic_f1(
    features: Array, labels: np.ndarray, split: Split, *, unscored: int | None = None
) -> ClassScores | None:
    """F1 of multinomial logistic regression with balanced class weights, of (n,) labels from (n, d) features.

    Validation rows choose how far predictions lean towards frequent classes. The class `unscored` is
    predicted, but not scored. None where fewer than two classes have enough examples, or no scored class has.
    """
    classes, counts = np.unique(labels[split.fit], return_counts=True)
    classes, held_out = classes[counts >= MIN_EXAMPLES], labels[split.test]
    scored = [c for c in classes if c != unscored and (held_out == c).sum() >= MIN_EXAMPLES]
    if len(classes) < 2 or not scored:
        return None
    known = np.isin(labels, classes)
    fit, validation, train = (rows[known[rows]] for rows in (split.fit, split.validation, split.train))
    x = _standardized(features, train)
    index = torch.from_numpy(np.searchsorted(classes, labels).clip(max=len(classes) - 1))

    def mean_f1(fitted: np.ndarray, on: np.ndarray, shares: Sequence[float]) -> list[float]:
        logits = _balanced_logits(x, index, fitted, on)
        prior = index[fitted].bincount(minlength=len(classes)).clamp(min=1).float().log()
        named = [classes[(logits + share * prior).argmax(1).numpy()] for share in shares]
        return [float(np.mean([f1(labels[on], each, value) for value in scored])) for each in named]

    share = PRIOR_SHARES[int(np.argmax(mean_f1(fit, validation, PRIOR_SHARES)))]
    # Rows of classes too rare to fit are in the test: they count as wrong wherever they are named.
    (mean,) = mean_f1(train, split.test, [share])
    frequency = [float((held_out == value).mean()) for value in scored]
    return ClassScores(mean, float(np.mean([2 * p / (1 + p) for p in frequency])))


def reward_f1(z: Array, z_next: Array, reward: np.ndarray, split: Split) -> ClassScores | None:
    """F1 of the sign of the task's reward from f(s) and f(s'); of the classes other than the commonest.

    None where rewards are too rare to be scored.
    """
    sign = np.sign(reward).astype(np.int64)
    values, counts = np.unique(sign, return_counts=True)
    both = torch.cat([torch.as_tensor(z).float(), torch.as_tensor(z_next).float()], 1)
    return logistic_f1(both, sign, split, unscored=int(values[counts.argmax()]))


def _balanced_logits(x: Tensor, index: Tensor, fit: np.ndarray, on: np.ndarray) -> Tensor:
    """Logits of rows `on`, (rows, classes), that minimize the balanced, penalized cross-entropy on `fit`."""
    seen, wanted = x[fit], index[fit]
    count = int(index.max()) + 1
    balance = len(wanted) / (count * wanted.bincount(minlength=count).clamp(min=1).float())
    weights = torch.zeros(x.shape[1], count, requires_grad=True)
    bias = torch.zeros(count, requires_grad=True)
    ends: dict[str, Any] = {"tolerance_grad": 1e-4, "tolerance_change": 1e-6, "max_iter": LBFGS_ITERATIONS}
    optimizer = torch.optim.LBFGS([weights, bias], **ends, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(seen @ weights + bias, wanted, weight=balance)
        loss = loss + LOGISTIC_PENALTY / 2 * weights.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[arg-type]
    return x[on] @ weights.detach() + bias.detach()


def _standardized(features: Array, rows: np.ndarray) -> Tensor:
    """Features with mean 0 and deviation 1 over `rows`, without those that are constant there."""
    x = torch.as_tensor(features).flatten(1).float()
    mean, deviation = x[rows].mean(0), x[rows].std(0, correction=0)
    varies = deviation > 1e-6 * mean.abs().clamp(min=1e-6)
    if not varies.any():
        return torch.zeros(len(x), 1)
    return ((x[:, varies] - mean[varies]) / deviation[varies]).clamp(-LIMIT, LIMIT)
