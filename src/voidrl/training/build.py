"""Builds a run: the environment's spec, then a config with nothing left to decide, then all objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, cast

import gymnasium as gym

from voidrl import dist
from voidrl.agent import Agent
from voidrl.agent.combinations import check_combination
from voidrl.agent.cost import update_gflop
from voidrl.agent.encoder_training import Pieces
from voidrl.config import (
    PIECES,
    AtariConfig,
    Config,
    DMControlConfig,
    EnvConfig,
    merge,
    registry,
    require,
    to_json,
    update,
)
from voidrl.engine.engine import Engine
from voidrl.envs.ids import ATARI, DMC, atari_game
from voidrl.envs.make import EnvFactory, make_envs, probe_env
from voidrl.envs.suites.dmcontrol import OTHER_OBSERVATIONS, TASKS, find_dmc_task
from voidrl.envs.tensor import TensorVectorEnv, is_tensor_env
from voidrl.envs.vector import Envs
from voidrl.errors import ConfigError, SpaceError, by_caller
from voidrl.nets.augment import network_spec, with_shift
from voidrl.nets.encoder import stack_for
from voidrl.presets.presets import NO_PRESET, default_preset
from voidrl.replay import make_replay
from voidrl.runs.checkpoint import Checkpoint
from voidrl.system.device import pick_device, placed
from voidrl.system.machine import claim_cores
from voidrl.system.threads import cpu_threads
from voidrl.system.units import human_count, human_seconds
from voidrl.training.evaluating import MAX_EPISODES, OpenEnvs
from voidrl.training.layers import ConfigLayer, Env, config_sources
from voidrl.training.metrics.loggers import import_wandb
from voidrl.training.saved_run import spec_of
from voidrl.training.split import replay_part, require_ranks
from voidrl.types import EnvSpec

ATARI_EVAL_ENVS = 32  # more make the mean over whole episodes depend less on where steps end
MLP_HIDDEN = 256  # width of the hidden layer in the encoder that `auto` gives to vectors
CPU_PRESET = "cpu"
CORE_GFLOP_PER_SECOND = 50.0  # of one core of a laptop, in an update
HOPELESS_SECONDS, TYPICAL_STEPS = 3600.0, 100_000


# Configs


class Probed(NamedTuple):
    """An environment's spec and settings, found before a run is built."""

    spec: EnvSpec
    env: EnvConfig
    """With the environment's defaults filled in."""
    factory: EnvFactory | None


def probe(env: Env, layers: Sequence[ConfigLayer]) -> Probed:
    """Look at the environment that the layers describe."""
    merged = merge(*(layer.values for layer in layers))
    values = merged.get("env", {})
    require(isinstance(values, Mapping), "env", values, "a mapping; the id is an argument of its own")
    config, factory = env_for(env, update(EnvConfig(), values, "env."))
    spec, config = probe_env(config, factory, merged.get("device", "auto"))
    return Probed(spec, config, factory)


def config_for(probed: Probed, layers: Sequence[ConfigLayer]) -> Config:
    """The config of a run in an environment that has been probed."""
    return build_config(probed.spec, [*(layer.values for layer in layers), {"env": to_json(probed.env)}])


def build_config(spec: EnvSpec, layers: Sequence[Mapping[str, Any]]) -> Config:
    """Merge defaults and layers; environment and method decide the values that are `auto`."""
    merged = merge(*layers)
    config = update(Config(), merged | name_pieces(spec, merged))
    seen = network_spec(spec, config.augment)
    config = dataclasses.replace(config, augment=with_shift(config.augment, spec.frame_shape[1:]))
    stack = stack_for(seen.obs_shape) if spec.pixels else "mlp"
    light = "paper" if stack == "nature" else stack  # for a CPU
    if stack == "nature" and not spec.discrete:
        stack = "drq"
    for kind in ("representation", "learner"):
        encoder = getattr(config, kind).encoder
        if spec.pixels and encoder.stack == "mlp":
            raise ConfigError(
                f"{kind}.encoder.stack = 'mlp' cannot be used with {spec.describe()}: expected convolutions; "
                f"DMControl from pixels has the presets urlb-pixels, dmc-paper and dmc-fast"
            )
        if encoder.stack in ("auto", "light"):
            chosen = light if encoder.stack == "light" else stack
            # LayerNorm straight on a linear map would forget the length of a vector.
            hidden = encoder.hidden_dim or (MLP_HIDDEN if chosen == "mlp" else 0)
            config = update(config, {f"{kind}.encoder": {"stack": chosen, "hidden_dim": hidden}})
    return config


