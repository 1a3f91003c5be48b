"""Watches the metrics of a run that trains on finite numbers and learns nothing.

A collapsed representation, a constant reward and exploding values do not stop a run: their losses are finite.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from voidrl.agent.normalizer import CONSTANT_SPREAD
from voidrl.config import Config
from voidrl.runs.evaluations import EvaluationSummary

ROWS = 3
"""Consecutive rows in which a symptom must show: one row may be an accident of a few samples."""
CONTRAST_UPDATES = 1000
"""Updates after the warm-up of the learning rate before a contrastive loss is judged. In the demo's maze it
was at chance for the first 310 updates and then learned; what has collapsed stays so, and can wait."""
CHANCE_MARGIN = 0.02
"""Relative distance from chance of a loss that counts as chance; collapsed runs are within 0.005. The
accuracy may exceed twice chance by as much, since a few states can differ more than all others."""
MIN_Z_STD = 1e-6
"""Standard deviation of z below which states are equal up to rounding: z is about 1, and float32 has seven
digits. No larger, since the z of `icm` shrinks to 0.005 in healthy runs (results/urlb/README.md)."""
REWARD_UPDATES = 100
"""Updates before a reward is judged: networks need some to differ from their initialization."""
EXPLODED = 2.0
"""Factor between values and what the rewards seen so far can add up to (`train/value_limit`)."""
INITIAL_VALUE = 1.0
"""Values of a critic at its initialization, at most, which say nothing about rewards."""
LOST_DEVIATIONS = 2.0
"""Standard deviations of zero-shot episodes by which the return in training must be below their mean."""
LOST_SHARE = 0.25
"""Fraction of the zero-shot mean by which it must also be below: exploration always costs some return."""
LOST_ROWS = 2
"""Consecutive rows in which it must be."""
LOST_EPISODES = 10
"""Training episodes that must have ended in these rows: a few may fail by chance."""
LOST_RUN = 0.1
"""Fraction of the run's steps that these rows must cover."""

CONTRASTS = {"contrast": 2, "curl": 1, "atc": 1}  # metric prefix: views of a state among the candidates


