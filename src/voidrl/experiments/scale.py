"""`--steps-scale`: an experiment with fewer or more steps.

Steps are multiplied. Warm-ups and the decay of exploration noise keep their length up to a fifth of the run,
and are shortened to that otherwise. Resets and the annealing of n and γ keep their share of
a shorter run. A run keeps at least twenty rows of metrics, and all its evaluations. An experiment's file may
exempt phases (`scaled`), such as fine-tuning where the result is the score after so many steps.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from voidrl.config import Config, update
from voidrl.experiments.format import EvaluationSpec

SHARE = 5  # one in five steps of the run
ROWS = 20
MIN_EPISODES = 3
MIN_STEPS = 1000
FEW_UPDATES = 100


def scale_config(config: Config, scale: float) -> Config:
    """Return the config of a run that is `scale` times as long."""
    if scale == 1:
        return config
    steps = max(1, round(config.steps * scale)) if config.steps else 0
    log = config.log
    changes: dict[str, Any] = {
        "steps": steps,
        "log.snapshot_steps": tuple(max(1, round(step * scale)) for step in log.snapshot_steps),
    }
    if log.eval_every_steps:
        changes["log.eval_every_steps"] = max(1, round(log.eval_every_steps * scale))
    if scale < 1:
        changes["log.log_every_steps"] = min(log.log_every_steps, max(1, steps // ROWS))
        for name in ("epsilon_hold_steps", "epsilon_decay_steps", "stddev_decay_steps"):
            length = getattr(config.learner, name, None)
            if length is not None:
                changes[f"learner.{name}"] = _shorten(length, scale, steps)
        warmup = "finetune.warmup_steps" if config.phase == "finetune" else "warmup_steps"
        changes[warmup] = _shorten(warmup_steps(config), scale, steps)
        for name in ("reset.every_updates", "reset.last_steps", "learner.anneal_updates"):
            piece, _, field = name.partition(".")
            length = getattr(getattr(config, piece), field)
            changes[name] = max(1, round(length * scale)) if length else 0
        config = update(config, changes)
        updates = _shorten(config.representation.warmup_updates, scale, count_updates(config))
        changes = {"representation.warmup_updates": updates}
    return update(config, changes)


def scale_evaluation(evaluation: EvaluationSpec, scale: float) -> EvaluationSpec:
    """Return an evaluation with fewer episodes or steps, but enough to be meaningful."""
    if scale >= 1:
        return evaluation
    episodes, steps = evaluation.episodes, evaluation.steps
    return dataclasses.replace(
        evaluation,
        episodes=None if episodes is None else max(min(episodes, MIN_EPISODES), round(episodes * scale)),
        steps=None if steps is None else max(min(steps, MIN_STEPS), round(steps * scale)),
    )


def warmup_steps(config: Config) -> int:
    """Steps before the first update."""
    return config.finetune.warmup_steps if config.phase == "finetune" else config.warmup_steps


def learns(config: Config) -> bool:
    """Whether there are any updates: random actions have none."""
    return config.phase != "pretrain" or config.method.name != "random"


def count_updates(config: Config) -> int:
    """Updates of the whole run on samples of the replay; on-policy, those of f."""
    return config.effective.planned_updates * learns(config)


def _shorten(length: int, scale: float, total: int) -> int:
    return min(length, max(round(length * scale), total // SHARE))
