"""The part of a run that each rank has.

Environments are divided, and with them the columns of the replay. A config describes the whole run, for any
number of ranks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voidrl import dist
from voidrl.agent.encoder_training import Pieces, decide
from voidrl.config import Config, ReplayConfig, SkillConfig
from voidrl.envs.tensor import is_tensor_env
from voidrl.errors import ConfigError


def require_ranks(config: Config, factory: Any, size: int) -> None:
    """Refuse a run that `size` ranks cannot divide."""
    num_envs, learner, method = config.env.num_envs, config.learner, config.method
    batches = {"learner": learner.batch_size}
    pieces = Pieces.of(config)
    if decide(config, pieces).trains_representation:
        batches["representation"] = config.representation.batch_size
    counts = config.effective.uses_method and pieces.method.counts_visits
    counts = counts and not pieces.method.uses_latents(config)  # whose sample is that of all ranks
    chooses = config.effective.adapts and isinstance(method, SkillConfig)
    rows = [
        (n % size > 0, f"{kind}.batch_size = {n}", f"use {max(1, n // size) * size}, a multiple of {size}")
        for kind, n in batches.items()
    ]
    rows += [
        (is_tensor_env(factory), "an environment object", "pass a function that takes num_envs and device"),
        (learner.on_policy, f"rollouts of learner {learner.name!r}", "use 1 rank, or a learner such as dqn"),
        (counts, f"the visits of method {method.name!r}", "use 1 rank, or a representation such as simclr"),
        (chooses, f"fine-tuning of method {method.name!r}", "one chooses a skill for the task; use 1 rank"),
        (num_envs < size, f"env.num_envs = {num_envs}", f"start a run with {size} or more, or fewer ranks"),
    ]
    for is_refused, what, remedy in rows:
        if is_refused and size > 1:
            raise ConfigError(f"{what} cannot be divided among {size} ranks: {remedy}")


def replay_part(config: Config) -> ReplayConfig:
    """The replay of this rank: as many rows as the whole has, with fewer columns."""
    here, num_envs = dist.current(), config.env.num_envs
    if here.size == 1:
        return config.replay
    rows = -(-config.replay.capacity_steps // num_envs)
    return dataclasses.replace(config.replay, capacity_steps=rows * len(here.part(num_envs)))


@dataclass
class RankMetrics:
    """The experience of a rank's environments since the last row of metrics."""

    rewards: list[float] = field(default_factory=list)
    """One for each real step."""
    finished: list[tuple[float, int]] = field(default_factory=list)
    """Return and length of episodes."""
    visits: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """How often each cell was entered, since the run began."""
    trained: dict[str, float] = field(default_factory=dict)
    """Metrics of updates."""
    states: list[dict[str, np.ndarray]] = field(default_factory=list)
    """Counts of `env.count_states` in ranks other than the first."""

    def of_all_ranks(self) -> RankMetrics:
        """The metrics of all ranks together; metrics of updates are averaged."""
        parts: list[RankMetrics] = dist.all_gather_object(self)
        longest = max(len(part.visits) for part in parts)
        return RankMetrics(
            rewards=[reward for part in parts for reward in part.rewards],
            finished=[episode for part in parts for episode in part.finished],
            visits=np.sum([np.pad(each.visits, (0, longest - len(each.visits))) for each in parts], axis=0),
            trained={
                name: float(np.mean([part.trained[name] for part in parts if name in part.trained]))
                for name in self.trained
            },
            states=[states for part in parts for states in part.states],
        )
