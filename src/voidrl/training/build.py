"""From an environment, a preset and changes to a config; from a config to everything that a run needs.

Layers of values, later ones win: defaults < protocol < recipe < command. `config_sources` says which of them
a value comes from.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from voidrl import dist
from voidrl.agent import Agent
from voidrl.agent.combinations import check_combination
from voidrl.agent.cost import update_gflop
from voidrl.agent.diagnosis import failed_piece
from voidrl.agent.encoder_training import Pieces
from voidrl.config import (
    PIECES,
    AtariConfig,
    BonusConfig,
    Config,
    DMControlConfig,
    EnvConfig,
    LearnerConfig,
    flat,
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
from voidrl.errors import ConfigError, SpaceError
from voidrl.methods.base import Latents, Method, Option
from voidrl.nets.augment import network_spec, with_shift
from voidrl.nets.encoder import stack_for
from voidrl.nets.observations import stored_obs_shape
from voidrl.presets.presets import (
    AGENTS,
    NO_PRESET,
    bonus_recipe,
    default_preset,
    protocol_for,
    recipe,
    without_representation,
)
from voidrl.replay import Replay, make_replay
from voidrl.representations.base import Views
from voidrl.system.device import placed, seeded
from voidrl.system.threads import cpu_threads
from voidrl.training.best import MAX_EPISODES, OpenEnvs
from voidrl.training.metrics.loggers import import_wandb
from voidrl.training.split import check_ranks, replay_part, require_same_config
from voidrl.types import Batch, EnvSpec

Env = str | EnvFactory | TensorVectorEnv
Overrides = Mapping[str, Any] | Config
ATARI_EVAL_ENVS = 32  # more make the mean over whole episodes depend less on where steps end
BONUS_COEFFICIENT = 0.05  # of a bonus whose method's recipe says nothing else
MLP_HIDDEN = 256  # width of the hidden layer in the encoder that `auto` gives to vectors
AS_FINETUNED = {  # fields of `finetune`, and what they are for an agent that is trained from scratch
    "steps": "steps",
    "updates_per_step": "updates_per_step",
    "warmup_steps": "warmup_steps",
    "learning_rate": "learner.learning_rate",
}


# Layers of values


class ConfigLayer(NamedTuple):
    """Values of a config, nested, and where they come from."""

    source: str
    values: Mapping[str, Any]


def layers_for(
    env: Env,
    phase: str,
    preset: str | None = None,
    config: Overrides | None = None,
    arguments: Mapping[str, Any] | None = None,
    *,
    shared: Mapping[str, Any] | None = None,
    bonus: str | type[Method] | None = None,
    run_code: bool = True,
) -> list[ConfigLayer]:
    """The layers of a run that starts from scratch: protocol, recipe and command.

    Naming a piece replaces that piece alone. Another representation keeps the protocol's shape of f and drops
    what the recipe says about its own, a shared stack included. Another learner keeps the protocol's values
    for what all learners have. Training from scratch is set up as fine-tuning is, so that the two can be
    compared.

    Args:
        env: The environment.
        phase: `pretrain` or `train`.
        preset: By default the environment's own.
        config: Changes, or a whole `Config`, which leaves out protocol and recipe.
        arguments: More changes, which win over `config`.
        shared: Changes that all runs of an experiment have in common; in `train`, the values for fine-tuning
            win over them.
        bonus: In `train`, the method whose reward is added to the task's, with its recipe.
        run_code: Whether a method that is named as `module:name` may be imported, to see whether it has a
            learner of its own.
    """
    arguments = {**(arguments or {}), "phase": phase}
    if bonus is not None:
        arguments = _with_bonus(bonus, merge(changes(config), arguments), arguments)
    if isinstance(config, Config):
        if preset is not None:
            raise ConfigError(
                f"preset = {preset!r} cannot be used with a whole voidrl.Config, which has a value for every "
                f"field: pass one of the two, or the changes alone as a mapping"
            )
        values = to_json(config)
        if bonus is not None and not config.bonus.coefficient:
            values["bonus"]["coefficient"] = BONUS_COEFFICIENT
        return [ConfigLayer("config", values), ConfigLayer("command", arguments)]
    preset = None if preset == NO_PRESET else preset or default_preset(env)
    command = merge(changes(config), arguments)
    named = merge(shared or {}, command)
    method = piece_name("method", named) or Config().method.name
    learner, representation = (piece_name(kind, named) for kind in ("learner", "representation"))
    # The learner of a method that has one of its own, and of its recipe.
    own = registry.find("method", method).learner if run_code or ":" not in method else ""
    learner = learner if learner not in (None, "auto") else own or learner
    task = find_dmc_task(env) if isinstance(env, str) else None
    domain = None if task is None else task.domain
    protocol, chosen = protocol_for(env, preset), recipe(method, preset, representation, domain)
    given = piece_name("learner", protocol)
    if learner not in (None, own or given):
        chosen = _with_common_fields(chosen)
    if learner not in (None, given):
        protocol = _with_common_fields(protocol)
    if representation not in (None, piece_name("representation", chosen)):
        chosen = without_representation(chosen)
    if phase == "train" and "log" in protocol:  # snapshots are taken of pre-training
        protocol = {**protocol, "log": {k: v for k, v in protocol["log"].items() if k != "snapshot_steps"}}
    below = [ConfigLayer(f"protocol {preset}", protocol), ConfigLayer(f"recipe {method}", chosen)]
    if bonus is not None:
        below.append(ConfigLayer(f"bonus {method}", _bonus_values(method, preset, protocol)))
    below.append(ConfigLayer("experiment", merge(shared or {})))
    scratch = _as_finetuned([*below, ConfigLayer("command", command)]) if phase == "train" else []
    return _with_implied([*below, *scratch, ConfigLayer("command", command)], phase)


def _with_bonus(
    bonus: str | type[Method], command: Mapping[str, Any], arguments: dict[str, Any]
) -> dict[str, Any]:
    """The arguments with the method of a bonus, which must not be named in two ways."""
    name, other = registry.name_of("method", registry.find("method", bonus)), piece_name("method", command)
    if other not in (None, name):
        raise ConfigError(
            f"bonus = {name!r} cannot be used with method = {other!r}: both name the method whose reward is "
            f"added to the task's; leave one of them out"
        )
    return merge(arguments, {"method": bonus})


def _bonus_values(method: str, preset: str | None, protocol: Mapping[str, Any]) -> dict[str, Any]:
    """What a method takes as a bonus, in every preset.

    An agent whose f is the learner's encoder keeps it so, unless the method is defined by an f of its own.
    """
    values = merge({"bonus.coefficient": BONUS_COEFFICIENT}, bonus_recipe(method))
    cls = registry.find("method", method)
    own = cls.image_representation == "fixed" or "default_representation" in vars(cls)
    if own and preset in AGENTS and piece_name("representation", protocol) == "learner":
        values["representation"] = {"name": "auto"}
    return values


def _with_common_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without those of the learner that other learners do not have."""
    common = {f.name for f in dataclasses.fields(LearnerConfig)} - {"name"}
    return {**values, "learner": {k: v for k, v in values.get("learner", {}).items() if k in common}}


