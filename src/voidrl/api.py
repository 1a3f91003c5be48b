"""pretrain · finetune · train · evaluate · resume · load."""

from __future__ import annotations

import copy
import dataclasses
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from voidrl import checkpoint, registry
from voidrl.agent import Agent
from voidrl.config import PIECES, Config, DMControlConfig, EnvConfig, merge, require, to_json, update
from voidrl.device import placed, seeded
from voidrl.engine import Engine
from voidrl.envs.ids import DMC, atari_game, is_importable, parse_id
from voidrl.envs.make import EnvFactory, make_envs, probe_env
from voidrl.envs.vector import Envs
from voidrl.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailedError,
    RunFolderError,
    SpaceError,
    VoidrlError,
)
from voidrl.evaluation import Evaluation, evaluate_agent
from voidrl.loop import Loop, LoopState, load_run
from voidrl.methods.base import Latents, Method
from voidrl.metrics import import_wandb
from voidrl.protocols.presets import preset_for
from voidrl.registry import import_path
from voidrl.replay import make_replay
from voidrl.runs.folder import RunFolder, default_run_path
from voidrl.sharing import pretrained as share
from voidrl.suites.dmcontrol import OTHER_OBSERVATIONS, TASKS, find_dmc_task, require_task
from voidrl.types import Batch, EnvSpec
from voidrl.units import human_seconds, parse_count

Env = str | EnvFactory
Overrides = Mapping[str, Any] | Config
Steps = int | str
ATARI_EVAL_ENVS = 32  # the more there are, the less the mean over whole episodes depends on where steps end;
STEPS_PER_EVAL_ENV = 500  # but each takes a while to build
NATURE_LEAST = 36  # pixels a side: below, its strides leave nothing
MLP_HIDDEN = 256  # of the encoder that `auto` gives to vectors


def pretrain(
    env: Env,
    method: str | type[Method] | None = None,
    *,
    steps: Steps | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    preset: str | None = None,
    config: Overrides | None = None,
    device: str | None = None,
    overwrite: bool = False,
) -> Agent:
    """Train an agent without the environment's reward.

    Args:
        env: `atari/<game>`, `dmc/<domain>`, a Gymnasium id (options as a query:
            `voidrl/PixelMaze-v0?size=13`), `module:factory`, or a function that returns a `gymnasium.Env`.
        method: What is rewarded: a name from `voidrl list methods`, `module:Class`, or a `Method` class. By
            default what `config` or `preset` say, else `apt`.
        steps: Environment steps; `"1M"`, `"100k"` and `1e6` are understood.
        seed: Of everything random.
        out: The run folder; by default a new one under `runs/`.
        preset: A name from `voidrl list presets`; by default `atari-paper` for Atari, `urlb-states` for
            DMControl, and none for others.
        config: Changes to the config, nested or dotted: `{"learner.n_step": 3}`.
        device: `auto`, `cpu`, `cuda`.
        overwrite: Replace the run in `out`.
    """
    layers = [*_settings(env, preset, config, "pretrain"), {} if method is None else {"method": method}]
    layers += [_given(steps, seed, device), {"phase": "pretrain"}]
    return _start(env, layers, out, overwrite)


def train(
    env: Env,
    *,
    steps: Steps | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    preset: str | None = None,
    config: Overrides | None = None,
    device: str | None = None,
    overwrite: bool = False,
) -> Agent:
    """Train the learner from scratch on the environment's own reward. Arguments as in `pretrain`.

    Where the preset says how long agents are fine-tuned, this takes as many steps, for comparison.
    """
    layers = [*_settings(env, preset, config, "train"), _given(steps, seed, device), {"phase": "train"}]
    return _start(env, layers, out, overwrite)


