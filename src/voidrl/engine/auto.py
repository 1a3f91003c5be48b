"""Chooses the engine for `engine = "auto"` on CUDA. Does not import torch."""

from __future__ import annotations

from typing import Literal

from voidrl.config import Config
from voidrl.system.units import human_count

# Compiling takes about a minute and saves 0.5 to 1.1 ms of an update on an H200: it has paid for itself after
# 50k to 120k updates. What an earlier run has compiled does not count, or equal runs would round differently.
FEWEST_UPDATES = 200_000


def engine_for(config: Config, before: str | None = None) -> tuple[Literal["graph", "compile"], str]:
    """The engine, and the reason as the end of a sentence.

    Args:
        config: The config of the run.
        before: The engine of a run that is resumed, which keeps it: another one rounds differently.
    """
    if before == "graph":
        return "graph", "as before"
    if before == "compile":
        return "compile", "as before"
    if config.learner.on_policy:
        return "graph", "since updates on rollouts are not compiled"
    updates = human_count(config.effective.planned_updates)
    if config.effective.planned_updates < FEWEST_UPDATES:
        few = human_count(FEWEST_UPDATES)
        return "graph", f"since compiling pays from {few} updates on, and the run has {updates}"
    return "compile", f"since the run has {updates} updates, which pay for compiling"
