"""Starts and ends a run: its folder, its notes, the disk check, and what is logged of a failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from voidrl import dist
from voidrl.agent import Agent
from voidrl.config import bonus_method
from voidrl.errors import RunFolderError, by_caller
from voidrl.replay.sizes import slot_bytes
from voidrl.runs import checkpoint
from voidrl.runs.folder import RunFolder
from voidrl.system.machine import free_disk
from voidrl.system.terminal.output import say
from voidrl.system.units import human_bytes, human_seconds
from voidrl.training.adapting import Adapter
from voidrl.training.assembly import Parts
from voidrl.training.callbacks import CallbackList
from voidrl.training.collecting import Collector
from voidrl.training.evaluating import Evaluating, OpenEnvs, Probing
from voidrl.training.failures import needs_traceback
from voidrl.training.hooks import Checkpoints, Hook, Snapshots, UserCallbacks
from voidrl.training.logging import Logging, Output
from voidrl.training.loop import Loop
from voidrl.training.run import Run
from voidrl.training.saved_run import LoopState
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
    """A sentence for a run with too few steps to learn or to reset anything; "" for others."""
    config = agent.config
    if not config.steps:
        return "the agent is saved untrained: steps = 0"
    if not agent.learns:
        return ""
    needed = agent.effective.warmup_steps + 1
    what = f"the warm-up and one step ({'finetune.' if agent.effective.adapts else ''}warmup_steps)"
    if agent.learner.rollout_steps:
        needed = agent.learner.rollout_steps * config.env.num_envs
        what = "one rollout (learner.rollout_steps × env.num_envs)"
    if config.steps < needed:
        return f"nothing will be learned: {config.steps} steps are less than the {needed} of {what}"
    if config.reset.every_updates and config.steps <= config.reset.last_steps:
        return (
            f"nothing will be reset: all {config.steps} steps are among the last {config.reset.last_steps}, "
            f"which are without resets (reset.last_steps)"
        )
    return ""


def require_disk_space(folder: Path, agent: Agent) -> None:
    """Refuse a run whose newest checkpoint would not fit alongside the previous one."""
    needed = two_checkpoints_bytes(agent)
    roots = [folder / "checkpoints", *(folder / "ranks").glob("*")]
    needed -= sum(map(checkpoint.bytes_on_disk, roots))  # those of a resumed run
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
        folder.status.fail(error, state.steps)
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
    hooks: list[Hook] = [Output(), UserCallbacks(), Logging(run, trainer)]
    if eval_envs is not None:
        hooks.append(Evaluating(run, eval_envs, pretrained))
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
