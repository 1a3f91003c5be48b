"""Training from scratch as fine-tuning does it: its config without the pre-trained weights."""

from __future__ import annotations

import dataclasses

from voidrl.config import Config

# Fields of `finetune` that are about pre-trained weights, and their values where these make no difference.
# From scratch, all others hold as well.
ADAPTATION = {
    "heads": "auto",
    "encoder_learning_rate": None,
    "first_layer_learning_rate": None,
    "warmup_actions": "random",
    "adapt": False,
}
NOISE = ("epsilon", "stddev")  # schedules of learners, from `…_start` to `…_end`


def scratch_config(tuned: Config) -> Config:
    """The config that trains from scratch exactly as this one fine-tunes."""
    tuning, learner = tuned.finetune, tuned.learner
    learner = dataclasses.replace(learner, learning_rate=tuned.effective.learning_rate)
    if tuning.noise == "end":
        ends = {f"{name}_start": getattr(learner, f"{name}_end", None) for name in NOISE}
        learner = dataclasses.replace(learner, **{k: v for k, v in ends.items() if v is not None})
    return dataclasses.replace(
        tuned,
        phase="train",
        updates_per_step=tuning.updates_per_step or tuned.updates_per_step,
        warmup_steps=tuning.warmup_steps,
        learner=learner,
    )


def adaptations(tuned: Config) -> list[str]:
    """Settings of a fine-tuning that have no counterpart from scratch: `finetune.adapt = True`."""
    values = {name: getattr(tuned.finetune, name) for name in ADAPTATION}
    return [f"finetune.{name} = {v!r}" for name, v in values.items() if v != ADAPTATION[name]]
