"""pretrain · finetune · train · evaluate · resume · load."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from voidrl import checkpoint
from voidrl.agent import Agent
from voidrl.config import PIECES, Config, EnvConfig, default_piece, merge, to_json, update
from voidrl.envs import Envs, make_envs
from voidrl.envs.vector import EnvFactory
from voidrl.errors import CheckpointError, ConfigError, RunFolderError, SpaceError
from voidrl.evaluation import Evaluation, evaluate_agent
from voidrl.loop import Loop, LoopState, load_run
from voidrl.methods.base import Method
from voidrl.presets import preset as find_preset
from voidrl.progress import human_seconds, parse_count
from voidrl.replay import make_replay
from voidrl.runfolder import RunFolder, default_run_path
from voidrl.types import EnvSpec

Env = str | EnvFactory
Overrides = Mapping[str, Any] | Config
Steps = int | str


def pretrain(env: Env, method: str | type[Method] = "apt", *, steps: Steps | None = None, seed: int | None = None,
             out: str | Path | None = None, preset: str | None = None, config: Overrides | None = None,
             device: str | None = None, overwrite: bool = False) -> Agent:  # fmt: skip
    """Train an agent without the environment's reward.

    Args:
        env: A Gymnasium id (options as a query: `voidrl/PixelMaze-v0?size=13`), `module:factory`, or a function
            that returns a `gymnasium.Env`.
        method: What is rewarded: a name from `voidrl list methods`, `module:Class`, or a `Method` class.
        steps: Environment steps; `"1M"`, `"100k"` and `1e6` are understood.
        seed: Of everything random.
        out: The run folder; by default a new one under `runs/`.
        preset: A name from `voidrl list presets`.
        config: Changes to the config, nested or dotted: `{"learner.n_step": 3}`.
        device: `auto`, `cpu`, `cuda`.
        overwrite: Replace the run in `out`.
    """
    layers = [find_preset(preset), _as_layer(config), {"method": method}, _given(steps, seed, device), {"phase": "pretrain"}]
    return _start(env, layers, out, overwrite, name=_short(method))


def train(env: Env, *, steps: Steps | None = None, seed: int | None = None, out: str | Path | None = None,
          preset: str | None = None, config: Overrides | None = None, device: str | None = None,
          overwrite: bool = False) -> Agent:  # fmt: skip
    """Train the learner from scratch on the environment's own reward: the DrQ baseline. Arguments as `pretrain`."""
    layers = [find_preset(preset), _as_layer(config), _given(steps, seed, device), {"phase": "train"}]
    return _start(env, layers, out, overwrite, name="scratch")


def finetune(source: Agent | str | Path, env: Env | None = None, *, steps: Steps | None = None, seed: int | None = None,
             out: str | Path | None = None, config: Overrides | None = None, device: str | None = None,
             overwrite: bool = False) -> Agent:  # fmt: skip
    """Adapt a pre-trained agent to the environment's reward. The agent given is left as it is.

    Args:
        source: An agent, or the folder of a run, a checkpoint or a saved agent.
        env: The task; by default the environment of pre-training.
        steps: Environment steps.
        seed: By default the one of pre-training.
        out: The run folder; by default a new one under `runs/`.
        config: Changes to the config of pre-training, for instance `{"finetune.heads": "random"}`.
        device: `auto`, `cpu`, `cuda`.
        overwrite: Replace the run in `out`.
    """
    pretrained = source if isinstance(source, Agent) else load(source, device="cpu")
    layers = [to_json(pretrained.config), _as_layer(config), _given(steps, seed, device), {"phase": "finetune"}]
    return _start(env or pretrained.config.env.id, layers, out, overwrite, name="finetune", pretrained=pretrained)


