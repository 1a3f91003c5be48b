"""Checkpoints of a run: agent, optimizers, replay, random numbers and counters.

    RUN/checkpoints/step_…   agent, optimizers, counters; the replay and random numbers of the first rank
    RUN/ranks/1/step_…       replay, random numbers and visits of another rank

A checkpoint is valid only with the parts of all ranks. Parts are written before it and deleted after it, so
that a kill at any moment leaves a valid one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voidrl import dist
from voidrl.agent import Agent
from voidrl.agent.exploration import Explorer
from voidrl.config import to_json
from voidrl.engine.engine import Engine
from voidrl.envs.spaces import spec_from_json
from voidrl.errors import CheckpointError, PieceFailedError, SpaceError
from voidrl.replay import Replay
from voidrl.runs import checkpoint
from voidrl.runs.folder import RunFolder
from voidrl.system.device import random_state, reseed, restore_random_state
from voidrl.training.evaluation import run_seed
from voidrl.training.positions import Positions
from voidrl.types import EnvSpec

EXPLORER, REPLAY = "explorer.safetensors", "replay.safetensors"
STATES = "states/"  # prefix of the names of what `env.count_states` counted
RANKS, AGENT_SUM = "ranks", "agent_sum"  # equal in all parts of a checkpoint
NEVER = 10**9  # checkpoints that are kept: none is deleted by a count
RANK_STREAM = 4  # keeps random numbers of ranks apart from other seeds of the same run


@dataclass
class LoopState:
    """The progress of a run; with agent, replay and random numbers, all that a resumed run needs."""

    steps: int = 0
    """Environment steps taken; resets by autoreset do not count."""
    updates: int = 0
    """Updates, those on rollouts among them."""
    episodes: int = 0
    learning_from: int | None = None
    """Steps before the first update; None while the warm-up lasts."""
    adapted_from: int | None = None
    """Steps before the agent was adapted to the task; None before that, and in other phases."""
    kept: str = ""
    """The pre-trained heads that adaptation kept (`Outcome.kept`); "" before it, and in other phases."""
    return_range: float = 0.0
    """Range of the returns by which rewards are scaled, in units of the task; 0 before adaptation."""
    critic_until: int = 0
    """Updates up to which a new critic learns without the actor."""
    rollouts: int = 0
    """Rollouts that an on-policy learner has learned from."""
    rollout_start: int = 0
    """Steps before the rollout under way. One that a checkpoint interrupts continues with new episodes: its
    steps are in the replay, and the policy has not changed."""
    visits: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Visits of each `info["cell"]`, if the environment reports it."""
    positions: Positions = field(default_factory=Positions)
    """Otherwise visits of the x and y in `info["variables"]`, if it reports those."""
    states: dict[str, np.ndarray] = field(default_factory=dict)
    """The states that `env.count_states` has counted, as of the last checkpoint."""
    metrics_bytes: int | None = None
    """Length of metrics.jsonl at the last checkpoint; None for a new run."""
    callbacks: list[dict[str, Any]] = field(default_factory=list)
    """The states of callbacks, as of the last checkpoint."""


COUNTS = ("steps", "updates", "episodes", "rollouts", "rollout_start", "metrics_bytes")
APART = (*COUNTS, "visits", "positions", "states", "callbacks")
ADAPTATION = [each.name for each in fields(LoopState) if each.name not in APART]


def save_run(folder: RunFolder, engine: Engine, state: LoopState) -> Path:
    """Save a checkpoint; a complete run keeps its replay only with `log.keep_replay`.

    Each rank saves its part, then the first completes the checkpoint.
    """
    if not folder.path.is_dir():  # a new one would hold a checkpoint and no run
        raise CheckpointError(
            f"cannot save step {state.steps}: the run folder {folder.shown} is gone; if it was moved, resume "
            f"it there"
        )
    here, agent, log = dist.current(), engine.agent, engine.agent.config.log
    meta = {name: getattr(state, name) for name in COUNTS} | {RANKS: here.size}
    if here.size > 1:
        meta[AGENT_SUM] = require_same_agent(agent)
    loop = {"visits": torch.from_numpy(state.visits), **random_state(agent.device)}
    loop |= state.positions.state()
    loop |= {f"{STATES}{name}": torch.from_numpy(seen) for name, seen in state.states.items()}
    files = {"loop.safetensors": checkpoint.Group(loop)}
    if log.keep_replay or state.steps < agent.config.steps:
        files[REPLAY] = checkpoint.Group(engine.replay.state())
        for name, tag, tensors in engine.replay.chunks():
            files[f"replay_{name}.safetensors"] = checkpoint.Group(tensors, tag)
    if not here.is_main:
        checkpoint.save(rank_root(folder, here.rank), state.steps, files, meta, keep_last=NEVER)
    dist.all_gather_object(None)  # the parts of all others are on the disk
    if not here.is_main:
        return folder.checkpoints_path / f"step_{state.steps:012d}"
    files |= {
        "agent.safetensors": checkpoint.Group(agent.tensors()),
        "optimizers.safetensors": checkpoint.Group(agent.optimizers.tensors()),
    }
    meta |= {
        "agent_steps": agent.steps,
        "adaptation": {name: getattr(state, name) for name in ADAPTATION},
        "callbacks": state.callbacks,
        "spec": agent.spec.to_json(),
        "config": to_json(agent.config),
        "engine": engine.mode,
    }
    if agent.device.type == "cpu":
        meta["cpu_threads"] = torch.get_num_threads()
    if engine.explorer is not None:  # its weights never change: one file serves all checkpoints of a run
        files[EXPLORER] = checkpoint.Group(engine.explorer.tensors(), tag="frozen")
        meta["explorer"] = to_json(engine.explorer.config)
    path = checkpoint.save(folder.checkpoints_path, state.steps, files, meta, keep_last=log.keep_last)
    sweep_parts(folder)
    return path


