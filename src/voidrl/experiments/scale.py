"""`--steps-scale`: an experiment with fewer or more steps.

Steps are multiplied. Warm-ups and the decay of exploration noise keep their length up to a fifth of the run,
and are shortened to that otherwise. Resets and the annealing of n and γ keep their share of
a shorter run. A run keeps at least twenty rows of metrics, and all its evaluations. An experiment's file may
exempt phases (`scaled`), such as fine-tuning where the result is the score after so many steps.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from voidrl.config import Config, flat, to_json, update
from voidrl.experiments.format import EvaluationSpec

DECAYS = ("epsilon_hold_steps", "epsilon_decay_steps", "stddev_decay_steps")
SHARE = 5  # one in five steps of the run
ROWS = 20
MIN_EPISODES = 3
MIN_STEPS = 1000


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
        lengths = flat(to_json(config))
        changes["log.log_every_steps"] = min(log.log_every_steps, max(1, steps // ROWS))
        warmup = "finetune.warmup_steps" if config.phase == "finetune" else "warmup_steps"
        for name in (warmup, *(f"learner.{name}" for name in DECAYS)):
            if lengths.get(name) is not None:
                changes[name] = _shorten(lengths[name], scale, steps)
        for name in ("reset.every_updates", "reset.last_steps", "learner.anneal_updates"):
            changes[name] = max(1, round(lengths[name] * scale)) if lengths[name] else 0
        config = update(config, changes)
        updates = _shorten(config.representation.warmup_updates, scale, count_updates(config))
        changes = {"representation.warmup_updates": updates}
    return update(config, changes)


def scale_evaluation(evaluation: EvaluationSpec, scale: float) -> EvaluationSpec:
    """Return an evaluation with fewer episodes or steps, but enough to be meaningful."""
    if scale >= 1:
        return evaluation
    lengths = {"episodes": (evaluation.episodes, MIN_EPISODES), "steps": (evaluation.steps, MIN_STEPS)}
    short: dict[str, Any] = {
        name: max(min(n, least), round(n * scale)) for name, (n, least) in lengths.items() if n is not None
    }
    return dataclasses.replace(evaluation, **short)


def learns(config: Config) -> bool:
    """Whether there are any updates: random actions have none."""
    return config.phase != "pretrain" or config.method.name != "random"


def count_updates(config: Config) -> int:
    """Updates of the whole run on samples of the replay; on-policy, those of f."""
    return config.effective.planned_updates * learns(config)


def _shorten(length: int, scale: float, total: int) -> int:
    return min(length, max(round(length * scale), total // SHARE))
