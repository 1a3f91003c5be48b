"""Makes everything that a run needs, except its folder: environments, agent, replay and engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

from voidrl import dist
from voidrl.agent import Agent
from voidrl.agent.combinations import check_ranks
from voidrl.agent.cost import update_gflop
from voidrl.agent.diagnosis import failed_piece
from voidrl.config import Config, EnvConfig
from voidrl.engine.engine import Engine
from voidrl.envs.ids import atari_game
from voidrl.envs.make import EnvFactory, make_envs
from voidrl.envs.suites.dmcontrol import OTHER_OBSERVATIONS, TASKS, find_dmc_task
from voidrl.envs.vector import Envs
from voidrl.errors import ConfigError, SpaceError
from voidrl.replay import make_replay
from voidrl.runs.checkpoint import Checkpoint
from voidrl.system.device import placed
from voidrl.system.machine import claim_cores
from voidrl.system.threads import cpu_threads
from voidrl.training.evaluating import MAX_EPISODES, OpenEnvs
from voidrl.training.metrics import import_wandb
from voidrl.training.saved_run import spec_of
from voidrl.types import EnvSpec

ATARI_EVAL_ENVS = 32  # more make the mean over whole episodes depend less on where steps end


class Parts(NamedTuple):
    """Everything that a run needs, except its folder; the engine has the agent and the replay."""

    engine: Engine
    envs: Envs
    eval_envs: OpenEnvs | None


@contextmanager
def assemble(
    config: Config, factory: EnvFactory | None, say: Callable[[str], None], saved: Checkpoint | None = None
) -> Iterator[Parts]:
    """Build a run, for its duration; combinations that cannot work are refused here.

    Args:
        config: The config, with nothing left to decide.
        factory: Makes one environment; None takes `config.env.id`.
        say: Shows a sentence to the user.
        saved: The checkpoint of a run that is resumed, whose spaces, threads and engine are kept.
    """
    if config.log.wandb_project:
        import_wandb()
    check_ranks(config, dist.current().size)
    place, meta = dist.own_device(config.device), {} if saved is None else saved.meta
    count, pretrains = len(dist.current().part(config.env.num_envs)), config.effective.pretrains
    with (
        claim_cores(),
        closing(make_envs(config.env, factory, count, pretraining=pretrains)) as envs,
        _eval_envs(config, factory) as eval_envs,
        placed(place, config.seed) as device,
        # Before the networks are made, as the rounding of their initial weights may depend on it.
        cpu_threads(
            device,
            update_gflop(envs.spec, config),
            fixed=config.cpu_threads,
            before=meta.get("cpu_threads"),
            say=say,
        ),
    ):
        if saved is not None:
            require_same_spaces(spec_of(saved), config.env.id, envs.spec, config.env.id)
        for notice in envs.reading.notices:
            say(notice)
        dist.place(device)
        try:
            agent = Agent(envs.spec, config, device)
        except Exception as error:
            if not (failure := failed_piece(config, error)):
                raise
            raise ConfigError(failure) from error
        dist.broadcast_([*agent.tensors().values()])  # of other hardware, rounded differently
        part = config.replay
        if dist.current().size > 1:  # as many rows as the whole has, with fewer columns
            rows = -(-part.capacity_steps // config.env.num_envs)
            part = dataclasses.replace(part, capacity_steps=rows * count)
        replay = make_replay(part, envs.spec, count, agent.method.skill_dim, device, say, agent.note_dim)
        with closing(Engine(agent, replay, say, before=meta.get("engine"))) as engine:
            yield Parts(engine, envs, eval_envs)


@contextmanager
def _eval_envs(config: Config, factory: EnvFactory | None) -> Iterator[OpenEnvs | None]:
    """A function that opens the evaluation environments, if any; only the first rank evaluates.

    With `log.eval_every_steps` they stay open. Otherwise fine-tuning opens them at its start and its end.
    """
    log = config.log
    at_ends = config.effective.adapts and log.eval_episodes > 0
    if not (log.eval_every_steps or at_ends) or not dist.current().is_main:
        yield None
        return
    env = dataclasses.replace(config.env, count_states=False)
    episodes = log.eval_episodes if log.eval_every_steps else min(log.eval_episodes, MAX_EPISODES)
    num_envs = evaluation_envs(config.env, episodes)
    make = partial(make_envs, env, factory, num_envs, evaluation=True)
    if not log.eval_every_steps:
        yield lambda: closing(make())
        return
    with closing(make()) as envs:
        yield lambda: nullcontext(envs)


def evaluation_envs(env: EnvConfig, episodes: int) -> int:
    """Environments played side by side: as many as in training; on Atari, where they cost little, 32."""
    return min(env.num_envs if atari_game(env.id) is None else ATARI_EVAL_ENVS, episodes)


def require_same_spaces(agent: EnvSpec, home: str, env: EnvSpec, name: str) -> None:
    """Refuse an agent from environment `home` in one with another body or other spaces."""
    mine, other = find_dmc_task(home), find_dmc_task(name)
    elsewhere = mine is not None and other is not None and mine.domain != other.domain
    if agent == env and not elsewhere:
        return
    fields = [k for k, v in agent.to_json().items() if v != env.to_json()[k]]
    ours, theirs = (", ".join(f"{k} {getattr(spec, k)}" for k in fields) for spec in (agent, env))
    remedy = "expected the same spaces on both sides"
    if mine is not None and other is not None:
        fitting = [task for task in TASKS[mine.domain] if f"{mine.domain}_{task}" not in OTHER_OBSERVATIONS]
        remedy = f"expected a task of domain {mine.domain!r}: {', '.join(fitting)}"
    if fields == ["num_actions"] and atari_game(name) and atari_game(home):
        remedy += "; with ?full_actions=true after the name, in pre-training too, all games have 18 actions"
    raise SpaceError(
        f"the agent was made for {home!r} with {agent.describe()} and environment {name!r} has "
        f"{env.describe()} ({ours} against {theirs}): {remedy}"
    )