def finetune_layers(
    pretrained: Config, config: Overrides | None, arguments: Mapping[str, Any] | None = None
) -> list[ConfigLayer]:
    """The layers of a run that adapts a pre-trained agent."""
    command = merge(changes(config), {**(arguments or {}), "phase": "finetune"})
    if "warmup_steps" in command and not isinstance(config, Config):
        raise ConfigError(
            f"warmup_steps = {command['warmup_steps']} cannot be used while fine-tuning: it is the random "
            f"warm-up of pre-training; use finetune.warmup_steps"
        )
    before, own = to_json(task_config(pretrained)), pretrained.learner.name
    other = piece_name("learner", command)
    if other == "auto":
        command = merge(command, {"learner": {"name": own}})
    elif other not in (None, own):
        before = _with_other_learner(before, own, other, command)
    layers = [ConfigLayer("pre-trained run", before), ConfigLayer("command", command)]
    return _with_implied(layers, "finetune")


def _with_other_learner(
    before: dict[str, Any], trained_by: str, learner: str, command: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of a pre-trained run without those of its learner, all but the encoder's."""
    heads = command.get("finetune", {}).get("heads", "random")
    if heads != "random":
        raise ConfigError(
            f"finetune.heads = {heads!r} cannot be used with learner {learner!r}: the agent was pre-trained "
            f"by {trained_by!r}, whose heads it does not have; use 'random', which keeps the encoder alone"
        )
    encoder = {"learner": {"encoder": before["learner"]["encoder"]}}
    others = {name: value for name, value in before.items() if name != "learner"}
    return merge(others, encoder, {"finetune": {"heads": "random"}})


def _with_implied(layers: Sequence[ConfigLayer], phase: str) -> list[ConfigLayer]:
    """The layers, with one for what `finetune.frozen_column` implies."""
    found = implied_by_column([layer.values for layer in layers], phase)
    if found is None:
        return [*layers]
    place, values = found
    return [*layers[:place], ConfigLayer("finetune.frozen_column", values), *layers[place:]]


def implied_by_column(layers: Sequence[Mapping[str, Any]], phase: str) -> tuple[int, dict[str, Any]] | None:
    """What `finetune.frozen_column` implies, and before which layer; None if nothing is frozen.

    No pre-trained head reads the features of two encoders, and a learning rate that protects a pre-trained
    encoder is not meant for a new one. While fine-tuning no loss trains the f that stays; the first layer is
    then the config of the pre-trained run, which has settled the rest if it names the field itself.
    """
    names = [merge(layer).get("finetune", {}).get("frozen_column") for layer in layers]
    last = max((i for i, name in enumerate(names) if name is not None), default=0)
    if names[last] in (None, "none"):
        return None
    tunes = phase == "finetune"
    values: dict[str, Any] = {"representation": {"auxiliary": False}} if tunes else {}
    if last > 0 or not tunes:
        values["finetune"] = {"heads": "random", "encoder_learning_rate": None}
    return max(last, 1) if tunes else last, values


def changes(config: Overrides | None) -> dict[str, Any]:
    """Changes to a config as a mapping."""
    if isinstance(config, Config):
        return dict(to_json(config))
    require(isinstance(config, Mapping | None), "config", config, "a mapping of values or a voidrl.Config")
    return dict(config or {})


def task_config(pretrained: Config) -> Config:
    """The config with which an agent of this one is fine-tuned, before any changes to it."""
    tuning, learner = pretrained.finetune, pretrained.learner
    rate = tuning.learning_rate or learner.learning_rate
    return dataclasses.replace(
        pretrained,
        phase="finetune",
        steps=tuning.steps or pretrained.steps or Config.steps,  # an untrained agent has 0
        updates_per_step=tuning.updates_per_step or pretrained.updates_per_step,
        learner=dataclasses.replace(learner, learning_rate=rate),
        # None, so that changes to either field count.
        finetune=dataclasses.replace(tuning, updates_per_step=None, learning_rate=None),
        # That of an agent trained from scratch belongs to its task.
        bonus=pretrained.bonus if pretrained.phase == "pretrain" else BonusConfig(),
        replay=dataclasses.replace(pretrained.replay, data=None),  # as this and the snapshots
        log=dataclasses.replace(pretrained.log, snapshot_steps=()),  # were of pre-training
    )


def _as_finetuned(layers: Sequence[ConfigLayer]) -> Iterator[ConfigLayer]:
    """Equal to a fine-tuned agent in all that is not pre-trained."""
    tuning = merge(*(layer.values for layer in layers)).get("finetune", {})
    for name, field in AS_FINETUNED.items():
        if tuning.get(name) is not None:
            source = [layer.source for layer in layers if name in layer.values.get("finetune", {})][-1]
            yield ConfigLayer(source, merge({field: tuning[name]}))


def piece_name(kind: str, values: Mapping[str, Any]) -> str | None:
    """The name of a piece in nested values; None if they name none."""
    piece = values.get(kind)
    name = piece.get("name") if isinstance(piece, Mapping) else None
    if isinstance(name, type):
        return registry.name_of(kind, registry.find(kind, name))
    return name if isinstance(name, str) else None


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
    """Defaults, then the layers in turn; what is `auto` is decided by environment and method."""
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
    """The given values of method, representation and learner, with `auto` resolved to a name."""
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


def require_fitting(probed: Probed, config: Config, size: int | None = None) -> None:
    """Refuse what cannot work together on `size` ranks, those of torchrun by default; builds no network."""
    check_combination(probed.spec, config, Pieces.of(config))
    require_ranks(config, probed.factory, dist.expected_size() if size is None else size)


def require_ranks(config: Config, factory: EnvFactory | None, size: int) -> None:
    """Refuse a run that `size` ranks cannot divide."""
    check_ranks(config, Pieces.of(config), factory, size)


def with_files(config: Config, pretrained: Config | None) -> Config:
    """The config of a new run, with a description of the files from which it has given weights."""
    representation = config.representation
    cls = registry.find("representation", representation.name)
    before = None if pretrained is None else pretrained.representation
    if before is not None and before.name != representation.name:
        return config  # the weights will not fit, which is said with their names
    return dataclasses.replace(config, representation=cls.describe_files(representation, before))


def config_sources(config: Config, layers: Sequence[ConfigLayer]) -> dict[str, str]:
    """Where the value of each field comes from.

    A layer's source, `default`, `environment` where `auto` was decided by it, or `method NAME` where that
    decided.
    """
    defaults = flat(to_json(update(Config(), {kind: getattr(config, kind).name for kind in PIECES})))
    method = f"method {config.method.name}"
    chosen = method if registry.find("method", config.method.name).learner else "environment"
    automatic = {"learner.name": chosen, "representation.name": method}
    given_by = [(layer.source, flat(layer.values)) for layer in layers]
    found = {}
    for field, value in flat(to_json(config)).items():
        source, given = automatic.get(field, "default"), defaults[field]
        for layer, values in given_by:
            if field in values and not (field in automatic and values[field] == "auto"):
                source, given = layer, to_json(values[field])
        resolved = given != value and not isinstance(given, type)  # a class has become its name
        found[field] = ("command" if field == "env.id" else "environment") if resolved else source
    return found


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
    # A callable object, such as a partial, is not what its class's name would import: the () says so.
    name = getattr(env, "__qualname__", f"{type(env).__qualname__}()")
    return dataclasses.replace(base, id=f"{env.__module__}:{name}"), cast(EnvFactory, env)


# Runs


class Assembly(NamedTuple):
    """Everything that a run needs, except its folder."""

    envs: Envs
    eval_envs: OpenEnvs | None
    agent: Agent
    replay: Replay
    engine: Engine


@contextmanager
def assemble(
    config: Config,
    factory: EnvFactory | None,
    say: Callable[[str], None],
    *,
    trained_in: EnvSpec | None = None,
    threads: int | None = None,
    engine: str | None = None,
) -> Iterator[Assembly]:
    """Build a run, for its duration; combinations that cannot work are refused here.

    Args:
        config: The config, with nothing left to decide.
        factory: Makes one environment; None takes `config.env.id`.
        say: Takes what the user should know, as sentences.
        trained_in: The spaces of a run that is resumed, which must still be the same.
        threads: The number of CPU threads that this run had so far.
        engine: The engine that it had so far.
    """
    if config.log.wandb_project:
        import_wandb()
    require_ranks(config, factory, dist.current().size)
    require_same_config(config)
    place = dist.own_device(config.device)
    with (
        closing(_make_envs(config, factory, place)) as envs,
        _eval_envs(config, factory, place) as eval_envs,
        placed(place, config.seed) as device,
        # Before the networks are made, as the rounding of their initial weights may depend on it.
        cpu_threads(
            device, update_gflop(envs.spec, config), fixed=config.cpu_threads, before=threads, say=say
        ),
    ):
        if trained_in is not None:
            require_same_spaces(trained_in, config.env.id, envs.spec, config.env.id)
        for notice in envs.reading.notices:
            say(notice)
        if config.phase == "finetune" and is_tensor_env(factory) and config.log.eval_episodes:
            say(
                "fine-tuning is not evaluated in environments that were passed themselves: to keep its best "
                "agent, pass a function that takes num_envs and device"
            )
        dist.place(device)
        agent = Agent(envs.spec, config, device)
        dist.broadcast_([*agent.tensors().values()])  # of other hardware, rounded differently
        size = envs.spec, envs.num_envs, agent.method.skill_dim
        replay = make_replay(replay_part(config), *size, device, say, agent.note_dim)
        with closing(Engine(agent, replay, say, before=engine)) as runner:
            yield Assembly(envs, eval_envs, agent, replay, runner)


def _make_envs(config: Config, factory: EnvFactory | None, device: str) -> Envs:
    """The training environments of this rank."""
    env, count = config.env, len(dist.current().part(config.env.num_envs))
    try:
        return make_envs(env, factory, count, pretraining=config.phase == "pretrain", device=device)
    except ConfigError as error:
        if factory is None and "cannot be imported" in str(error) and "env=…" not in str(error):
            raise ConfigError(f"{error}; or pass the factory as env=…") from error
        raise


@contextmanager
def _eval_envs(config: Config, factory: EnvFactory | None, device: str) -> Iterator[OpenEnvs | None]:
    """A function that opens the evaluation environments, if any; of several ranks the first evaluates.

    With `log.eval_every_steps` they stay open. Otherwise fine-tuning opens them only at its start and end.
    """
    log = config.log
    at_ends = config.phase == "finetune" and log.eval_episodes > 0 and not is_tensor_env(factory)
    if not (log.eval_every_steps or at_ends) or not dist.current().is_main:
        yield None
        return
    if is_tensor_env(factory):
        raise ConfigError(
            f"log.eval_every_steps = {log.eval_every_steps} cannot be used with environments that "
            f"were passed themselves, since evaluations would cut their episodes: pass a function that takes "
            f"num_envs and device, or set it to 0"
        )
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


@torch.no_grad()
def rehearse_reward(agent: Agent) -> None:
    """Ask the method for rewards of made-up states, so that what cannot work fails before training."""
    if not (agent.uses_method and agent.learns) or agent.learner.rollout_steps:
        return
    n, spec, device = agent.config.learner.batch_size, agent.spec, agent.device
    dtype = torch.uint8 if spec.pixels else torch.float32
    obs = torch.zeros(n, *stored_obs_shape(spec), dtype=dtype, device=device)
    one = torch.ones(n, device=device)

    def z(count: int = n) -> Tensor:
        return torch.randn(count, agent.representation.dim, device=device)

    with seeded(agent.config.seed, device):
        skill = agent.method.sample_skill(torch.zeros(n, dtype=torch.int64, device=device))
        note = torch.ones(n, agent.note_dim, device=device)
        batch = Batch(obs, agent.random_actions(obs), one, one, obs, skill, one, one, note)
        copied = copy.deepcopy(agent.method)  # running means must not move
        try:
            latents = Latents(z, z, z, lambda longest: Option(z(), z(), one, one), agent.representation)
            reward = copied.reward(batch, latents)
        except Exception as error:
            failure = failed_piece(agent, error)
            if failure is None:
                raise
            raise ConfigError(
                f"{failure} ({type(error).__name__}: {error}), given {n} made-up transitions"
            ) from error
    expected = (n, agent.method.reward_dim) if agent.method.reward_dim else (n,)
    if reward.shape != expected:
        raise ConfigError(
            f"method {agent.config.method.name!r} gave rewards of shape {tuple(reward.shape)} for {n} "
            f"transitions: expected {expected}"
        )


def rehearse_representation(agent: Agent) -> None:
    """Try a custom representation on made-up transitions, so that a mistake is a sentence before training."""
    representation, name = agent.representation, agent.config.representation.name
    if ":" not in name:
        return
    spec, device, n = agent.spec, agent.device, 2
    zeros = np.zeros((n, *spec.stored_shape), np.uint8 if spec.pixels else np.float32)
    replay = Replay(spec, n, 16 * n, 0, device, device)
    with seeded(agent.config.seed, device), agent.precision():
        replay.reset(zeros)
        for _ in range(8):
            action = agent.random_actions(replay.latest()).cpu().numpy()
            no = np.zeros(n, bool)
            replay.add(action, np.zeros(n), no, no, zeros, torch.zeros(n, 0, device=device))
        copied = copy.deepcopy(representation)  # running statistics must not move
        segment = replay.segment(replay.sample(2), 1, 1.0)
        try:
            z = copied.encode(replay.observations(segment.slots[:, 0]))
            learner = agent.learner if copied.reads_learner else None
            views = Views(replay, segment, agent.augment, copied.layout, learner)
            returned = copied.train().loss(views) if copied.has_loss else None
        except Exception as error:
            raise ConfigError(
                f"representation {name!r} fails on 2 made-up transitions ({type(error).__name__}: {error})"
            ) from error
    if z.shape != (2, copied.dim):
        raise ConfigError(
            f"encode of representation {name!r} maps 2 observations to {tuple(z.shape)}: expected "
            f"(2, {copied.dim}), since its dim is {copied.dim}"
        )
    if returned is None:
        return
    fits = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)
    if not fits or not isinstance(returned[0], Tensor) or returned[0].shape not in ((), (2,)):
        given = getattr(returned[0] if fits else returned, "shape", type(returned).__name__)
        given = tuple(given) if not isinstance(given, str) else given
        raise ConfigError(
            f"loss of representation {name!r} returned {given}: expected a scalar tensor, or one loss for "
            f"each transition, and a dictionary of metrics"
        )
    if not returned[0].requires_grad:
        raise ConfigError(
            f"loss of representation {name!r} has no gradient: expected one that depends on trainable "
            f"weights; look for .detach() or torch.no_grad()"
        )


