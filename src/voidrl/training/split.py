"""Which part of a run each rank has: its environments are divided, and with them the columns of the replay.

A config describes the whole run, whatever the number of ranks.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from voidrl import ranks
from voidrl.config import Config, EnvConfig, ReplayConfig, flat, to_json
from voidrl.envs.tensor import is_tensor_env
from voidrl.errors import ConfigError, shown


def require_splittable(config: Config, factory: Any, size: int) -> None:
    """Refuse environments that `size` ranks cannot divide; batches and pieces are checked with the pieces."""
    env = config.env
    if size == 1:
        return
    if is_tensor_env(factory):
        raise ConfigError(
            f"environments that were passed themselves cannot be divided among {size} ranks: pass a "
            f"function that takes num_envs and device, or its name as module:function"
        )
    if size > env.num_envs:
        raise ConfigError(
            f"env.num_envs = {env.num_envs} cannot be used on {size} ranks: expected an environment for "
            f"each; start fewer ranks, or a new run with env.num_envs = {size}"
        )
    if config.learner.on_policy:
        raise ConfigError(
            f"learner {config.learner.name!r} cannot be used on {size} ranks: it learns from rollouts "
            f"of all environments at once; use 1 rank, or a learner that samples the replay, such as dqn"
        )
    least = config.learner.longest_n_step
    capacity = config.replay.capacity_steps // env.num_envs
    if capacity < least:
        raise ConfigError(
            f"replay.capacity_steps = {config.replay.capacity_steps} cannot be used with env.num_envs = "
            f"{env.num_envs} on {size} ranks: expected at least {least} steps of each environment, as "
            f"long as a return; use {least * env.num_envs} or more"
        )


def require_same_config(config: Config) -> None:
    """Refuse ranks that were started with different options, which would train different agents."""
    if ranks.current().size == 1:
        return
    configs = [json.loads(text) for text in ranks.all_gather_object(json.dumps(flat(to_json(config))))]
    for rank, values in enumerate(configs):
        for field in {**configs[0], **values}:
            first, other = (shown(each.get(field)) for each in (configs[0], values))
            if first != other:
                raise ConfigError(
                    f"{field} = {first} in rank 0 and {other} in rank {rank}: expected the same config in "
                    f"all ranks; start them with the same command, on the same files"
                )


def env_part(env: EnvConfig) -> tuple[EnvConfig, int]:
    """The environments of this rank, and how many they are."""
    return env, len(ranks.current().part(env.num_envs))


def replay_part(config: Config) -> ReplayConfig:
    """The replay of this rank: as many rows as the whole has, with fewer columns."""
    here, num_envs = ranks.current(), config.env.num_envs
    if here.size == 1:
        return config.replay
    rows = -(-config.replay.capacity_steps // num_envs)
    return dataclasses.replace(config.replay, capacity_steps=rows * len(here.part(num_envs)))
