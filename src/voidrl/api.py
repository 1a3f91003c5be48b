"""pretrain · finetune · train · evaluate · probe · resume · load."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack, chdir, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voidrl import dist
from voidrl.agent import Agent
from voidrl.agent.exploration import Explorer
from voidrl.config import Config, EnvConfig, merge, require, to_json
from voidrl.data.fill import fill_replay, open_fitting
from voidrl.engine.engine import Engine
from voidrl.envs.make import EnvFactory, make_envs
from voidrl.envs.suites.dmcontrol import require_task
from voidrl.errors import ConfigError
from voidrl.methods.base import Method
from voidrl.runs import checkpoint
from voidrl.runs.folder import RunFolder, default_run_path
from voidrl.sharing import pretrained as share
from voidrl.sharing.loading import load, open_run
from voidrl.system.files import user_path
from voidrl.system.machine import claim_cores
from voidrl.system.terminal.foreign import quiet_libraries
from voidrl.system.terminal.output import durable_output
from voidrl.system.units import parse_count
from voidrl.training import assembly, build, starting
from voidrl.training.build import ConfigLayer, Env, Overrides, as_changes, finetune_layers, layers_for
from voidrl.training.callbacks import CallbackList, Callbacks
from voidrl.training.evaluation import Evaluation, evaluate_agent, keep_evaluation
from voidrl.training.metrics import require_rows
from voidrl.training.rehearsal import rehearse
from voidrl.training.saved_run import LoopState, begin_stream, load_run

if TYPE_CHECKING:
    from voidrl.probing.result import ProbeResult

Steps = int | str
"""Environment steps: a number, or text such as `"100k"` and `"2.5M"`."""
STEPS_PER_EVAL_ENV = 500  # with fewer, building an environment would take longer than its part


__all__ = ["evaluate", "finetune", "load", "open_run", "pretrain", "probe", "resume", "train"]


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
    callbacks: Callbacks = (),
    data: str | None = None,
) -> Agent:
    """Train an agent without the environment's reward.

    Args:
        env: `atari/<game>`, `dmc/<domain>`, a Gymnasium id (options as a query:
            `voidrl/PixelMaze-v0?size=13`), `module:factory`, or a function that returns a `gymnasium.Env`.
        method: The intrinsic reward: a name from `voidrl list methods`, `module:Class`, or a `Method` class.
            By default the one in `config`, else `apt`. It brings its recipe for the preset.
        steps: Environment steps; `"1M"`, `"100k"` and `1e6` are understood. 0 makes an untrained agent, whose
            fine-tuning is a control for that of a pre-trained one.
        seed: Seed of everything random in the run.
        out: The run folder; by default a new one under `runs/`.
        preset: A name from `voidrl list presets`, or `none`; by default
            `atari-paper` for Atari, `urlb-states` for DMControl, and none for others. On a CPU it is `cpu`
            where that would take more than an hour for 100K steps.
        config: Changes to the config, nested or dotted: `{"learner.n_step": 3}`.
        device: `auto`, `cpu`, `cuda`.
        overwrite: Replace the run in `out`.
        callbacks: Called while it trains, see `voidrl.Callback`; one that stops it ends the run normally.
        data: The id of a Minari dataset that fills the replay before the first step.
    """
    arguments = _arguments(steps, data, method=method, seed=seed, device=device)
    layers = partial(layers_for, env, "pretrain", config=config, arguments=arguments)
    cheaper = layers if preset is None and not isinstance(config, Config) else None
    return _start(env, layers(preset), out, overwrite, callbacks, cheaper=cheaper)


def train(
    env: Env,
    *,
    bonus: str | type[Method] | None = None,
    steps: Steps | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    preset: str | None = None,
    config: Overrides | None = None,
    device: str | None = None,
    overwrite: bool = False,
    callbacks: Callbacks = (),
    data: str | None = None,
) -> Agent:
    """Train the learner from scratch on the environment's own reward. Arguments as in `pretrain`.

    For comparison with fine-tuning it takes the preset's values for that: steps, updates per step, warm-up
    and learning rate. `bonus` is a method whose intrinsic reward is added to the environment's, named as in
    `pretrain(method=…)`; the fields `bonus.*` of the config say how much of it.
    """
    arguments = _arguments(steps, data, seed=seed, device=device)
    layers = partial(layers_for, env, "train", config=config, arguments=arguments, bonus=bonus)
    cheaper = layers if preset is None and not isinstance(config, Config) else None
    return _start(env, layers(preset), out, overwrite, callbacks, cheaper=cheaper)


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
    callbacks: Callbacks = (),
) -> Agent:
    """Adapt a pre-trained agent to the environment's reward. The agent itself is not changed.

    Args:
        source: An agent, the folder of a run, a checkpoint or a saved agent, or the Hub's `user/name` of one.
        env: The task; by default the environment of pre-training.
        steps: Environment steps; by default what `config.finetune.steps` says.
        seed: By default the one of pre-training.
        out: The run folder; by default a new one under `runs/`.
        config: Changes to the config of pre-training, for instance `{"finetune.heads": "random"}`.
        device: `auto`, `cpu`, `cuda`; by default the one of pre-training.
        overwrite: Replace the run in `out`.
        callbacks: Called while it trains, see `voidrl.Callback`; one that stops it ends the run normally.
    """
    pretrained = source if isinstance(source, Agent) else load(source, device="cpu")
    old = pretrained.config
    if not pretrained.learns:
        raise ConfigError(
            f"an agent of method {old.method.name!r} cannot be fine-tuned, it learned nothing: "
            f"train one from scratch with `voidrl train`"
        )
    layers = finetune_layers(old, config, _arguments(steps, seed=seed, device=device))
    env = share.own_env(pretrained) if env is None else env
    return _start(env, layers, out, overwrite, callbacks, pretrained=pretrained)


@durable_output()
@quiet_libraries()
@dist.process_group()
def resume(
    run: str | Path,
    *,
    steps: Steps | None = None,
    env: Env | None = None,
    config: Overrides | None = None,
    device: str | None = None,
    engine: str | None = None,
    callbacks: Callbacks = (),
) -> Agent:
    """Resume a run from its newest valid checkpoint, to the end or to `steps`.

    The run stays what its checkpoint says: a `config.json` that was edited since in what defines the run is
    refused. What changes is logged with its old and new value.

    Args:
        run: The run folder.
        steps: A new total; by default the one it was started with.
        config: Changes to what does not define the run, nested or dotted: `steps`, `device`, `engine`,
            `precision`, `log.*`, learning rates, and how environments are stepped.
        env: The function, or `module:function`; only for a run whose own environment cannot be found.
        device: By default the one it was started with.
        engine: `auto`, `eager`, `graph` or `compile`; by default the one it was started with.
        callbacks: Those of the run are not saved, only their states: pass them again.
    """
    is_main = dist.current().is_main
    hooks = CallbackList(callbacks if is_main else ())
    folder, written = open_run(run)
    folder = folder if is_main else RunFolder.follow(folder.path)
    changes = merge(as_changes(config), _arguments(steps, device=device, engine=engine))
    factory = starting.resumable_factory(env, written.env.id)
    say = starting.speaker(folder)
    with (
        chdir(Path.cwd()),
        folder.lock() if is_main else nullcontext(),
        starting.explained_stop(folder, written),
        ExitStack() as stack,
    ):
        saved = starting.latest_of_all(folder, say)
        resumed, notes = starting.resumed_config(folder, saved, written, changes)
        parts = stack.enter_context(assembly.assemble(resumed, factory, say, saved))
        agent = parts.engine.agent
        if saved is None:  # the run starts over, and so does metrics.jsonl
            agent.representation.read_files()
            _begin(parts.engine)
            state = LoopState(metrics_bytes=0)
        else:
            state = load_run(saved, parts.engine)
        if is_main:
            require_rows(folder.path, state.metrics_bytes or 0)
        if state.steps >= resumed.steps:
            say(starting.nothing_to_train(folder, written.steps, state.steps, resumed.steps))
            return agent
        if is_main:
            starting.require_disk_space(folder.path, agent)
            checkpoint.write_json_atomic(folder.config_path, to_json(resumed))
        folder.status.start(resumed.steps, state.steps)
        dropped = hooks.load(state.callbacks, state.steps)
        for note in [f"{folder.shown}: resumed at step {state.steps}", *notes, *dropped]:
            say(note)
        starting.train(parts, folder, state, hooks, _probe_in_training(agent, factory))
    return agent


@quiet_libraries()
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
    """Play whole episodes and return the results.

    Those of a complete run, played in its own environment, are also written to its `evaluation.json`, where
    `voidrl report` finds them.

    Args:
        source: An agent, the folder of a run, a checkpoint or a saved agent, or the Hub's `user/name` of one.
        env: By default the environment it was trained in.
        episodes: How many.
        steps: In place of episodes: how many steps to play (the paper on Atari: `"125k"`). Episodes under
            way are played to their end.
        seed: Of the environments and of random actions.
        deterministic: Without exploration noise.
        epsilon: Probability of a uniformly random action; None takes the agent's `config.log.eval_epsilon`.
            With 0, every episode of a deterministic environment is the same.
        num_envs: Environments played side by side; by default as many as in training, up to one for each
            episode, and on Atari, where they cost little, up to 32 whatever training had.
        count_states: Also measure what is visited, as `env.count_states` does; Atari and DMControl.
        device: Where a loaded agent is placed.
    """
    episodes = parse_count(episodes, "episodes")
    agent, config, factory = _agent_in(source, env, seed, device)
    epsilon = agent.config.log.eval_epsilon if epsilon is None else epsilon
    require(0 <= epsilon <= 1, "epsilon", epsilon, "a probability in [0, 1]")
    config = dataclasses.replace(config, count_states=count_states)
    count = None if steps is None else parse_count(steps)
    settings: dict[str, Any] = {"env": config.id, "steps": count}
    settings["episodes"] = episodes if count is None else None
    settings |= {"seed": seed, "deterministic": deterministic, "epsilon": epsilon}
    settings |= {"num_envs": num_envs, "count_states": count_states}
    if num_envs is None:
        wanted = episodes if count is None else max(1, count // STEPS_PER_EVAL_ENV)
        num_envs = assembly.evaluation_envs(config, wanted)
    with (
        chdir(Path.cwd()),  # where it ends, whatever the code of the environment does
        claim_cores(),
        closing(make_envs(config, factory, num_envs, evaluation=True)) as envs,
    ):
        assembly.require_same_spaces(agent.spec, agent.config.env.id, envs.spec, config.id)
        result = evaluate_agent(
            agent, envs, episodes, seed, steps=count, deterministic=deterministic, epsilon=epsilon
        )
    if env is None and not isinstance(source, Agent):
        keep_evaluation(agent, source, result, settings)
    return result


@quiet_libraries()
def probe(
    source: Agent | str | Path,
    env: Env | None = None,
    *,
    steps: Steps = 10_000,
    policy: str = "mixed",
    seed: int = 0,
    num_envs: int | None = None,
    device: str = "auto",
) -> ProbeResult:
    """Measure what an agent's representation sees of the environment's true state and of the task's reward.

    Args:
        source: An agent, the folder of a run, a checkpoint or a saved agent, or the Hub's `user/name` of one.
        env: By default the environment it was trained in.
        steps: Steps of play to measure on.
        policy: Who plays: `agent` (exploring as in training), `random`, `sticky` (random actions, each held
            for some steps) or `mixed` (a third of each).
        seed: Of the play, of held-out episodes and of the random encoder.
        num_envs: Environments played side by side.
        device: Where a loaded agent is placed.
    """
    from voidrl.probing.probe import probe_agent

    count = parse_count(steps)
    agent, config, factory = _agent_in(source, env, seed, device)
    return probe_agent(agent, config, factory, count, policy=policy, seed=seed, num_envs=num_envs)


def _agent_in(
    source: Agent | str | Path, env: Env | None, seed: int, device: str
) -> tuple[Agent, EnvConfig, EnvFactory | None]:
    """An agent and an environment to play in, by default its own."""
    require(0 <= seed < 2**30, "seed", seed, "a whole number in [0, 2³⁰)")
    agent = source if isinstance(source, Agent) else load(source, device=device)
    return agent, *build.env_for(share.own_env(agent) if env is None else env, agent.config.env)


# Starting


def _arguments(steps: Steps | None = None, data: str | None = None, **others: Any) -> dict[str, Any]:
    """The arguments that were given, as changes to the config, which a resumed run understands too."""
    count = None if steps is None else parse_count(steps, zero=True)
    given = {"steps": count, **others, "replay.data": data}
    return {name: value for name, value in given.items() if value is not None}


@durable_output()
@quiet_libraries()
@dist.process_group()
def _start(
    env: Env,
    layers: list[ConfigLayer],
    out: str | Path | None,
    overwrite: bool,
    callbacks: Callbacks,
    *,
    pretrained: Agent | None = None,
    cheaper: Callable[[str], list[ConfigLayer]] | None = None,
) -> Agent:
    """Build everything before the folder is made, so that bad input leaves nothing behind.

    `cheaper` returns the layers with another preset, for a CPU on which the given ones would take too long.
    """
    notes: list[str] = []
    is_main = dist.current().is_main
    hooks = CallbackList(callbacks if is_main else ())
    here = Path.cwd()  # the code of an environment may leave it

    def probe(layers: list[ConfigLayer]) -> tuple[build.Probed, Config]:
        probed = build.probe(env, layers)
        if pretrained is not None:
            assembly.require_same_spaces(
                pretrained.spec, pretrained.config.env.id, probed.spec, probed.env.id
            )
        config = build.config_for(probed, layers)
        build.require_fitting(probed, config, layers)
        return probed, config

    probed, config = probe(layers)
    if cheaper is not None and (note := build.cpu_preset_note(env, probed.spec, config)):
        notes.append(note)
        layers = cheaper(build.CPU_PRESET)
        probed, config = probe(layers)
    if probed.factory is None and not config.effective.pretrains:
        require_task(config.env.id, f"to {config.phase} needs one")
    if config.replay.data is not None:  # before anything is built
        open_fitting(config.replay.data, probed.spec, config.env)
    with ExitStack() as stack:
        stack.enter_context(chdir(here))
        parts = stack.enter_context(assembly.assemble(config, probed.factory, notes.append))
        agent, engine = parts.engine.agent, parts.engine
        if pretrained is None:
            agent.representation.read_files()
        else:
            agent.load_pretrained({k: v.to(agent.device) for k, v in pretrained.tensors().items()})
            agent.steps = pretrained.steps
            if config.effective.explorer_warms_up:
                engine.explorer = Explorer.copy_of(pretrained, agent.device)
        rehearse(agent)
        _begin(engine)
        if note := starting.short_run_note(agent):
            notes.append(note)
        name = starting.default_name(to_json(config), config.env.id)
        measure = _probe_in_training(agent, probed.factory)
        with chdir(here):
            if is_main:
                path = user_path(out or default_run_path(*name))
                RunFolder(path).require_free(overwrite)  # a folder that is taken needs no disk space
                starting.require_disk_space(path, agent)
            folder = stack.enter_context(starting.new_folder(out, name, overwrite))
        if is_main:
            checkpoint.write_json_atomic(folder.config_path, to_json(config))
        folder.status.start(config.steps)
        folder.log(f"{config.phase} {config.env.id} on {agent.device} for {config.steps} steps")
        engine.say = starting.speaker(folder)
        for note in notes if out else [*notes, f"the run is kept in {folder.shown}"]:
            engine.say(note)
        starting.train(parts, folder, LoopState(), hooks, measure, pretrained)
    return agent


def _begin(engine: Engine) -> None:
    """Fill the replay of a new run from its dataset, and give each rank its random numbers."""
    config = engine.agent.config
    if data := config.replay.data:
        engine.say(fill_replay(engine.replay, data, config.env, engine.agent.method))
    begin_stream(engine.agent)


def _probe_in_training(agent: Agent, factory: EnvFactory | None) -> Callable[[], dict[str, float]] | None:
    """A function that probes the agent during training; its play is collected here."""
    if not agent.config.log.probe_every_steps or not dist.current().is_main:
        return None
    from voidrl.probing.probe import RunProbe

    with dist.alone():
        return RunProbe(agent, factory)
