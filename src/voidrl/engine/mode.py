"""Whether updates run eagerly, captured, or compiled and captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from voidrl import dist, kernels
from voidrl.agent.agent import Agent
from voidrl.config import Config
from voidrl.errors import ConfigError, by_caller
from voidrl.system.units import human_count

Mode = Literal["eager", "graph", "compile"]
# Compiling takes about a minute and saves 0.5 to 1.1 ms of an update on an H200: it has paid for itself after
# 50k to 120k updates. What an earlier run has compiled does not count, or equal runs would round differently.
FEWEST_UPDATES = 200_000


def pick_mode(agent: Agent, before: str | None, say: Callable[[str], None]) -> Mode:
    """The engine of a config; where that is left to us, `say` gets it with the reason."""
    wanted, obstacle, group = agent.config.engine, "", dist.current()
    if agent.device.type != "cuda":
        there = "" if torch.cuda.is_available() else ", and torch sees no CUDA device here"
        obstacle = f"the networks are on {agent.device}{there}"
    elif not group.can_be_captured:
        obstacle = (
            f"{group.size} ranks exchange gradients by {group.backend}, which leaves the device (NCCL takes "
            f"a GPU for each rank)"
        )
    if obstacle and (wanted == "graph" or (wanted == "compile" and agent.device.type == "cuda")):
        raise ConfigError(f"engine = {wanted!r} cannot be used: {obstacle}; or use 'auto' or 'eager'")
    mode, reason = engine_for(agent.config, before)
    if wanted != "auto":
        mode, reason = wanted, ""
    elif obstacle:
        mode, reason = "eager", f"since {obstacle}"
    elif mode == "compile" and not kernels.usable(agent.task_skill):
        mode, reason = "graph", "since Triton, which compiling needs, does not work here"
    if mode == "compile":
        slow = "the first start takes about a minute, later ones of the same config some seconds"
        other = by_caller("engine = 'graph'", "--engine graph")
        reason = f"{reason}; {slow}; {other} starts at once" if reason else slow
    if reason and agent.learns:
        say(f"engine: {mode}, {reason}")
    return mode


def engine_for(config: Config, before: str | None = None) -> tuple[Mode, str]:
    """The engine on CUDA, and the reason as the end of a sentence.

    A run that is resumed keeps the engine that it had `before`: another one rounds differently.
    """
    if before == "graph":
        return "graph", "as before"
    if before == "compile":
        return "compile", "as before"
    if config.learner.on_policy:
        return "graph", "since updates on rollouts are not compiled"
    planned, few = config.effective.planned_updates, human_count(FEWEST_UPDATES)
    if planned < FEWEST_UPDATES:
        return "graph", f"since compiling pays from {few} updates on, and the run has {human_count(planned)}"
    return "compile", f"since the run has {human_count(planned)} updates, which pay for compiling"
