"""pretrain · finetune · train · evaluate · probe · resume · load."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from voidrl import dist
from voidrl.agent import Agent
from voidrl.agent.explorer import Explorer
from voidrl.config import (
    RESUMABLE_FIELDS,
    Config,
    EnvConfig,
    bonus_method,
    differences,
    may_change,
    merge,
    require,
    to_json,
    update,
)
from voidrl.config.arguments import known_arguments
from voidrl.config.registry import import_path
from voidrl.data.files import absolute_name
from voidrl.data.fill import fill_replay, open_fitting
from voidrl.envs.ids import is_importable, parse_id
from voidrl.envs.make import EnvFactory, make_envs
from voidrl.envs.spaces import spec_from_json
from voidrl.envs.suites.dmcontrol import require_task
from voidrl.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailedError,
    RunFolderError,
    RunInterrupted,
    SpaceError,
    StoppedBySignal,
    VoidrlError,
    by_caller,
    shown,
)
from voidrl.methods.base import Method
from voidrl.runs import checkpoint
from voidrl.runs.folder import RunFolder, default_run_path, log_failed_start, overwriting
from voidrl.runs.status import read_status
from voidrl.sharing import pretrained as share
from voidrl.system.device import placed
from voidrl.system.files import user_path
from voidrl.system.terminal.foreign import log_hidden_warnings, quiet_libraries
from voidrl.system.terminal.output import durable_output, say
from voidrl.system.threads import cpu_threads
from voidrl.system.units import human_seconds, parse_count
from voidrl.training import build
from voidrl.training.affordable import CPU_PRESET, hopeless_on_cpu
from voidrl.training.build import ConfigLayer, Env, Overrides
from voidrl.training.callbacks import CallbackList, Callbacks
from voidrl.training.disk import checkpoint_bytes, require_disk, saved_bytes
from voidrl.training.evaluation import Evaluation, evaluate_agent
from voidrl.training.failures import resume_command
from voidrl.training.loop import Loop
from voidrl.training.metrics import require_rows
from voidrl.training.saved_run import (
    LoopState,
    begin_stream,
    latest_run,
    load_explorer,
    load_run,
    require_as_many_ranks,
    sweep_parts,
)
from voidrl.training.wiring import make_loop
from voidrl.types import EnvSpec

if TYPE_CHECKING:
    from voidrl.probing.result import ProbeResult

Steps = int | str
STEPS_PER_EVAL_ENV = 500  # with fewer, building an environment would take longer than its part


@known_arguments
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
    data: str | Path | None = None,
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
        preset: A protocol or an agent, a name from `voidrl list presets`, or `none`; by default
            `atari-paper` for Atari, `urlb-states` for DMControl, and none for others. On a CPU it is `cpu`
            where that would take more than an hour for 100K steps.
        config: Changes to the config, nested or dotted: `{"learner.n_step": 3}`.
        device: `auto`, `cpu`, `cuda`.
        overwrite: Replace the run in `out`.
        callbacks: Called while it trains, see `voidrl.Callback`; one that stops it ends the run normally.
        data: A dataset that fills the replay before the first step: the id or the path of a Minari dataset,
            or an .npz file of `voidrl export`.
    """
    arguments = _arguments(method=method, steps=steps, seed=seed, device=device) | _data_argument(data)
    return _start_new("pretrain", env, preset, config, arguments, out, overwrite, callbacks)


@known_arguments
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
    data: str | Path | None = None,
) -> Agent:
    """Train the learner from scratch on the environment's own reward. Arguments as in `pretrain`.

    For comparison with fine-tuning it takes the preset's values for that: steps, updates per step, warm-up
    and learning rate. `bonus` is a method whose intrinsic reward is added to the environment's, named as in
    `pretrain(method=…)`; the fields `bonus.*` of the config say how much of it.
    """
    arguments = _arguments(steps=steps, seed=seed, device=device) | _data_argument(data)
    return _start_new("train", env, preset, config, arguments, out, overwrite, callbacks, bonus)


