"""`--steps-scale`: the same experiment in fewer steps, and whether anything can still be learned in them.

Steps are multiplied. What comes before learning (warm-ups, the decay of exploration noise) keeps its length
as long as that is at most a fifth of the run, and is shortened to that otherwise; there are at least twenty
rows of metrics, and as many evaluations on the way as in the whole experiment.
"""

from __future__ import annotations

from typing import Any

from voidrl.config import Config, update
from voidrl.experiments.format import Evaluation

SHARE = 5  # of the run: one in five steps
ROWS = 20
LEAST_EPISODES = 3
LEAST_STEPS = 1000
FEW_UPDATES = 100


def scaled(config: Config, scale: float) -> Config:
    """The config of a run that is `scale` times as long."""
    if scale == 1:
        return config
    steps = max(1, round(config.steps * scale))
    log = config.log
    changes: dict[str, Any] = {
        "steps": steps,
        "log.snapshot_steps": tuple(max(1, round(step * scale)) for step in log.snapshot_steps),
    }
    if log.eval_every_steps:
        changes["log.eval_every_steps"] = max(1, round(log.eval_every_steps * scale))
    if scale < 1:
        changes["log.log_every_steps"] = min(log.log_every_steps, max(1, steps // ROWS))
        for name in ("epsilon_decay_steps", "stddev_decay_steps"):
            if hasattr(config.learner, name):
                changes[f"learner.{name}"] = _shortened(getattr(config.learner, name), scale, steps)
        before = "finetune.warmup_steps" if config.phase == "finetune" else "warmup_steps"
        changes[before] = _shortened(warmup_steps(config), scale, steps)
        config = update(config, changes)
        rising = _shortened(config.representation.warmup_updates, scale, updates(config))
        changes = {"representation.warmup_updates": rising}
    return update(config, changes)


def scaled_evaluation(evaluation: Evaluation, scale: float) -> Evaluation:
    """Fewer episodes or steps, but enough for a number to mean something."""
    if scale >= 1:
        return evaluation
    episodes, steps = evaluation.episodes, evaluation.steps
    return Evaluation(
        episodes=None if episodes is None else max(min(episodes, LEAST_EPISODES), round(episodes * scale)),
        steps=None if steps is None else max(min(steps, LEAST_STEPS), round(steps * scale)),
        count_states=evaluation.count_states,
    )


def warmup_steps(config: Config) -> int:
    """Steps before the first update."""
    return config.finetune.warmup_steps if config.phase == "finetune" else config.warmup_steps


def learns(config: Config) -> bool:
    """Whether there are any updates: random actions have none."""
    return config.phase != "pretrain" or config.method.name != "random"


def updates(config: Config) -> int:
    """Gradient steps of the whole run."""
    if not learns(config):
        return 0
    return max(0, int((config.steps - warmup_steps(config)) * config.updates_per_step))


def _shortened(length: int, scale: float, whole: int) -> int:
    return min(length, max(round(length * scale), whole // SHARE))
