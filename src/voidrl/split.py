"""Which part of a run each rank has: its environments are divided, and with them the columns of the replay.

A config describes the whole run, whatever the number of ranks. Lanes divide the environments of a rank again.
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
    require_lanes(env, size)
    if env.lanes > 1 and config.learner.on_policy:
        raise ConfigError(
            f"env.lanes = {env.lanes} cannot be used with learner {config.learner.name!r}, which learns from "
            f"rollouts of all environments at once: expected 1, or a learner that samples the replay, such "
            f"as dqn"
        )
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


def require_lanes(env: EnvConfig, size: int) -> None:
    """Refuse lanes into which the environments of `size` ranks cannot be divided."""
    if env.lanes == 1:
        return
    if env.backend == "tensor":
        raise ConfigError(
            f"env.lanes = {env.lanes} cannot be used with environment {env.id!r}, whose copies step together "
            f"on the device: expected 1"
        )
    for rank in range(min(size, env.num_envs)):
        count = len(ranks.ProcessGroup(rank, size).part(env.num_envs))
        if count % env.lanes:
            there = f", {count} of them on rank {rank} of {size}" if size > 1 else ""
            raise ConfigError(
                f"env.lanes = {env.lanes} cannot be used with env.num_envs = {env.num_envs}{there}: expected "
                f"lanes of equal size; use a multiple of {env.lanes * size} environments, or env.lanes = 1"
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


def env_parts(env: EnvConfig) -> list[tuple[EnvConfig, int]]:
    """The environments of each lane of this rank, and how many; states are counted in the first of all."""
    require_lanes(env, ranks.current().size)
    mine = ranks.current().part(env.num_envs)
    count, parts = len(mine) // env.lanes, []
    for first in range(mine.start, mine.start + count * env.lanes, count):
        part = env
        if env.count_states and 0 < env.counted_envs <= env.num_envs:
            counted = min(count, max(0, env.counted_envs - first))
            part = dataclasses.replace(env, count_states=counted > 0, counted_envs=counted)
        parts.append((part, count))
    return parts


def replay_part(config: Config) -> ReplayConfig:
    """The replay of this rank: as many rows as the whole has, with fewer columns."""
    here, num_envs = ranks.current(), config.env.num_envs
    if here.size == 1:
        return config.replay
    rows = -(-config.replay.capacity_steps // num_envs)
    return dataclasses.replace(config.replay, capacity_steps=rows * len(here.part(num_envs)))