@known_arguments
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
    if old.phase == "finetune" and old.finetune.frozen_column != "none":
        raise ConfigError(
            f"an agent with finetune.frozen_column = {old.finetune.frozen_column!r} cannot be fine-tuned "
            f"again, its heads read two encoders: fine-tune the pre-trained agent that it was made from"
        )
    layers = build.finetune_layers(old, config, _arguments(steps=steps, seed=seed, device=device))
    env = share.own_env(pretrained) if env is None else env
    return _start(env, layers, out, overwrite, callbacks, pretrained=pretrained)


@known_arguments
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
        env: The function, or `module:function`; only for a run on one that cannot be imported by its name.
        device: By default the one it was started with.
        engine: `auto`, `eager`, `graph` or `compile`; by default the one it was started with.
        callbacks: Those of the run are not saved, only their states: pass them again.
    """
    hooks = _hooks(callbacks)
    folder, written = open_run(run)
    is_main = dist.current().is_main
    folder = folder if is_main else RunFolder.follow(folder.path)
    changes = merge(build.changes(config), _arguments(steps=steps, device=device, engine=engine))
    factory = _resumable_factory(env, written.env.id)
    say = _speaker(folder)
    with folder.lock() if is_main else nullcontext(), _resumable(folder, written):
        log_hidden_warnings(folder.log)
        saved = _latest_of_all(folder, say)
        if saved is not None:
            require_as_many_ranks(folder.path, saved.count("ranks"), dist.current().size)
        resumed, notes = _resumed_config(folder, saved, written, changes)
        if saved is None and resumed.phase == "finetune":
            raise CheckpointError(
                f"{folder.path} holds no checkpoint, and so nothing of the agent that was to be fine-tuned: "
                f"start it again, {by_caller('with overwrite=True', 'with `voidrl finetune … --overwrite`')}"
            )
        spec = None if saved is None else _spec_of(saved)
        has_threads = saved is not None and "cpu_threads" in saved.meta  # a run on a GPU has none
        threads = saved.count("cpu_threads") if saved is not None and has_threads else None
        # Checkpoints from before it was kept are of runs that `auto` would have captured.
        before = None if saved is None else saved.meta.get("engine", "graph")
        with ExitStack() as stack:
            with _traceback_written(folder.log_traceback):
                assembled = build.assemble(
                    resumed, factory, say, trained_in=spec, threads=threads, engine=before
                )
                parts = stack.enter_context(assembled)
            agent = parts.agent
            if saved is None:  # the run starts over, and so does metrics.jsonl
                agent.representation.read_files()
                _fill(parts, say)
                begin_stream(agent)
                state = LoopState(metrics_bytes=0)
            else:
                parts.engine.explorer = load_explorer(saved, agent)
                state = load_run(saved, agent, parts.replay)
            if state.steps >= resumed.steps:
                if state.steps >= written.steps:
                    say(f"{folder.path} is complete at step {state.steps}; to train longer, give more steps")
                    folder.status.complete(written.steps, state.steps)
                else:
                    say(
                        f"{folder.path} is at step {state.steps} already, and steps = {resumed.steps} is a "
                        f"total: there is nothing to train; give a larger one"
                    )
                return agent
            if is_main:
                require_rows(folder.path, state.metrics_bytes or 0)
                _require_disk(folder.path, agent, say)
                checkpoint.write_json_atomic(folder.config_path, to_json(resumed))
            folder.status.start(resumed.steps, state.steps)
            say(f"{folder.path}: resumed at step {state.steps}")
            for note in notes:
                say(note)
            agent.origin = folder.path.absolute()
            measure = _probe_in_training(agent, factory)
            for note in hooks.load(state.callbacks, state.steps):
                say(note)
            _run(make_loop(parts.engine, parts.envs, parts.eval_envs, folder, state, measure, hooks), say)
    return agent


def open_run(run: str | Path) -> tuple[RunFolder, Config]:
    """The folder of a run that is to be resumed, and the config that is written there."""
    if share.is_pretrained(user_path(run)):
        raise RunFolderError(
            f"{run} holds an agent without replay and optimizers, which cannot be resumed: adapt it "
            f"with `voidrl finetune`"
        )
    folder = RunFolder.open(run)
    checkpoint.require_readable(folder.checkpoints_path)
    return folder, build.config_from_json(checkpoint.read_json(folder.config_path, "the config of a run"))


@known_arguments
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
    require(0 <= seed < 2**30, "seed", seed, "a whole number in [0, 2³⁰)")
    agent = source if isinstance(source, Agent) else load(source, device=device)
    epsilon = agent.config.log.eval_epsilon if epsilon is None else epsilon
    require(0 <= epsilon <= 1, "epsilon", epsilon, "a probability in [0, 1]")
    trained_in = agent.config.env
    config, factory = build.env_for(share.own_env(agent) if env is None else env, trained_in)
    config = dataclasses.replace(config, count_states=count_states)
    count = None if steps is None else parse_count(steps)
    if num_envs is None:
        wanted = episodes if count is None else max(1, count // STEPS_PER_EVAL_ENV)
        num_envs = build.evaluation_envs(config, wanted)
    require(num_envs >= 1, "num_envs", num_envs, "1 or more")
    place = str(agent.device)
    with closing(make_envs(config, factory, num_envs, evaluation=True, device=place)) as envs:
        build.require_same_spaces(agent.spec, trained_in.id, envs.spec, config.id)
        return evaluate_agent(
            agent, envs, episodes, seed, steps=count, deterministic=deterministic, epsilon=epsilon
        )


@known_arguments
@quiet_libraries()
def probe(
    source: Agent | str | Path,
    env: Env | None = None,
    *,
    steps: Steps = 10_000,
    policy: str = "mixed",
    seed: int = 0,
    variables: Sequence[str] | None = None,
    num_envs: int | None = None,
    device: str = "auto",
) -> ProbeResult:
    """Measure what an agent's representation and intrinsic reward see of the environment's true state.

    Args:
        source: An agent, the folder of a run, a checkpoint or a saved agent, or the Hub's `user/name` of one.
        env: By default the environment it was trained in.
        steps: Steps of play to measure on.
        policy: Who plays: `agent` (exploring as in training), `random`, `sticky` (random actions, each held
            for some steps) or `mixed` (a third of each).
        seed: Of the play, of held-out episodes and of the random encoder.
        variables: Names of the variables of the true state; by default all that there are.
        num_envs: Environments played side by side.
        device: Where a loaded agent is placed.
    """
    from voidrl.probing.run import probe_agent

    count = parse_count(steps)
    require(0 <= seed < 2**30, "seed", seed, "a whole number in [0, 2³⁰)")
    agent = source if isinstance(source, Agent) else load(source, device=device)
    config, factory = build.env_for(share.own_env(agent) if env is None else env, agent.config.env)
    return probe_agent(
        agent, config, factory, count, policy=policy, seed=seed, variables=variables, num_envs=num_envs
    )


def load(source: str | Path, *, device: str = "auto", trust_code: bool = False, best: bool = False) -> Agent:
    """An agent from the folder of a run (its newest valid checkpoint), a checkpoint or a saved agent.

    Where there is no such folder, `user/name` is loaded from the Hugging Face Hub, with `trust_code` as in
    `from_pretrained`. `best` loads the best evaluated agent of a fine-tuning run instead of its last; that
    may be the pre-trained agent.
    """
    path = user_path(source)
    if best:
        return _best_agent(path, device)
    saved_agent = share.is_pretrained(path) or (path / share.WEIGHTS).is_file()
    if saved_agent or (not path.exists() and share.is_on_hub(source)):
        return share.from_pretrained(source, device=device, trust_code=trust_code)
    if not path.exists():
        raise RunFolderError(
            f"there is nothing at {path}: expected the folder of a run, a checkpoint or a saved agent, or "
            f"user/name on the Hugging Face Hub"
        )
    if (path / checkpoint.MANIFEST).is_file():
        return _saved_agent(checkpoint.load(path), device)
    root = path if checkpoint.list_steps(path) else RunFolder.open(path).checkpoints_path
    if not checkpoint.list_steps(root):
        raise CheckpointError(f"the run {path} holds no checkpoint yet")
    return checkpoint.read_latest(root, _say_once, partial(_saved_agent, device=device))


def _best_agent(path: Path, device: str) -> Agent:
    root = RunFolder.open(path).best_path
    if not checkpoint.list_steps(root):
        raise CheckpointError(
            f"{path} has no best agent, only fine-tuning keeps one: leave out "
            f"{by_caller('best=True', '--best')} to use its last agent"
        )
    return checkpoint.read_latest(root, _say_once, partial(_saved_agent, device=device))


def _saved_agent(saved: checkpoint.Checkpoint, device: str) -> Agent:
    spec, config = _spec_of(saved), _config_of(saved)
    with placed(device, config.seed) as place, cpu_threads(place, 0.0):
        agent = Agent(spec, config, place)
    agent.load_tensors(saved.tensors("agent.safetensors"))
    agent.steps, agent.origin = saved.count("agent_steps"), saved.path.absolute()
    return agent


# Starting


def _arguments(steps: Steps | None = None, **others: Any) -> dict[str, Any]:
    """The arguments that were given, as changes to the config."""
    given = {"steps": None if steps is None else parse_count(steps, zero=True), **others}
    return {name: value for name, value in given.items() if value is not None}


def _data_argument(data: str | Path | None) -> dict[str, Any]:
    """A dataset as a change to the config, which names it in a way that a resumed run understands too."""
    return {} if data is None else {"replay.data": absolute_name(data)}


def _start_new(
    phase: str,
    env: Env,
    preset: str | None,
    config: Overrides | None,
    arguments: dict[str, Any],
    out: str | Path | None,
    overwrite: bool,
    callbacks: Callbacks,
    bonus: str | type[Method] | None = None,
) -> Agent:
    """Start a run from scratch; the preset is chosen where neither it nor a whole config is given."""

    def layers(preset: str | None) -> list[ConfigLayer]:
        return build.layers_for(env, phase, preset, config, arguments, bonus=bonus)

    chooses = preset is None and not isinstance(config, Config)
    cheaper = partial(layers, CPU_PRESET) if chooses else None
    return _start(env, layers(preset), out, overwrite, callbacks, cheaper=cheaper)


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
    cheaper: Callable[[], list[ConfigLayer]] | None = None,
) -> Agent:
    """Build everything before the folder is made, so that bad input leaves nothing behind.

    `cheaper` has the layers that are taken instead of those that are hopeless on a CPU.
    """
    notes: list[str] = []
    hooks = _hooks(callbacks)
    with logged_start(env, layers, out):
        probed = build.probe(env, layers)
    if pretrained is not None:
        build.require_same_spaces(pretrained.spec, pretrained.config.env.id, probed.spec, probed.env.id)
    config = build.config_for(probed, layers)
    if cheaper is not None and (note := hopeless_on_cpu(env, probed.spec, config)):
        layers = cheaper()
        notes.append(note)
        with logged_start(env, layers, out):
            probed = build.probe(env, layers)
        config = build.config_for(probed, layers)
    if probed.factory is None and config.phase != "pretrain":
        require_task(config.env.id, f"to {config.phase} needs one")
    if config.replay.data is not None:  # before anything is built
        open_fitting(config.replay.data, probed.spec, config.env)
    config = build.with_files(config, None if pretrained is None else pretrained.config)
    with ExitStack() as stack:
        with logged_start(env, layers, out):
            parts = stack.enter_context(build.assemble(config, probed.factory, notes.append))
        agent = parts.agent
        if pretrained is None:
            agent.representation.read_files()
        else:
            agent.load_pretrained({k: v.to(agent.device) for k, v in pretrained.tensors().items()})
            agent.steps = pretrained.steps
            if Explorer.is_needed(config):
                parts.engine.explorer = Explorer.copy_of(pretrained, agent.device)
        _fill(parts, notes.append)
        build.rehearse_representation(agent)
        build.rehearse_reward(agent)
        begin_stream(agent)
        warmup = config.finetune.warmup_steps if config.phase == "finetune" else config.warmup_steps
        rollout = agent.learner.rollout_steps * config.env.num_envs
        if not config.steps:
            notes.append("the agent is saved untrained: steps = 0")
        elif agent.learns and config.steps < rollout:
            notes.append(
                f"nothing will be learned: {config.steps} steps are less than one rollout of {rollout} "
                f"(learner.rollout_steps × env.num_envs)"
            )
        elif agent.learns and not rollout and config.steps <= warmup:
            notes.append(
                f"nothing will be learned: {config.steps} steps are not more than the warm-up of {warmup} "
                f"({'finetune.' if config.phase == 'finetune' else ''}warmup_steps)"
            )
        elif agent.learns and config.reset.every_updates and config.steps <= config.reset.last_steps:
            notes.append(
                f"nothing will be reset: all {config.steps} steps are among the last "
                f"{config.reset.last_steps}, which are without resets (reset.last_steps)"
            )
        name = _default_name(to_json(config), config.env.id)
        if dist.current().is_main:
            path = user_path(out or default_run_path(*name))
            RunFolder(path).require_free(overwrite)  # a folder that is taken needs no disk space
            _require_disk(path, agent, notes.append)
        with logged_start(env, layers, out):
            measure = _probe_in_training(agent, probed.factory)
        with _new_folder(out, name, overwrite) as folder:
            agent.origin = folder.path.absolute()
            if dist.current().is_main:
                checkpoint.write_json_atomic(folder.config_path, to_json(config))
            folder.status.start(config.steps)
            folder.log(f"{config.phase} {config.env.id} on {agent.device} for {config.steps} steps")
            log_hidden_warnings(folder.log)
            parts.engine.say = say = _speaker(folder)
            for note in notes if out else [*notes, f"the run is kept in {folder.path}"]:
                say(note)
            given = parts.engine, parts.envs, parts.eval_envs, folder, LoopState(), measure, hooks, pretrained
            _run(make_loop(*given), say)
    return agent


def _hooks(callbacks: Callbacks) -> CallbackList:
    """The callbacks of a run; of several ranks, the first calls them."""
    hooks = CallbackList(callbacks)
    return hooks if dist.current().is_main else CallbackList()


@contextmanager
def _new_folder(out: str | Path | None, name: tuple[str, str, int], overwrite: bool) -> Iterator[RunFolder]:
    """The folder of a new run, which the first rank makes for all."""
    if not dist.current().is_main:
        followed = RunFolder.follow(dist.broadcast_object(None))
        followed.require_visible()
        dist.total(1)
        yield followed
        return
    named = RunFolder.create(out or default_run_path(*name), overwrite=overwrite)
    with named if out else RunFolder.create_unnamed(*name) as folder:
        dist.broadcast_object(str(folder.path.absolute()))
        dist.total(1)  # all of them see it
        yield folder


def _fill(parts: build.Assembly, say: Callable[[str], None]) -> None:
    """Fill the replay of a run that starts from its dataset, if it has one."""
    config = parts.agent.config
    if config.replay.data is not None:
        say(fill_replay(parts.replay, config.replay.data, config.env, parts.agent.method))


def _probe_in_training(agent: Agent, factory: EnvFactory | None) -> Callable[[], dict[str, float]] | None:
    """What measures the agent for `log.probe_every_steps`; its play is collected here, before training."""
    if not agent.config.log.probe_every_steps or not dist.current().is_main:
        return None
    from voidrl.probing.run import RunProbe

    with dist.alone():
        return RunProbe(agent, factory)


def _require_disk(folder: Path, agent: Agent, say: Callable[[str], None]) -> None:
    """Compare what the checkpoints of a run will need with the free space, before it begins."""
    size = saved_bytes(agent.tensors().values(), agent.optimizers.all_parameters())
    moments, log = [agent.config], agent.config.log
    every = log.checkpoint_every_steps
    before = max(0, agent.config.steps - 1) // every * every
    if before and not log.keep_replay:  # the last checkpoint with a replay is larger than the one at the end
        moments.append(update(agent.config, {"steps": before, "log.keep_replay": True}))

    def needed(count: int) -> int:
        of_method = agent.spec, agent.method.skill_dim
        total = max(
            checkpoint_bytes(each, *of_method, size, count=count, note_dim=agent.note_dim) for each in moments
        )
        roots = [folder / "checkpoints", *(folder / "ranks").glob("*")]
        return total - sum(map(checkpoint.bytes_on_disk, roots))  # those of a resumed run

    require_disk(folder, needed, agent.config.log.keep_last, say)


@contextmanager
def logged_start(env: Env, layers: list[ConfigLayer], out: str | Path | None) -> Iterator[None]:
    """Write the traceback of an environment that fails at a start to the log that the run would have had."""

    def write(error: EnvironmentFailedError) -> Path | None:
        values = merge({"seed": Config().seed, "method": Config().method.name}, *(x.values for x in layers))
        values["method"]["name"] = build.piece_name("method", values)
        env_id = build.env_for(env, EnvConfig())[0].id
        return log_failed_start(out or default_run_path(*_default_name(values, env_id)), error)

    with _traceback_written(write):
        yield


@contextmanager
def _traceback_written(write: Callable[[EnvironmentFailedError], Path | None]) -> Iterator[None]:
    """Call `write` for an environment that fails here, and name the file that it returns in the message."""
    try:
        yield
    except EnvironmentFailedError as error:
        path = write(error)
        if path is None:
            raise
        raise EnvironmentFailedError(f"{error}; the traceback is in {path}") from error


def _default_name(config: Mapping[str, Any], env_id: str) -> tuple[str, str, int]:
    """What an unnamed run is called by; the reward from scratch is the task's, and a method is its bonus."""
    name = str(config["method"]["name"]).rpartition(":")[2]
    scratch = f"scratch-{name}" if bonus_method(config) else "scratch"
    what = {"train": scratch, "finetune": f"{name}-finetune"}.get(config["phase"], name)
    return env_id, what, config["seed"]