class HealthMonitor:
    """Warns of each kind of problem once, after some rows with its symptom."""

    def __init__(self, config: Config, *, constant_reward: bool = False) -> None:
        """`constant_reward`: the method declares that its reward may be constant."""
        self.config = config
        self._judges_reward = (
            config.effective.uses_method and config.learner.batch_size > 1 and not constant_reward
        )
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
        """The kind of each symptom in this row, and the sentence about it."""
        representation = self.config.representation
        remedy = (
            f"try representation.warmup_updates = {max(1000, 2 * representation.warmup_updates)}, a lower "
            f"representation.learning_rate ({representation.learning_rate:g} now), or weaker augmentation "
            f"(augment.*)"
        )
        judges_contrast = updates >= representation.warmup_updates + CONTRAST_UPDATES
        for prefix, views in CONTRASTS.items() if judges_contrast else ():
            if by_chance := self._at_chance(train, prefix, views):
                yield (
                    "contrast",
                    f"the representation has collapsed or never began to learn: {by_chance}, so that z does "
                    f"not tell states apart; {remedy}",
                )
        if train.get("z_std", 1.0) < MIN_Z_STD:
            yield (
                "z",
                f"the representation has collapsed, train/z_std is {train['z_std']:.2g}: all states have the "
                f"same z, so that distances between them mean nothing; {remedy}",
            )
        if self._judges_reward and updates >= REWARD_UPDATES and "reward_std" in train:
            yield from self._constant_reward(train)
        if train.keys() >= {"q_mean", "value_limit"}:
            yield from self._exploded_values(train)

    def _at_chance(self, train: dict[str, float], prefix: str, views: int) -> str:
        """The metrics of a contrastive loss, if they are as by chance."""
        config = self.config.representation
        candidates = views * ((config.batch_size or self.config.learner.batch_size) - 1) + 1
        loss, accuracy = train.get(f"{prefix}_loss"), train.get(f"{prefix}_accuracy")
        if candidates < 2 or loss is None or accuracy is None:  # a custom loss may log one of them
            return ""
        chance_loss, chance = math.log(candidates), 1 / candidates
        loss_at_chance = abs(loss - chance_loss) <= CHANCE_MARGIN * chance_loss
        if not loss_at_chance or accuracy > 2 * chance + CHANCE_MARGIN:
            return ""
        return (
            f"train/{prefix}_accuracy is {accuracy:.2g} and train/{prefix}_loss {loss:.3g}, as by chance "
            f"among {candidates} candidates ({chance:.2g} and {chance_loss:.3g})"
        )

    def _constant_reward(self, train: dict[str, float]) -> Iterator[tuple[str, str]]:
        # As the method gives it: normalized, any reward has mean 0 or deviation 1.
        kind = "intrinsic" if "intrinsic_std" in train else "reward"
        spread, mean = train[f"{kind}_std"], train[f"{kind}_mean"]
        if spread > CONSTANT_SPREAD * abs(mean):
            return
        name = self.config.method.name
        own = "make its `reward` depend on the transition, or set constant_reward = True in its class"
        yield (
            "reward",
            f"the intrinsic reward of method {name!r} is constant, train/{kind}_mean is {mean:.3g} and "
            f"train/{kind}_std {spread:.2g}, and nothing can be learned from it; "
            f"{own if ':' in name else 'a collapsed representation does this, so try another one'}, or check "
            f"that the observations of the environment change",
        )

    def _exploded_values(self, train: dict[str, float]) -> Iterator[tuple[str, str]]:
        config, learner, limit = self.config, self.config.learner, train["value_limit"]
        # SAC adds the bonus of each later step to the rewards.
        bonus = train.get("temperature", 0.0) * abs(train.get("policy_entropy", 0.0))
        possible = limit + bonus / (1 - learner.largest_discount)
        value = max(abs(train["q_mean"]), abs(train.get("q_target", 0.0)))
        if limit <= 0 or value <= EXPLODED * max(possible, INITIAL_VALUE):
            return
        remedies = [] if learner.clamp_targets else ["learner.clamp_targets = True"]
        if config.effective.adapts and config.finetune.heads == "pretrained":
            remedies.append("finetune.heads = 'auto', which moves kept values to the task's scale")
        rate = f"{config.effective.learning_rate_field} ({config.effective.learning_rate:g} now)"
        remedies += [f"a lower {rate}", "learner.max_grad_norm = 10"]
        yield (
            "values",
            f"values are impossible in {config.env.id}: train/q_mean is {train['q_mean']:.3g}, and the "
            f"rewards seen so far add up to {possible:.3g} at most with learner.discount = "
            f"{learner.largest_discount:g}; the critic learns from its own errors, so try "
            f"{' or '.join(remedies)}",
        )


class ReturnMonitor:
    """Warns once if training episodes return far less than the pre-trained agent did, for long."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._said = False
        self._before = (0, 0, 0)  # steps, episodes and updates at the last row
        # First step, episodes and mean return of consecutive low rows.
        self._low: list[tuple[int, int, float]] = []

    def check(self, step: int, row: Mapping[str, Any], zero_shot: EvaluationSummary) -> list[str]:
        """New warnings for this row. Rows of the warm-up, or without a finished episode, do not count."""
        steps, episodes, updates = self._before
        self._before = step, int(row["episodes"]), int(row["updates"])
        mean = row.get("episode/return")
        if mean is None or not updates or self._said:
            return []
        margin = max(LOST_DEVIATIONS * zero_shot.std_return, LOST_SHARE * abs(zero_shot.mean_return))
        if not margin or mean >= zero_shot.mean_return - margin:  # a margin of 0 has no scale
            self._low = []
            return []
        self._low.append((steps, row["episodes"] - episodes, mean))
        since, ended = self._low[0][0], sum(count for _, count, _ in self._low)
        lasts = len(self._low) >= LOST_ROWS and step - since >= LOST_RUN * self.config.steps
        if not lasts or ended < LOST_EPISODES:
            return []
        self._said = True
        lately = sum(mean * count for _, count, mean in self._low) / ended
        return [
            f"warning at step {step}: training episodes return {lately:.3g} on average since step {since}, "
            f"well below the {zero_shot.mean_return:.3g} of the pre-trained agent (zero-shot); the best "
            f"agent so far is kept, use it with --best or load(…, best=True), or try another finetune.heads "
            f"({self.config.finetune.heads!r} now)"
        ]
