"""The part of a run that each rank has.

Environments are divided, and with them the columns of the replay. A config describes the whole run, for any
number of ranks.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from voidrl import dist
from voidrl.agent.encoder_training import Pieces, decide
from voidrl.config import Config, ReplayConfig, SkillConfig, flat, to_json
from voidrl.envs.tensor import is_tensor_env
from voidrl.errors import ConfigError, shown


def check_ranks(config: Config, pieces: Pieces, factory: Any, size: int) -> None:
    """Refuse a run that `size` ranks cannot divide."""
    env = config.env
    if size == 1:
        return
    batches = {"learner.batch_size": config.learner.batch_size}
    if decide(config, pieces).trains_representation:
        batches["representation.batch_size"] = config.representation.batch_size
    for name, batch_size in batches.items():
        if batch_size % size:
            raise ConfigError(
                f"{name} = {batch_size} cannot be divided among {size} ranks: expected a multiple of {size}; "
                f"use {max(1, batch_size // size) * size}"
            )
    if size > env.num_envs:
        raise ConfigError(
            f"env.num_envs = {env.num_envs} cannot be divided among {size} ranks: expected an environment "
            f"for each; start fewer ranks, or a new run with env.num_envs = {size}"
        )
    if is_tensor_env(factory):
        raise ConfigError(
            f"environments that were passed themselves cannot be divided among {size} ranks: pass a "
            f"function that takes num_envs and device, or its name as module:function"
        )
    if config.learner.on_policy:
        raise ConfigError(
            f"learner {config.learner.name!r} cannot train on {size} ranks: it learns from rollouts of all "
            f"environments at once; use 1 rank, or a learner that samples the replay, such as dqn"
        )
    if config.effective.adapts and isinstance(config.method, SkillConfig):
        raise ConfigError(
            f"an agent of method {config.method.name!r} cannot be fine-tuned on {size} ranks: one process "
            f"chooses its skill by the returns of the warm-up; use 1 rank"
        )


def require_same_config(config: Config) -> None:
    """Refuse ranks that were started with different options."""
    if dist.current().size == 1:
        return
    configs = [json.loads(text) for text in dist.all_gather_object(json.dumps(flat(to_json(config))))]
    for rank, values in enumerate(configs):
        for name in {**configs[0], **values}:
            first, other = (shown(each.get(name)) for each in (configs[0], values))
            if first != other:
                raise ConfigError(
                    f"{name} = {first} in rank 0 and {other} in rank {rank}: expected the same config in "
                    f"all ranks; start them with the same command, on the same files"
                )


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