def _run(loop: Loop, say: Callable[[str], None]) -> None:
    began, before = time.monotonic(), loop.state.steps
    try:
        loop.run()
    except Exception as error:
        if isinstance(error, EnvironmentFailedError) or not isinstance(error, VoidrlError):
            loop.training.folder.log_traceback(error)  # to fix it, one needs the line
        loop.training.folder.log(f"failed: {error}")
        loop.training.folder.status.fail(error, loop.state.steps)
        raise
    took = human_seconds(time.monotonic() - began)
    say(f"{loop.training.folder.path}: {loop.state.steps - before} steps in {took}")
    for line in [] if loop.training.best is None else loop.training.best.summary(loop.state.steps):
        say(line)


@contextmanager
def _resumable(folder: RunFolder, config: Config) -> Iterator[None]:
    """Tell a signal that comes before training, or when it is over, from a failure."""
    try:
        yield
    except StoppedBySignal as stop:
        if folder.status.is_done:  # it came while the environments were being closed
            raise RunInterrupted(f"{stop} after the last step; the run is complete") from None
        remedy = f"resume with `{resume_command(folder, config, dist.current())}`"
        raise RunInterrupted(f"{stop} before training; the run is as it was, {remedy}") from None


def _resumed_config(
    folder: RunFolder, saved: checkpoint.Checkpoint | None, written: Config, changes: Mapping[str, Any]
) -> tuple[Config, list[str]]:
    """The config with which a run is resumed, and a sentence for each field that has changed.

    The checkpoint decides what the run is; `config.json` and the command may change the rest.
    """
    trained = written if saved is None else _config_of(saved)
    requested = update(written, changes)
    asked = differences(written, requested)
    for field, (old, new) in asked.items():
        if not may_change(field, written.phase):
            raise ConfigError(
                f"{field} = {shown(new)} cannot be set when a run is resumed: it is {shown(old)} there and "
                f"defines the run; start a new run, or change only {', '.join(_resumable_names())}"
            )
    edited = differences(trained, written)
    refused = [
        f"{field} was {shown(old)} and is {shown(new)}"
        for field, (old, new) in edited.items()
        if not may_change(field, trained.phase)
    ]
    if refused:
        assert saved is not None
        raise ConfigError(
            f"{folder.config_path} was edited since {saved.path.name} in what defines the run: "
            f"{', '.join(refused)}; restore it, or start a new run with these values"
        )
    changed = differences(trained, requested)
    return requested, [f"{field} was {old!r}, is {new!r}" for field, (old, new) in changed.items()]