def resume(run: str | Path, *, steps: Steps | None = None, env: EnvFactory | None = None, device: str | None = None) -> Agent:
    """Go on with a run from its newest valid checkpoint, to the end or to `steps`.

    Args:
        run: The run folder.
        steps: A new total; by default the one it was started with.
        env: Only for a run on a factory that cannot be imported.
        device: By default the one it was started with.
    """
    folder = RunFolder.open(run)
    config = config_from_json(checkpoint.read_json(folder.config_path, "the config of a run"))
    config = update(config, _given(steps, None, device))
    say = _speaker(folder)
    with folder.lock():
        saved = _latest(folder, say)
        envs, eval_envs = _make_envs(config, env)
        with _closing(envs, eval_envs), _seeded(config.seed, config.device) as place:
            agent = Agent(envs.spec, config, place)
            replay = make_replay(config.replay, envs.spec, envs.num_envs, agent.method.skill_dim, place, say)
            state = LoopState()
            if saved is not None:
                _require_same_spec(saved, envs.spec, config.env.id)
                state = load_run(saved, agent, replay)
            elif config.phase == "finetune":
                raise CheckpointError(f"{folder.path} holds no checkpoint yet, and what it was fine-tuned from is not "
                                      f"part of it: run `voidrl finetune` again with --overwrite")  # fmt: skip
            if state.steps >= config.steps:
                say(f"{folder.path} is complete at step {state.steps}; give a larger number of steps to go on")
                return agent
            checkpoint.write_json_atomic(folder.config_path, to_json(config))
            folder.log(f"resumed at step {state.steps}")
            Loop(agent, envs, eval_envs, replay, folder, state).run()
    return agent


def evaluate(source: Agent | str | Path, env: Env | None = None, *, episodes: int = 10, seed: int = 0,
             deterministic: bool = True, device: str = "auto") -> Evaluation:  # fmt: skip
    """Play whole episodes and return what came of them.

    Args:
        source: An agent, or the folder of a run, a checkpoint or a saved agent.
        env: By default the environment it was trained in.
        episodes: How many.
        seed: Of the environments and of random actions.
        deterministic: Without exploration noise.
        device: Where a loaded agent is placed.
    """
    if episodes < 1:
        raise ConfigError(f"episodes = {episodes} cannot be used: expected 1 or more")
    agent = source if isinstance(source, Agent) else load(source, device=device)
    config, factory = _env_config(env or agent.config.env.id, agent.config.env)
    envs = make_envs(config, factory, num_envs=min(episodes, agent.config.env.num_envs))
    with _closing(envs):
        _require_equal(agent.spec, envs.spec, config.id)
        return evaluate_agent(agent, envs, episodes, seed, deterministic=deterministic)


def load(source: str | Path, *, device: str = "auto") -> Agent:
    """An agent from the folder of a run (its newest valid checkpoint), of a checkpoint, or of `agent.save`."""
    path = Path(source)
    if not path.exists():
        raise RunFolderError(f"there is nothing at {path}: expected the folder of a run, a checkpoint or a saved agent")
    if (path / checkpoint.MANIFEST).is_file():
        saved: checkpoint.Checkpoint | None = checkpoint.load(path)
    elif checkpoint.list_steps(path):
        saved = checkpoint.latest(path, _say)
    else:
        folder = RunFolder.open(path)
        saved = _latest(folder, _say)
    if saved is None:
        raise CheckpointError(f"the run {path} holds no checkpoint yet")
    spec, config = EnvSpec.from_json(saved.meta["spec"]), config_from_json(saved.meta["config"])
    with _seeded(config.seed, device) as place:
        agent = Agent(spec, config, place)
    agent.load_tensors(saved.tensors("agent.safetensors"))
    agent.steps = saved.meta["agent_steps"]
    return agent


# Configs


def build_config(spec: EnvSpec, layers: list[Mapping[str, Any]]) -> Config:
    """Defaults, then the layers in turn; what is `auto` is decided by the environment and written down."""
    merged = merge(*layers)
    config = Config()
    automatic = {"learner": "dqn" if spec.discrete else "sac", "representation": "simclr" if spec.pixels else "identity"}
    for kind in PIECES:
        given = merged.get(kind, {})
        name = given.get("name", getattr(config, kind).name) if isinstance(given, Mapping) else given
        name = automatic[kind] if name == "auto" else name
        config = dataclasses.replace(config, **{kind: default_piece(kind, name)})
    config = update(config, {k: {**v, "name": getattr(config, k).name} if k in PIECES and isinstance(v, Mapping) else
                             getattr(config, k).name if k in PIECES else v for k, v in merged.items()})  # fmt: skip
    stack = "mlp" if not spec.pixels else "nature" if spec.discrete else "drq"
    for kind in ("representation", "learner"):
        if getattr(config, kind).encoder.stack == "auto":
            config = update(config, {f"{kind}.encoder.stack": stack})
    return config


def config_from_json(data: Mapping[str, Any]) -> Config:
    """The inverse of `to_json`."""
    return update(Config(), data)


def _as_layer(config: Overrides | None) -> Mapping[str, Any]:
    return to_json(config) if isinstance(config, Config) else config or {}  # type: ignore[no-any-return]


