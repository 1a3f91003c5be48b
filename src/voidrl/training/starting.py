"""Starts, resumes and ends a run: its folder, its config, the disk check, what is logged of a failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from voidrl import dist
from voidrl.agent import Agent
from voidrl.config import Config, bonus_method, update
from voidrl.config.registry import import_path
from voidrl.config.updating import RESUMABLE_FIELDS, differences, may_change
from voidrl.envs.ids import parse_id
from voidrl.envs.make import EnvFactory, is_found
from voidrl.errors import (
    CheckpointError,
    ConfigError,
    RunFolderError,
    RunInterrupted,
    StoppedBySignal,
    by_caller,
    shown,
)
from voidrl.replay.ring import slot_bytes
from voidrl.runs import checkpoint
from voidrl.runs.folder import RunFolder, overwriting
from voidrl.runs.status import read_status, sentence_of
from voidrl.system.machine import free_disk
from voidrl.system.terminal.output import say
from voidrl.system.units import human_bytes, human_seconds
from voidrl.training import build
from voidrl.training.adapting import Adapter
from voidrl.training.assembly import Parts
from voidrl.training.build import Env
from voidrl.training.callbacks import CallbackList
from voidrl.training.collecting import Collector
from voidrl.training.evaluating import Evaluating, EvaluatingTask, OpenEnvs, Probing
from voidrl.training.failures import needs_traceback, resume_command
from voidrl.training.hooks import Checkpoints, Hook, Logging, Snapshots, UserCallbacks
from voidrl.training.loop import Loop
from voidrl.training.run import Run
from voidrl.training.saved_run import RANKS, LoopState, latest_run, sweep_parts
from voidrl.training.trainer import OffPolicyTrainer, OnPolicyTrainer

ADAM_MOMENTS = 2
POSITION_BYTES = 8  # of each slot, written in full with every checkpoint


def default_name(config: Mapping[str, Any], env_id: str) -> tuple[str, str, int]:
    """Environment, method and seed for the name of a run. From scratch, the method is that of a bonus."""
    name = str(config["method"]["name"]).rpartition(":")[2]
    scratch = f"scratch-{name}" if bonus_method(config) else "scratch"
    what = {"train": scratch, "finetune": f"{name}-finetune"}.get(config["phase"], name)
    return env_id, what, config["seed"]


@contextmanager
def new_folder(out: str | Path | None, name: tuple[str, str, int], overwrite: bool) -> Iterator[RunFolder]:
    """The folder of a new run, which the first rank makes for all."""
    if not dist.current().is_main:
        followed = RunFolder.follow(dist.broadcast_object(None))
        followed.require_visible()
        dist.total(1)
        yield followed
        return
    with RunFolder.create(out, overwrite=overwrite) if out else RunFolder.create_unnamed(*name) as folder:
        dist.broadcast_object(str(folder.path.absolute()))
        dist.total(1)  # all of them see it
        yield folder


def short_run_note(agent: Agent) -> str:
    """A sentence for a run with too few steps to learn anything; "" for others."""
    config, needed = agent.config, agent.effective.warmup_steps + 1
    if not config.steps:
        return "the agent is saved untrained: steps = 0"
    what = "the warm-up and one step (warmup_steps)"
    if rollout := agent.learner.rollout_steps:
        needed, what = rollout * config.env.num_envs, "one rollout (learner.rollout_steps × env.num_envs)"
    if not agent.learns or config.steps >= needed:
        return ""
    return f"nothing will be learned: {config.steps} steps are less than the {needed} of {what}"


def require_disk_space(folder: Path, agent: Agent) -> None:
    """Refuse a run whose newest checkpoint would not fit alongside the previous one."""
    roots = [folder / "checkpoints", *(folder / "ranks").glob("*")]  # of a resumed run
    needed = two_checkpoints_bytes(agent) - sum(map(checkpoint.bytes_on_disk, roots))
    free = free_disk(folder)
    if free is not None and needed > free:
        raise RunFolderError(
            f"the disk of {folder} has {human_bytes(free)} free, and by its end the run needs "
            f"{human_bytes(needed)} for a checkpoint and its successor: choose another "
            f"{by_caller('out', '--out')}, or lower replay.capacity_steps"
        )


def two_checkpoints_bytes(agent: Agent) -> int:
    """Disk space of the last two checkpoints, each with the replay, and of snapshots and the best agent.

    They share the files of all steps that are in both.
    """
    config, log, capacity = agent.config, agent.config.log, agent.config.replay.capacity_steps
    one = sum(tensor.nbytes for tensor in agent.tensors().values())
    one += ADAM_MOMENTS * sum(weight.nbytes for weight in agent.optimizers.all_parameters())
    adapts = config.effective.adapts
    count = min(2, adapts + -(-config.steps // log.checkpoint_every_steps))
    others = sum(steps <= config.steps for steps in log.snapshot_steps) + adapts
    stored = min(config.steps, capacity + min(capacity, log.checkpoint_every_steps))
    step = slot_bytes(agent.spec, agent.method.skill_dim, note_dim=agent.note_dim) - POSITION_BYTES
    return (count + others) * one + stored * step + count * capacity * POSITION_BYTES


def train(
    parts: Parts,
    folder: RunFolder,
    state: LoopState,
    callbacks: CallbackList,
    probe: Callable[[], dict[str, float]] | None,
    pretrained: Agent | None = None,
) -> None:
    """Train in a folder, and record a failure or say what was reached; `make_loop` has the arguments."""
    parts.engine.agent.origin = folder.path.absolute()
    run = Run(parts.engine, parts.envs, folder, state, callbacks)
    began, before = time.monotonic(), state.steps
    try:
        make_loop(run, parts.eval_envs, probe, pretrained).train()
    except Exception as error:
        if needs_traceback(error):
            folder.log_traceback(error)
        folder.log(f"failed: {error}")
        folder.status.end("failed", state.steps, error=sentence_of(error))
        raise
    took = human_seconds(time.monotonic() - began)
    for line in [f"{folder.shown}: {state.steps - before} steps in {took}", *run.closing_lines]:
        run.engine.say(line)


def make_loop(
    run: Run,
    eval_envs: OpenEnvs | None = None,
    probe: Callable[[], dict[str, float]] | None = None,
    pretrained: Agent | None = None,
) -> Loop:
    """The loop of a run with its collector, its trainer and its hooks.

    Args:
        run: The run.
        eval_envs: Opens the environments for evaluations; None in a run without, and on other ranks.
        probe: Measures the agent, for `log.probe_every_steps`; None likewise.
        pretrained: The agent that a new run fine-tunes.
    """
    adapter = Adapter(run.engine, run.state)
    collector = Collector(run, adapter)
    trainer = (OnPolicyTrainer if run.config.learner.on_policy else OffPolicyTrainer)(run, adapter, collector)
    hooks: list[Hook] = [UserCallbacks(), Logging(run, trainer)]
    if eval_envs is not None:
        adapts = run.agent.effective.adapts
        hooks.append(EvaluatingTask(run, eval_envs, pretrained) if adapts else Evaluating(eval_envs))
    if probe is not None:
        hooks.append(Probing(probe))
    hooks.append(Snapshots())
    return Loop(run, collector, trainer, [*hooks, Checkpoints(trainer, hooks)])


def speaker(folder: RunFolder) -> Callable[[str], None]:
    """A function that shows a sentence to the user and logs it."""

    def say_and_log(text: str) -> None:
        say_once(text)
        folder.log(text)

    return say_and_log


def say_once(text: str) -> None:
    """Show a sentence, on the first rank only."""
    if dist.current().is_main:
        say(text)


# Resuming


@contextmanager
def explained_stop(folder: RunFolder, config: Config) -> Iterator[None]:
    """Treat a signal before or after training as an interruption, not as a failure."""
    try:
        yield
    except StoppedBySignal as stop:
        if folder.status.is_done:  # it came while the environments were being closed
            raise RunInterrupted(f"{stop} after the last step; the run is complete") from None
        remedy = f"resume with `{resume_command(folder, config)}`"
        raise RunInterrupted(f"{stop} before training; the run is as it was, {remedy}") from None


def resumed_config(
    folder: RunFolder, saved: checkpoint.Checkpoint | None, written: Config, changes: Mapping[str, Any]
) -> tuple[Config, list[str]]:
    """The config with which a run is resumed, and a sentence for each field that has changed.

    The checkpoint decides what the run is; `config.json` and the command may change the rest.
    """
    if saved is None and written.effective.adapts:
        raise CheckpointError(
            f"{folder.shown} has no checkpoint to resume from: start it again, "
            f"{by_caller('with overwrite=True', 'with `voidrl finetune … --overwrite`')}"
        )
    now = dist.current().size
    if saved is not None and (before := saved.count(RANKS)) != now:
        raise CheckpointError(
            f"{folder.path} was saved by {before} rank{'s' * (before > 1)}, each with its part of the "
            f"replay, and cannot be resumed on {now}: resume with torchrun on {before}"
        )
    trained = written if saved is None else config_of(saved)
    requested = update(written, changes)
    for field, (old, new) in differences(written, requested).items():
        if not may_change(field, written.phase):
            raise ConfigError(
                f"{field} = {shown(new)} cannot be set when a run is resumed: it is {shown(old)} there and "
                f"defines the run; start a new run, or change only {', '.join(RESUMABLE_FIELDS)}"
            )
    refused = [
        f"{field} was {shown(old)} and is {shown(new)}"
        for field, (old, new) in differences(trained, written).items()
        if not may_change(field, trained.phase)
    ]
    if refused and saved is not None:
        raise ConfigError(
            f"{folder.config_path} was edited since {saved.path.name} in what defines the run: "
            f"{', '.join(refused)}; restore it, or start a new run with these values"
        )
    changed = differences(trained, requested).items()
    return requested, [f"{field} was {old!r}, is {new!r}" for field, (old, new) in changed]


def config_of(saved: checkpoint.Checkpoint) -> Config:
    """The config in the manifest of a checkpoint."""
    path = saved.path / checkpoint.MANIFEST
    try:
        return build.config_from_json(checkpoint.require_field(path, saved.meta, "config", dict))
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error


def resumable_factory(env: Env | None, trained_in: str) -> EnvFactory | None:
    """The function that makes environments of a resumed run, where the original cannot be imported."""
    if env is None or not isinstance(env, str):
        return env
    name, options = parse_id(env)
    found = import_path("environment", name) if ":" in name else None
    if not callable(found) or is_found(trained_in):
        raise ConfigError(
            f"env = {env!r} cannot be used to resume in {trained_in!r}: expected module:function, for a run "
            f"whose own environment cannot be found"
        )
    return partial(found, **options)


def latest_of_all(folder: RunFolder, say: Callable[[str], None]) -> checkpoint.Checkpoint | None:
    """The newest valid checkpoint, which the first rank finds for all; None if there never was one."""
    root, saved = folder.checkpoints_path, None
    if not dist.current().is_main:
        step = dist.broadcast_object(None)
        return None if step is None else checkpoint.load_step(root, step)
    folder.sweep()
    status = read_status(folder.path)
    if root.is_dir() and checkpoint.list_steps(root):
        saved = latest_run(folder, say)
    elif not root.is_dir() or (status is not None and status.checkpoint is not None):
        raise CheckpointError(
            f"the checkpoints of the run in {root} are gone: bring them back, or start again with "
            f"{overwriting()}"
        )
    sweep_parts(folder)
    dist.broadcast_object(None if saved is None else saved.step)
    return saved


def nothing_to_train(folder: RunFolder, written: int, done: int, asked: int) -> str:
    """A sentence for a run that already has as many steps as were asked for; fewer steps are refused."""
    if asked < min(written, done):
        raise ConfigError(
            f"steps = {asked} cannot be used: it is a total, and {folder.shown} is at step {done}; give more"
        )
    folder.status.complete(written, done)
    return f"{folder.shown} is complete at step {done}; to train longer, give more steps"