def finetune(
    source: Agent | str | Path,
    env: Env | None = None,
    *,
    steps: Steps | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    config: Overrides | None = None,
    device: str | None = None,
    overwrite: bool = False,
) -> Agent:
    """Adapt a pre-trained agent to the environment's reward. The agent given is left as it is.

    Args:
        source: An agent, the folder of a run, a checkpoint or a saved agent, or the Hub's `user/name` of one.
        env: The task; by default the environment of pre-training.
        steps: Environment steps; by default what `config.finetune.steps` says.
        seed: By default the one of pre-training.
        out: The run folder; by default a new one under `runs/`.
        config: Changes to the config of pre-training, for instance `{"finetune.heads": "random"}`.
        device: `auto`, `cpu`, `cuda`; by default the one of pre-training.
        overwrite: Replace the run in `out`.
    """
    pretrained = source if isinstance(source, Agent) else load(source, device="cpu")
    old = pretrained.config
    if not pretrained.learns:
        raise ConfigError(
            f"an agent of method {old.method.name!r} cannot be fine-tuned, it learned nothing: "
            f"begin anew with `voidrl train`"
        )
    layers = [to_json(task_config(old)), _changes(config), _given(steps, seed, device)]
    layers.append({"phase": "finetune"})
    env = share.own_env(pretrained) if env is None else env
    return _start(env, layers, out, overwrite, pretrained=pretrained)


def resume(
    run: str | Path,
    *,
    steps: Steps | None = None,
    env: Env | None = None,
    device: str | None = None,
    engine: str | None = None,
) -> Agent:
    """Go on with a run from its newest valid checkpoint, to the end or to `steps`.

    Args:
        run: The run folder.
        steps: A new total; by default the one it was started with.
        env: The function, or `module:function`; only for a run on one that cannot be imported by its name.
        device: By default the one it was started with.
        engine: `auto`, `eager`, `graph` or `compile`; by default the one it was started with.
    """
    if share.is_pretrained(Path(run).expanduser()):
        raise RunFolderError(
            f"{run} holds an agent without replay and optimizers, which cannot be resumed: go on with "
            f"`voidrl finetune`"
        )
    folder = RunFolder.open(run)
    config = config_from_json(checkpoint.read_json(folder.config_path, "the config of a run"))
    config = update(config, _given(steps, None, device) | ({} if engine is None else {"engine": engine}))
    factory = _factory(env, config.env.id)
    say = _speaker(folder)
    with folder.lock():
        saved = _latest(folder, say)
        if saved is None and config.phase == "finetune":
            raise CheckpointError(
                f"{folder.path} holds no checkpoint, and so nothing of what it was to be fine-tuned from: "
                f"run `voidrl finetune` again with --overwrite"
            )
        with _envs_of(config, factory) as (envs, eval_envs), placed(config.device, config.seed) as place:
            if saved is not None:
                require_same_spaces(
                    EnvSpec.from_json(saved.meta["spec"]), config.env.id, envs.spec, config.env.id
                )
            agent = Agent(envs.spec, config, place)
            skill_dim = agent.method.skill_dim
            replay = make_replay(config.replay, envs.spec, envs.num_envs, skill_dim, place, say)
            runner = Engine(agent, replay, say)
            # Without a checkpoint it begins again, and so does metrics.jsonl.
            state = LoopState(metrics_bytes=0) if saved is None else load_run(saved, agent, replay)
            if state.steps >= config.steps:
                say(f"{folder.path} is complete at step {state.steps}; to go on, give more steps")
                return agent
            checkpoint.write_json_atomic(folder.config_path, to_json(config))
            folder.status.start(config.steps, state.steps)
            say(f"{folder.path}: resumed at step {state.steps}")
            agent.origin = folder.path.absolute()
            _run(Loop(runner, envs, eval_envs, folder, state), say)
    return agent