def _given(steps: Steps | None, seed: int | None, device: str | None) -> dict[str, Any]:
    given: dict[str, Any] = {} if steps is None else {"steps": parse_count(steps)}
    return given | ({} if seed is None else {"seed": seed}) | ({} if device is None else {"device": device})


def _env_config(env: Env, base: EnvConfig) -> tuple[EnvConfig, EnvFactory | None]:
    if isinstance(env, str):
        return dataclasses.replace(base, id=env), None
    if not callable(env) or isinstance(env, gym.Env):
        raise ConfigError(f"environment {env!r} cannot be used: expected an id or a function that returns a gymnasium.Env")
    name = getattr(env, "__qualname__", type(env).__qualname__)
    return dataclasses.replace(base, id=f"{getattr(env, '__module__', '?')}:{name}"), env


# Starting


def _start(env: Env, layers: list[Mapping[str, Any]], out: str | Path | None, overwrite: bool, *, name: str,
           pretrained: Agent | None = None) -> Agent:  # fmt: skip
    """Everything is built before the folder is made, so that bad input leaves nothing behind."""
    env_config, factory = _env_config(env, update(EnvConfig(), merge(*layers).get("env", {})))
    probe = make_envs(env_config, factory, num_envs=1)
    with _closing(probe):
        config = build_config(probe.spec, [*layers, {"env": to_json(env_config)}])
        if pretrained is not None:
            _require_equal(pretrained.spec, probe.spec, env_config.id)
    envs, eval_envs = _make_envs(config, factory)
    with _closing(envs, eval_envs), _seeded(config.seed, config.device) as place:
        agent = Agent(envs.spec, config, place)
        if pretrained is not None:
            agent.load_pretrained({k: v.to(place) for k, v in pretrained.tensors().items()})
            agent.steps = pretrained.steps
        notes: list[str] = []
        replay = make_replay(config.replay, envs.spec, envs.num_envs, agent.method.skill_dim, place, notes.append)
        path = Path(out) if out is not None else default_run_path(config.env.id.partition("?")[0], name, config.seed)
        folder = RunFolder.create(path, overwrite=overwrite)
        with folder.lock():
            checkpoint.write_json_atomic(folder.config_path, to_json(config))
            say = _speaker(folder)
            for note in notes:
                say(note)
            folder.log(f"{config.phase} {config.env.id} on {place} for {config.steps} steps")
            began = time.monotonic()
            Loop(agent, envs, eval_envs, replay, folder, LoopState()).run()
            say(f"{folder.path}: {config.steps} steps in {human_seconds(time.monotonic() - began)}")
    return agent


def _make_envs(config: Config, factory: EnvFactory | None) -> tuple[Envs, Envs | None]:
    envs = make_envs(config.env, factory)
    if not config.log.eval_every_steps:
        return envs, None
    return envs, make_envs(config.env, factory, num_envs=min(config.env.num_envs, config.log.eval_episodes))


@contextmanager
def _closing(*envs: Envs | None) -> Iterator[None]:
    try:
        yield
    finally:
        for one in envs:
            if one is not None:
                one.close()


@contextmanager
def _seeded(seed: int, device: str) -> Iterator[torch.device]:
    """The run's own random numbers; the caller's are restored afterwards."""
    place = pick_device(device)
    with torch.random.fork_rng([place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        yield place


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        place = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device = {name!r} cannot be used: expected auto, cpu, cuda or cuda:N") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device = {name!r} cannot be used: torch sees no CUDA device here; use auto or cpu")
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else place


def _latest(folder: RunFolder, say: Callable[[str], None]) -> checkpoint.Checkpoint | None:
    if not checkpoint.list_steps(folder.checkpoints_path):
        return None
    return checkpoint.latest(folder.checkpoints_path, say)


def _require_same_spec(saved: checkpoint.Checkpoint, spec: EnvSpec, name: str) -> None:
    _require_equal(EnvSpec.from_json(saved.meta["spec"]), spec, name)


def _require_equal(agent: EnvSpec, env: EnvSpec, name: str) -> None:
    if agent != env:
        raise SpaceError(f"the agent was made for {agent.describe()} and environment {name!r} has {env.describe()}: "
                         f"expected the same spaces on both sides")  # fmt: skip


def _short(method: str | type) -> str:
    return method.rpartition(":")[2] if isinstance(method, str) else method.__name__


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _speaker(folder: RunFolder) -> Callable[[str], None]:
    def say(text: str) -> None:
        _say(text)
        folder.log(text)

    return say
