"""Training from scratch as fine-tuning does it: the config of a fine-tuning, without the pre-trained weights.

Every field of the config keeps its value, in the place where training from scratch reads it. Settings that
concern only pre-trained weights have no counterpart; `adaptations` describes them in words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from voidrl.config import Config

# Fields of `finetune` that hold from scratch, too, and the fields in which training from scratch reads them.
EQUIVALENT = {
    "steps": "steps",
    "updates_per_step": "updates_per_step",
    "warmup_steps": "warmup_steps",
    "learning_rate": "learner.learning_rate",
    "noise": "learner: start and end of its noise",
}
# Those that are about pre-trained weights. `adaptations` names each that matters.
ADAPTATION = (
    *("heads", "frozen_column", "encoder_learning_rate", "first_layer_learning_rate", "warmup_actions"),
    "adapt",
)
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


def adaptations(tuned: Config) -> Iterator[str]:
    """Sentences on how fine-tuning uses pre-trained weights, and what training from scratch does instead."""
    tuning, rate = tuned.finetune, tuned.effective.learning_rate
    if tuning.warmup_actions == "policy" and tuning.warmup_steps:
        yield (
            f"the pre-trained policy acts in the warm-up of {tuning.warmup_steps} steps; from scratch, "
            f"actions are uniformly random there"
        )
    if tuning.adapt:
        yield (
            f"the warm-up of fine-tuning lasts until rewards differ; from scratch it ends after "
            f"{tuning.warmup_steps} steps"
        )
        yield "fine-tuning scales rewards by the returns of its warm-up; from scratch, they are not scaled"
        yield "fine-tuning explores by detours, too; from scratch there are none"
    if tuning.frozen_column != "none":
        whose = "the learner's pre-trained encoder" if tuning.frozen_column == "learner" else "f"
        yield f"heads also read the features of {whose}, which is frozen; from scratch there is one encoder"
    known = "pre-trained " if tuning.frozen_column == "none" else ""
    parts = {
        f"{known}encoder": tuning.encoder_learning_rate,
        f"{known}first layer of the heads": tuning.first_layer_learning_rate,
    }
    for part, special in parts.items():
        if special is not None and special != rate:
            how = "is frozen" if special == 0 else f"has learning rate {special:g}"
            yield f"the {part} {how}; from scratch it has {rate:g}, as all weights"