def evaluate(
    source: Agent | str | Path,
    env: Env | None = None,
    *,
    episodes: int = 10,
    steps: Steps | None = None,
    seed: int = 0,
    deterministic: bool = True,
    epsilon: float | None = None,
    num_envs: int | None = None,
    count_states: bool = False,
    device: str = "auto",
) -> Evaluation:
    """Play whole episodes and return what came of them.

    Args:
        source: An agent, the folder of a run, a checkpoint or a saved agent, or the Hub's `user/name` of one.
        env: By default the environment it was trained in.
        episodes: How many.
        steps: In place of episodes: how many steps to play (the paper on Atari: `"125k"`). Episodes under
            way are played to their end.
        seed: Of the environments and of random actions.
        deterministic: Without exploration noise.
        epsilon: Share of uniformly random actions; None takes the agent's `config.log.eval_epsilon`. With 0,
            every episode of a deterministic environment is the same.
        num_envs: Environments played side by side; by default as many as in training, up to one for each
            episode, and on Atari, where they cost little, up to 32 whatever training had.
        count_states: Also measure what is visited, as `env.count_states` does; Atari and DMControl.
        device: Where a loaded agent is placed.
    """
    episodes = parse_count(episodes, "episodes")
    require(0 <= seed < 2**30, "seed", seed, "a whole number in [0, 2³⁰)")
    agent = source if isinstance(source, Agent) else load(source, device=device)
    epsilon = agent.config.log.eval_epsilon if epsilon is None else epsilon
    require(0 <= epsilon <= 1, "epsilon", epsilon, "a share in [0, 1]")
    trained_in = agent.config.env
    config, factory = env_for(share.own_env(agent) if env is None else env, trained_in)
    config = dataclasses.replace(config, count_states=count_states, counted_envs=0)
    count = None if steps is None else parse_count(steps)
    if num_envs is None:
        num_envs = trained_in.num_envs if atari_game(config.id) is None else ATARI_EVAL_ENVS
        num_envs = min(num_envs, episodes if count is None else max(1, count // STEPS_PER_EVAL_ENV))
    require(num_envs >= 1, "num_envs", num_envs, "1 or more")
    with closing(make_envs(config, factory, num_envs, evaluation=True)) as envs:
        require_same_spaces(agent.spec, trained_in.id, envs.spec, config.id)
        return evaluate_agent(
            agent, envs, episodes, seed, steps=count, deterministic=deterministic, epsilon=epsilon
        )


def load(source: str | Path, *, device: str = "auto", trust_code: bool = False) -> Agent:
    """An agent from the folder of a run (its newest valid checkpoint), a checkpoint or a saved agent.

    Where there is no such folder, `user/name` is sought on the Hugging Face Hub, as `from_pretrained` does,
    whose `trust_code` this is.
    """
    path = Path(source).expanduser()
    if share.is_pretrained(path) or (not path.exists() and share.is_on_hub(source)):
        return share.from_pretrained(source, device=device, trust_code=trust_code)
    if not path.exists():
        raise RunFolderError(
            f"there is nothing at {path}: expected the folder of a run, a checkpoint or a saved agent, or "
            f"user/name on the Hugging Face Hub"
        )
    if (path / checkpoint.MANIFEST).is_file():
        saved: checkpoint.Checkpoint | None = checkpoint.load(path)
    elif checkpoint.list_steps(path):
        saved = checkpoint.latest(path, _say)
    else:
        saved = _latest(RunFolder.open(path), _say)
    if saved is None:
        raise CheckpointError(f"the run {path} holds no checkpoint yet")
    spec, config = EnvSpec.from_json(saved.meta["spec"]), config_from_json(saved.meta["config"])
    with placed(device, config.seed) as place:
        agent = Agent(spec, config, place)
    agent.load_tensors(saved.tensors("agent.safetensors"))
    agent.steps, agent.origin = saved.meta["agent_steps"], saved.path.absolute()
    return agent


# Configs


def build_config(spec: EnvSpec, layers: Sequence[Mapping[str, Any]]) -> Config:
    """Defaults, then the layers in turn; what is `auto` is decided by the environment and written down."""
    merged = merge(*layers)
    method = registry.find("method", merge(*layers).get("method", {}).get("name", "apt"))
    automatic = {
        "learner": "dqn" if spec.discrete else "sac",
        "representation": method.default_representation(spec),
    }
    for kind in PIECES:
        given = merged.get(kind, {})
        require(isinstance(given, Mapping), kind, given, "a name, a class or a mapping of values")
        name = given.get("name", getattr(Config(), kind).name)
        merged[kind] = {**given, "name": automatic.get(kind) if name == "auto" else name}
    config = update(Config(), merged)
    small = spec.pixels and min(spec.frame_shape[1:]) < NATURE_LEAST
    stack = "mlp" if not spec.pixels else "nature" if spec.discrete and not small else "drq"
    for kind in ("representation", "learner"):
        encoder = getattr(config, kind).encoder
        if spec.pixels and encoder.stack == "mlp":
            raise ConfigError(
                f"{kind}.encoder.stack = 'mlp' cannot be used with {spec.describe()}: expected convolutions; "
                f"DMControl from pixels has the presets urlb-pixels, dmc-paper and dmc-fast"
            )
        if encoder.stack == "auto":
            # LayerNorm straight on a linear map would forget the length of a vector.
            hidden = encoder.hidden_dim or (MLP_HIDDEN if stack == "mlp" else 0)
            config = update(config, {f"{kind}.encoder": {"stack": stack, "hidden_dim": hidden}})
    return config


def config_from_json(data: Any) -> Config:
    """The inverse of `to_json`."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"the config of a run is a {type(data).__name__}: expected a mapping")
    return update(Config(), data)


def task_config(pretrained: Config) -> Config:
    """The config with which an agent of this one is fine-tuned, before any changes to it."""
    tuning = pretrained.finetune
    return dataclasses.replace(
        pretrained,
        phase="finetune",
        steps=tuning.steps or pretrained.steps,
        updates_per_step=tuning.updates_per_step or pretrained.updates_per_step,
        finetune=dataclasses.replace(tuning, updates_per_step=None),  # so that changes to either count
        log=dataclasses.replace(pretrained.log, snapshot_steps=()),  # those were of pre-training
    )


def _settings(env: Env, preset: str | None, config: Overrides | None, phase: str) -> list[dict[str, Any]]:
    if not isinstance(config, Config):
        return [preset_for(env, preset, phase), _changes(config)]
    if preset is not None:
        raise ConfigError(
            f"preset = {preset!r} cannot be used with a whole voidrl.Config, which has a value for every "
            f"field: pass one of the two, or the changes alone as a mapping"
        )
    return [to_json(config)]


def _changes(config: Overrides | None) -> dict[str, Any]:
    if isinstance(config, Config):
        return dict(to_json(config))
    require(isinstance(config, Mapping | None), "config", config, "a mapping of values or a voidrl.Config")
    return dict(config or {})


def _given(steps: Steps | None, seed: int | None, device: str | None) -> dict[str, Any]:
    count = None if steps is None else parse_count(steps)
    given = {"steps": count, "seed": seed, "device": device}
    return {name: value for name, value in given.items() if value is not None}


def env_for(env: Env, base: EnvConfig) -> tuple[EnvConfig, EnvFactory | None]:
    """The config of an id or a factory, with what `base` says besides; and the factory, if it is one."""
    if base.id.startswith(DMC) and not (isinstance(env, str) and env.startswith(DMC)):
        base = dataclasses.replace(base, dmc=DMControlConfig())  # an agent comes elsewhere: they stay behind
    if isinstance(env, str):
        return dataclasses.replace(base, id=env), None
    if not callable(env) or isinstance(env, gym.Env):
        raise ConfigError(
            f"environment {env!r} cannot be used: expected an id or a function that returns a gymnasium.Env"
        )
    # A callable object, such as a partial, is not what its class's name would import: the () says so.
    name = getattr(env, "__qualname__", f"{type(env).__qualname__}()")
    return dataclasses.replace(base, id=f"{env.__module__}:{name}"), env


# Starting


def _start(
    env: Env,
    layers: list[dict[str, Any]],
    out: str | Path | None,
    overwrite: bool,
    *,
    pretrained: Agent | None = None,
) -> Agent:
    """Everything is built before the folder is made, so that bad input leaves nothing behind."""
    changes = merge(*layers).get("env", {})
    require(isinstance(changes, Mapping), "env", changes, "a mapping; the id is an argument of its own")
    env_config, factory = env_for(env, update(EnvConfig(), changes, "env."))
    spec, env_config = probe_env(env_config, factory)
    if pretrained is not None:
        require_same_spaces(pretrained.spec, pretrained.config.env.id, spec, env_config.id)
    config = build_config(spec, [*layers, {"env": to_json(env_config)}])
    if factory is None and config.phase != "pretrain":
        require_task(config.env.id, f"to {config.phase} needs one")
    if config.log.wandb_project:
        import_wandb()
    with _envs_of(config, factory) as (envs, eval_envs), placed(config.device, config.seed) as place:
        agent = Agent(envs.spec, config, place)
        if pretrained is not None:
            agent.load_pretrained({k: v.to(place) for k, v in pretrained.tensors().items()})
            agent.steps = pretrained.steps
        notes: list[str] = []
        skill_dim = agent.method.skill_dim
        replay = make_replay(config.replay, envs.spec, envs.num_envs, skill_dim, place, notes.append)
        engine = Engine(agent, replay, notes.append)
        _rehearse_reward(agent)
        warmup = config.finetune.warmup_steps if config.phase == "finetune" else config.warmup_steps
        if agent.learns and config.steps <= warmup:
            notes.append(
                f"nothing will be learned: {config.steps} steps are not more than the warm-up of {warmup} "
                f"({'finetune.' if config.phase == 'finetune' else ''}warmup_steps)"
            )
        name = {"pretrain": config.method.name.rpartition(":")[2], "train": "scratch"}
        env_name = config.env.id.partition("?")[0]
        path = out or default_run_path(env_name, name.get(config.phase, config.phase), config.seed)
        folder = RunFolder.create(path, overwrite=overwrite)
        agent.origin = folder.path.absolute()
        with folder.lock():
            checkpoint.write_json_atomic(folder.config_path, to_json(config))
            folder.status.start(config.steps)
            folder.log(f"{config.phase} {config.env.id} on {place} for {config.steps} steps")
            engine.say = say = _speaker(folder)
            for note in notes:
                say(note)
            _run(Loop(engine, envs, eval_envs, folder, LoopState()), say)
    return agent


def _run(loop: Loop, say: Callable[[str], None]) -> None:
    began, before = time.monotonic(), loop.state.steps
    try:
        loop.run()
    except Exception as error:
        if isinstance(error, EnvironmentFailedError) or not isinstance(error, VoidrlError):
            loop.folder.log("".join(traceback.format_exception(error)))  # to fix it, one needs the line
        loop.folder.log(f"failed: {error}")
        loop.folder.status.fail(error, loop.state.steps)
        raise
    loop.folder.status.finish(loop.state.steps)
    took = human_seconds(time.monotonic() - began)
    say(f"{loop.folder.path}: {loop.state.steps - before} steps in {took}")


@torch.no_grad()
def _rehearse_reward(agent: Agent) -> None:
    """Ask the method for one reward of made-up states: what cannot work is said before training begins."""
    if not (agent.pretraining and agent.learns):
        return
    n, spec, device = agent.config.learner.batch_size, agent.spec, agent.device
    obs = torch.zeros(n, *spec.obs_shape, dtype=torch.uint8 if spec.pixels else torch.float32, device=device)
    one = torch.ones(n, device=device)

    def z(count: int = n) -> Tensor:
        return torch.randn(count, agent.representation.dim, device=device)

    with seeded(agent.config.seed, device):
        batch = Batch(obs, agent.random_actions(n), one, one, obs, agent.method.sample_skill(n, device))
        copied = copy.deepcopy(agent.method)  # running means must not move
        reward = copied.reward(batch, Latents(z, z, pool=z))
    if reward.shape != (n,):
        raise ConfigError(
            f"method {agent.config.method.name!r} gave rewards of shape {tuple(reward.shape)} for {n} "
            f"transitions: expected ({n},)"
        )


def _factory(env: Env | None, trained_in: str) -> EnvFactory | None:
    """The function that a run goes on with, where its own cannot be imported."""
    if env is None or not isinstance(env, str):
        return env
    name, options = parse_id(env)
    found = import_path("environment", name) if ":" in name else None
    if not callable(found) or is_importable(trained_in):
        raise ConfigError(
            f"env = {env!r} cannot be used to go on in {trained_in!r}: expected module:function, for a run "
            f"on a function that cannot be imported by its name"
        )
    return partial(found, **options)


@contextmanager
def _envs_of(config: Config, factory: EnvFactory | None) -> Iterator[tuple[Envs, Envs | None]]:
    """The environments of training and, where there are evaluations, theirs."""
    try:
        envs = make_envs(config.env, factory)
    except ConfigError as error:
        if factory is None and ":" in config.env.id and "cannot be imported" in str(error):
            raise ConfigError(f"{error}; or pass the factory as env=…") from error
        raise
    with closing(envs):
        if not config.log.eval_every_steps:
            yield envs, None
            return
        num_envs = min(config.env.num_envs, config.log.eval_episodes)
        env = dataclasses.replace(config.env, count_states=False)
        with closing(make_envs(env, factory, num_envs, evaluation=True)) as eval_envs:
            yield envs, eval_envs


def _latest(folder: RunFolder, say: Callable[[str], None]) -> checkpoint.Checkpoint | None:
    if not checkpoint.list_steps(folder.checkpoints_path):
        return None
    return checkpoint.latest(folder.checkpoints_path, say)


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


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _speaker(folder: RunFolder) -> Callable[[str], None]:
    def say(text: str) -> None:
        _say(text)
        folder.log(text)

    return say