def require_same_agent(agent: Agent) -> str:
    """A checksum of the agent and its optimizers; refuses ranks whose agents differ."""
    tensors = {**agent.tensors(), **{f"optimizer {k}": v for k, v in agent.optimizers.tensors().items()}}
    digest = hashlib.sha256()
    for _, tensor in sorted(tensors.items()):  # optimizers are in the order of their first use
        content = tensor.detach().reshape(-1).view(torch.uint8)
        digest.update(content.cpu().numpy().data)  # host synchronization
    mine = digest.hexdigest()
    if len({*dist.all_gather_object(mine)}) > 1:
        raise PieceFailedError(
            "the agents of the ranks differ: expected the same in all; a piece that keeps what its own "
            "process has seen must exchange it, with voidrl.dist.average_ or all_gather, or run on one rank"
        )
    return mine


def rank_root(folder: RunFolder, rank: int) -> Path:
    """The folder with the parts of a rank other than the first."""
    return folder.ranks_path / str(rank)


def sweep_parts(folder: RunFolder) -> None:
    """Delete the parts of ranks that belong to no checkpoint of the run."""
    kept = {*checkpoint.list_steps(folder.checkpoints_path)}
    with suppress(OSError):  # the next save tries again
        for root in folder.ranks_path.glob("*"):
            for step in {*checkpoint.list_steps(root)} - kept:
                checkpoint.discard(root, step)


def latest_run(folder: RunFolder, say: Callable[[str], None]) -> checkpoint.Checkpoint:
    """The newest checkpoint that is valid with the parts of all its ranks."""
    saved: checkpoint.Checkpoint = checkpoint.latest(folder.checkpoints_path, say, load_parts)
    return saved


def load_parts(saved: checkpoint.Checkpoint) -> list[checkpoint.Checkpoint]:
    """The checkpoint and the parts of its other ranks, in their order."""
    return [saved, *(_load_part(saved, rank) for rank in range(1, saved.count(RANKS)))]


def _load_part(saved: checkpoint.Checkpoint, rank: int) -> checkpoint.Checkpoint:
    try:
        part = checkpoint.load_step(rank_root(RunFolder(saved.path.parent.parent), rank), saved.step)
        if any(part.meta.get(name) != saved.meta.get(name) for name in (RANKS, AGENT_SUM)):
            raise CheckpointError(f"{part.path} belongs to another checkpoint of step {saved.step}")
    except CheckpointError as error:
        raise CheckpointError(
            f"the part of rank {rank} of {saved.count(RANKS)} cannot be used ({error})"
        ) from error
    return part


def spec_of(saved: checkpoint.Checkpoint) -> EnvSpec:
    """The spaces in the manifest of a checkpoint."""
    try:
        return spec_from_json(saved.meta.get("spec"))
    except SpaceError as error:
        raise CheckpointError(f"{saved.path / checkpoint.MANIFEST}: {error}") from error


def load_run(saved: checkpoint.Checkpoint, engine: Engine) -> LoopState:
    """The inverse of `save_run`, random numbers included; each rank has its part again."""
    agent, here = engine.agent, dist.current()
    if (meta := saved.meta.get("explorer")) is not None:  # draws random numbers, which are restored below
        engine.explorer = Explorer.load(meta, saved.tensors(EXPLORER), agent.spec, agent.device)
    agent.load_tensors(saved.tensors("agent.safetensors"))
    agent.load_optimizer_tensors(saved.tensors("optimizers.safetensors"))
    agent.steps = saved.count("agent_steps")
    mine = saved if here.is_main else _load_part(saved, here.rank)
    if REPLAY in saved.files:
        load_replay(mine, engine.replay)
    elif saved.count("steps") < agent.config.steps:
        raise CheckpointError(
            f"{saved.path} holds no replay, since the run was complete with log.keep_replay = False, and "
            f"cannot be extended to {agent.config.steps} steps: fine-tune its agent, or run it again with "
            f"log.keep_replay = True"
        )
    loop = mine.tensors("loop.safetensors", "visits", "rng_cpu")
    restore_random_state(loop, agent.device)
    states = {k.removeprefix(STATES): v.numpy() for k, v in loop.items() if k.startswith(STATES)}
    found = checkpoint.require_field(saved.path / checkpoint.MANIFEST, saved.meta, "adaptation", dict)
    progress = {name: saved.count(name) for name in COUNTS} | {name: found[name] for name in ADAPTATION}
    callbacks = saved.meta.get("callbacks", [])
    visits, positions = loop["visits"].numpy(), Positions.load(loop)
    return LoopState(visits=visits, positions=positions, states=states, callbacks=callbacks, **progress)


def begin_stream(agent: Agent) -> None:
    """Give each rank its own random numbers; the first has those of a run on one process."""
    if rank := dist.current().rank:
        reseed(run_seed(agent.config.seed, RANK_STREAM, rank, 0), agent.device)


def load_replay(saved: checkpoint.Checkpoint, replay: Replay) -> None:
    """Fill a replay from a checkpoint or from the part of a rank, which must have one."""
    positions = saved.tensors(REPLAY, *replay.state())
    if positions["starts"].shape != replay.starts.shape:
        raise CheckpointError(
            f"the replay in {saved.path} has {len(positions['starts'])} slots and the run's config makes one "
            f"of {len(replay.starts)}: set replay.capacity_steps and env.num_envs back to what they were"
        )
    chunks = (
        (name.removeprefix("replay_").removesuffix(".safetensors"), file["tag"] or "", saved.tensors(name))
        for name, file in saved.files.items()
        if name.startswith("replay_")
    )
    replay.load(positions, chunks)