def _config_of(saved: checkpoint.Checkpoint) -> Config:
    """The config in the manifest of a checkpoint."""
    path = saved.path / checkpoint.MANIFEST
    try:
        return build.config_from_json(checkpoint.require_field(path, saved.meta, "config", dict))
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _spec_of(saved: checkpoint.Checkpoint) -> EnvSpec:
    """The spaces in the manifest of a checkpoint."""
    try:
        return spec_from_json(saved.meta.get("spec"))
    except SpaceError as error:
        raise CheckpointError(f"{saved.path / checkpoint.MANIFEST}: {error}") from error


def _resumable_names() -> list[str]:
    names = [f"{name}*" if name.endswith(".") else name for name in RESUMABLE_FIELDS]
    return [*names, "and in pre-training finetune.*, bonus.* and reward_scale"]


def _resumable_factory(env: Env | None, trained_in: str) -> EnvFactory | None:
    """The function that makes environments of a resumed run, where the original cannot be imported."""
    if env is None or not isinstance(env, str):
        return cast(EnvFactory | None, env)
    name, options = parse_id(env)
    found = import_path("environment", name) if ":" in name else None
    if not callable(found) or is_importable(trained_in):
        raise ConfigError(
            f"env = {env!r} cannot be used to resume in {trained_in!r}: expected module:function, for a run "
            f"on a function that cannot be imported by its name"
        )
    return partial(found, **options)


