"""Warns of runs that learn nothing although all their numbers are finite."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from voidrl.agent.rewards import CONSTANT_SPREAD
from voidrl.config import Config

ROWS = 3
"""Consecutive rows in which a symptom must show: one row may be an accident of a few samples."""
CONTRAST_UPDATES = 1000
"""Updates after the warm-up of the learning rate before a contrastive loss is judged: in the demo's maze it
was at chance for the first 310."""
CHANCE_MARGIN = 0.02
"""Relative distance from chance of a loss that counts as chance; collapsed runs are within 0.005."""
MIN_Z_STD = 1e-6
"""Standard deviation of z that is rounding only; the z of `icm` shrinks to 0.005 in healthy runs."""
REWARD_UPDATES = 100
"""Updates before a reward is judged: networks need some to differ from their initialization."""
EXPLODED = 2.0
"""Factor between values and what the rewards seen so far can add up to (`train/value_limit`)."""
CONTRASTS = {"contrast": 2, "curl": 1, "atc": 1}  # metric prefix: views of a state among the candidates


class HealthMonitor:
    """Warns of each symptom once, after some rows with it."""

    def __init__(self, config: Config, *, constant_reward: bool = False) -> None:
        """`constant_reward`: the method declares that its reward may be constant."""
        self.config = config
        judges = config.effective.uses_method and config.learner.batch_size > 1
        self._judges_reward = judges and not constant_reward
        self._streaks: Counter[str] = Counter()
        self._said: set[str] = set()

    def check(self, step: int, row: Mapping[str, Any]) -> list[str]:
        """New warnings for this row."""
        train = {k.removeprefix("train/"): v for k, v in row.items() if k.startswith("train/")}
        if not train:  # no updates since the last row
            return []
        updates = int(row["updates"])
        found = dict(self._symptoms(train, updates))
        self._streaks = Counter({kind: self._streaks[kind] + 1 for kind in found})
        new = [kind for kind in found if self._streaks[kind] >= ROWS and kind not in self._said]
        self._said.update(new)
        return [f"warning at step {step}, update {updates}: {found[kind]}" for kind in new]

    def _symptoms(self, train: dict[str, float], updates: int) -> Iterator[tuple[str, str]]:
        """The symptoms in this row, each with a sentence."""
        config, f = self.config, self.config.representation
        remedy = (
            f"try representation.warmup_updates = {max(1000, 2 * f.warmup_updates)}, a lower "
            f"representation.learning_rate ({f.learning_rate:g} now), or weaker augmentation (augment.*)"
        )
        for prefix, views in CONTRASTS.items():
            loss, accuracy = train.get(f"{prefix}_loss"), train.get(f"{prefix}_accuracy")
            candidates = views * ((f.batch_size or config.learner.batch_size) - 1) + 1
            if loss is None or accuracy is None or updates < f.warmup_updates + CONTRAST_UPDATES:
                continue
            is_at_chance = abs(loss - math.log(candidates)) <= CHANCE_MARGIN * math.log(candidates)
            if candidates > 1 and is_at_chance and accuracy <= 2 / candidates + CHANCE_MARGIN:
                yield (
                    "contrast",
                    f"the representation has collapsed or never began to learn: train/{prefix}_accuracy is "
                    f"{accuracy:.2g} and train/{prefix}_loss {loss:.3g}, as by chance among {candidates} "
                    f"candidates; {remedy}",
                )
        if train.get("z_std", 1.0) < MIN_Z_STD:
            yield (
                "z",
                f"the representation has collapsed, train/z_std is {train['z_std']:.2g}: all states have the "
                f"same z; {remedy}",
            )
        # As the method gives it: normalized, any reward has mean 0 or deviation 1.
        kind = "intrinsic" if "intrinsic_std" in train else "reward"
        spread, mean = train.get(f"{kind}_std", math.inf), train.get(f"{kind}_mean", 0.0)
        is_constant = spread <= CONSTANT_SPREAD * abs(mean)
        if is_constant and self._judges_reward and updates >= REWARD_UPDATES:
            yield (
                "reward",
                f"the intrinsic reward of method {config.method.name!r} is constant, train/{kind}_mean is "
                f"{mean:.3g} and train/{kind}_std {spread:.2g}, and nothing can be learned from it: look for "
                f"a collapsed representation, or observations that do not change",
            )
        # SAC adds the bonus of each later step to the rewards.
        limit, discount = train.get("value_limit", 0.0), config.learner.largest_discount
        bonus = train.get("temperature", 0.0) * abs(train.get("policy_entropy", 0.0))
        possible = limit + bonus / (1 - discount)
        value = max(abs(train.get("q_mean", 0.0)), abs(train.get("q_target", 0.0)))
        if limit > 0 and value > EXPLODED * max(possible, 1.0):  # 1: values before anything is learned
            yield (
                "values",
                f"values are impossible in {config.env.id}: train/q_mean is {train['q_mean']:.3g}, and the "
                f"rewards seen so far add up to {possible:.3g} at most; try learner.clamp_targets = True, "
                f"finetune.heads = 'auto', a lower {config.effective.learning_rate_field} "
                f"({config.effective.learning_rate:g} now) or learner.max_grad_norm = 10",
            )