def name_pieces(spec: EnvSpec, merged: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The given values of each piece, with `auto` resolved to a name."""
    pieces = {}
    for kind in PIECES:
        given = merged.get(kind, {})
        require(isinstance(given, Mapping), kind, given, "a name, a class or a mapping of values")
        pieces[kind] = {"name": getattr(Config(), kind).name, **given}
    method = registry.find("method", pieces["method"]["name"])
    if pieces["learner"]["name"] == "auto":
        pieces["learner"]["name"] = method.learner or ("dqn" if spec.discrete else "sac")
    if pieces["representation"]["name"] == "auto":
        pieces["representation"]["name"] = method.default_representation(spec)
    return pieces


def require_fitting(
    probed: Probed, config: Config, layers: Sequence[ConfigLayer] = (), size: int | None = None
) -> None:
    """Refuse pieces that cannot work together on `size` ranks, by default torchrun's; builds no network."""
    try:
        check_combination(probed.spec, config, Pieces.of(config))
    except ConfigError as error:
        kind, _, preset = config_sources(config, layers)["learner.name"].partition(" ")
        if kind != "protocol":
            raise
        raise ConfigError(f"{error} (preset {preset!r} sets learner {config.learner.name!r})") from None
    require_ranks(config, probed.factory, dist.expected_size() if size is None else size)


def cpu_preset_note(env: Env, spec: EnvSpec, config: Config) -> str:
    """A sentence if preset `cpu` should replace the defaults; "" where they are affordable.

    On a CPU they are not if the updates of 100K steps would take one core more than an hour.
    """
    per_step = config.updates_per_step * update_gflop(spec, config) / CORE_GFLOP_PER_SECOND
    if pick_device(config.device).type != "cpu" or per_step * TYPICAL_STEPS <= HOPELESS_SECONDS:
        return ""
    name = default_preset(env)
    steps = max(config.steps, TYPICAL_STEPS)
    keep = by_caller(f"preset={name or NO_PRESET!r}", f"--preset {name or NO_PRESET}")
    return (
        f"preset {CPU_PRESET}, since {human_count(steps)} steps with "
        f"{'the defaults' if name is None else f'preset {name}'} would take about "
        f"{human_seconds(per_step * steps)} on a CPU ({keep} keeps them)"
    )


def config_from_json(data: Any) -> Config:
    """The inverse of `to_json`."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"the config of a run is a {type(data).__name__}: expected a mapping")
    return update(Config(), data)


def env_for(env: Env, base: EnvConfig) -> tuple[EnvConfig, EnvFactory | None]:
    """The config of an id or a factory, with the other values of `base`; and the factory, if it is one."""
    if base.id.startswith(DMC) and not (isinstance(env, str) and env.startswith(DMC)):
        base = dataclasses.replace(base, dmc=DMControlConfig())  # options that no other environment has
    if base.id.startswith(ATARI) and not (isinstance(env, str) and env.startswith(ATARI)):
        base = dataclasses.replace(base, atari=AtariConfig())
    if isinstance(env, str):
        return dataclasses.replace(base, id=env), None
    if is_tensor_env(env):
        own = cast(TensorVectorEnv, env)
        base = dataclasses.replace(base, num_envs=own.num_envs, backend="tensor")
    elif not callable(env) or isinstance(env, gym.Env):
        raise ConfigError(
            f"environment {env!r} cannot be used: expected an id or a function that returns a gymnasium.Env"
        )
    # The () marks a callable object, such as a partial: importing its class would give something else.
    name = getattr(env, "__qualname__", f"{type(env).__qualname__}()")
    return dataclasses.replace(base, id=f"{env.__module__}:{name}"), cast(EnvFactory, env)


# Runs


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
    require_ranks(config, factory, dist.current().size)
    place, meta = dist.own_device(config.device), {} if saved is None else saved.meta
    count, pretrains = len(dist.current().part(config.env.num_envs)), config.effective.pretrains
    with (
        claim_cores(),
        closing(make_envs(config.env, factory, count, pretraining=pretrains, device=place)) as envs,
        _eval_envs(config, factory, place) as eval_envs,
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
        if config.effective.adapts and is_tensor_env(factory) and config.log.eval_episodes:
            say(
                "fine-tuning is not evaluated in environments that were passed as objects: to keep its best "
                "agent, pass a function that takes num_envs and device"
            )
        dist.place(device)
        agent = Agent(envs.spec, config, device)
        dist.broadcast_([*agent.tensors().values()])  # of other hardware, rounded differently
        size = envs.spec, envs.num_envs, agent.method.skill_dim
        replay = make_replay(replay_part(config), *size, device, say, agent.note_dim)
        with closing(Engine(agent, replay, say, before=meta.get("engine"))) as engine:
            yield Parts(engine, envs, eval_envs)


@contextmanager
def _eval_envs(config: Config, factory: EnvFactory | None, device: str) -> Iterator[OpenEnvs | None]:
    """A function that opens the evaluation environments, if any; only the first rank evaluates.

    With `log.eval_every_steps` they stay open. Otherwise fine-tuning opens them at its start and its end.
    """
    log = config.log
    if is_tensor_env(factory) and log.eval_every_steps:
        raise ConfigError(
            f"log.eval_every_steps = {log.eval_every_steps} cannot be used with environments that "
            f"were passed as objects, since evaluations would cut their episodes: pass a function that takes "
            f"num_envs and device, or set it to 0"
        )
    at_ends = config.effective.adapts and log.eval_episodes > 0 and not is_tensor_env(factory)
    if not (log.eval_every_steps or at_ends) or not dist.current().is_main:
        yield None
        return
    env = dataclasses.replace(config.env, count_states=False)
    episodes = log.eval_episodes if log.eval_every_steps else min(log.eval_episodes, MAX_EPISODES)
    num_envs = evaluation_envs(config.env, episodes)
    make = partial(make_envs, env, factory, num_envs, evaluation=True, device=device)
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