def require_same_spaces(agent: EnvSpec, home: str, env: EnvSpec, name: str) -> None:
    """Refuse to put an agent from environment `home` into another body, or one that looks different."""
    mine, other = find_dmc_task(home), find_dmc_task(name)
    if mine is not None and other is not None and mine.domain != other.domain:
        raise SpaceError(
            f"the agent was made for {home!r} with {agent.describe()} and environment {name!r} has "
            f"{env.describe()}: expected a task of domain {mine.domain!r}, not of {other.domain!r}"
        )
    if agent == env:
        return
    fields = [k for k, v in agent.to_json().items() if v != env.to_json()[k]]
    ours, theirs = (", ".join(f"{k} {getattr(spec, k)}" for k in fields) for spec in (agent, env))
    remedy = "expected the same spaces on both sides"
    if mine is not None and other is not None:
        fitting = [task for task in TASKS[mine.domain] if f"{mine.domain}_{task}" not in OTHER_OBSERVATIONS]
        remedy += f"; those of the domain itself have its tasks {', '.join(fitting)}"
    if fields == ["num_actions"] and atari_game(name) and atari_game(home):
        remedy += "; with ?full_actions=true after the name, in pre-training too, all games have 18 actions"
    raise SpaceError(
        f"the agent was made for {home!r} with {agent.describe()} and environment {name!r} has "
        f"{env.describe()} ({ours} against {theirs}): {remedy}"
    )