def _latest_of_all(folder: RunFolder, say: Callable[[str], None]) -> checkpoint.Checkpoint | None:
    """`_latest`, which the first rank finds for all."""
    if dist.current().is_main:
        folder.sweep()
        saved = _latest(folder, say)
        sweep_parts(folder)
        dist.broadcast_object(None if saved is None else saved.step)
        return saved
    step = dist.broadcast_object(None)
    return None if step is None else checkpoint.load_step(folder.checkpoints_path, step)


def _latest(folder: RunFolder, say: Callable[[str], None]) -> checkpoint.Checkpoint | None:
    """The newest valid checkpoint of a run; None only if the run has never written one."""
    root = folder.checkpoints_path
    remedy = f"bring it back, or start again with {overwriting()}"
    if not root.is_dir():
        state = "is not a folder" if root.exists() else "is gone"
        raise CheckpointError(f"{root}, the folder of the checkpoints of the run, {state}: {remedy}")
    if checkpoint.list_steps(root):
        return latest_run(folder, say)
    status = read_status(folder.path)
    if status is not None and status.checkpoint is not None:
        raise CheckpointError(
            f"the checkpoint of step {status.checkpoint} that {folder.path} had is gone: {remedy}"
        )
    return None


def _speaker(folder: RunFolder) -> Callable[[str], None]:
    def say_and_log(text: str) -> None:
        _say_once(text)
        folder.log(text)

    return say_and_log


def _say_once(text: str) -> None:
    """Say it on the first of all ranks."""
    if dist.current().is_main:
        say(text)
