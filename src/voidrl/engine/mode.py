"""Whether updates run eagerly, captured, or compiled and captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from voidrl import dist, kernels
from voidrl.agent.agent import Agent
from voidrl.engine.auto import engine_for
from voidrl.errors import ConfigError, by_caller

Mode = Literal["eager", "graph", "compile"]


def pick_mode(agent: Agent, before: str | None, say: Callable[[str], None]) -> Mode:
    """The engine of a config; where that is left to us, `say` gets it with the reason."""
    wanted, obstacle = agent.config.engine, ""
    if agent.device.type != "cuda":
        there = "" if torch.cuda.is_available() else ", and torch sees no CUDA device here"
        obstacle = f"the networks are on {agent.device}{there}"
    elif not dist.current().can_be_captured:
        obstacle = (
            f"{dist.current().size} ranks exchange gradients by {dist.current().backend}, which leaves the "
            f"device (NCCL takes a GPU for each rank)"
        )
    mode: Mode
    if wanted == "auto":
        mode, reason = ("eager", f"since {obstacle}") if obstacle else engine_for(agent.config, before)
        if mode == "compile" and not kernels.usable(agent.task_skill):
            mode, reason = "graph", "since Triton, which compiling needs, does not work here"
    else:
        mode, reason = wanted, ""
    if obstacle and (wanted == "graph" or (wanted == "compile" and agent.device.type == "cuda")):
        raise ConfigError(f"engine = {wanted!r} cannot be used: {obstacle}; or use 'auto' or 'eager'")
    if mode == "compile":
        slow = "the first start takes about a minute, later ones of the same config some seconds"
        other = by_caller("engine = 'graph'", "--engine graph")
        reason = f"{reason}; {slow}; {other} starts at once" if reason else slow
    if reason and agent.learns:
        say(f"engine: {mode}, {reason}")
    return mode
