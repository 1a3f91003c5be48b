"""All that a resumed run needs, in checkpoints: agent, optimizers, replay, random numbers and counters.

    RUN/checkpoints/step_…   agent, optimizers, and of the rest the part of the first rank
    RUN/ranks/1/step_…       that of another rank: replay, random numbers, visits

A checkpoint of several ranks counts only with all its parts: without them it neither is loaded nor lets an
older one expire. Parts are written before it and deleted after it, so that a kill at any moment leaves a
whole one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voidrl import ranks
from voidrl.agent import Agent
from voidrl.agent.explorer import Explorer
from voidrl.config import to_json
from voidrl.errors import CheckpointError, PieceFailedError
from voidrl.ranks.totals import sum_counts
from voidrl.replay import Replay
from voidrl.replay.checksum import checksum
from voidrl.runs import checkpoint
from voidrl.runs.folder import RunFolder
from voidrl.system.device import random_state, reseed, restore_random_state
from voidrl.training.evaluation import run_seed

EXPLORER, REPLAY = "explorer.safetensors", "replay.safetensors"
STATES = "states/"  # before the names of what `env.count_states` counted, in a checkpoint
RANKS, AGENT_SUM = "ranks", "agent_sum"  # in the meta: how many there were, and what all of them had
BELONGS = (RANKS, AGENT_SUM)  # the same in all parts of a checkpoint
# Fields of the state, in the meta.
ADAPTATION = (
    "learning_from",
    "adapted_from",
    "kept",
    "return_range",
    "largest_return",
    "look_above",
    "critic_until",
    "reference",
    "returns",
)
NEVER = 10**9  # checkpoints that are kept: none is deleted by a count
RANK_STREAM = 4  # keeps their random numbers apart from other seeds of the same run


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
    """What adaptation kept of the pre-trained heads (`Outcome.kept`); "" before it, and in other phases."""
    return_range: float = 0.0
    """Range of the returns by which rewards are scaled, in units of the task; 0 before adaptation."""
    largest_return: float = 0.0
    """Largest absolute return of an episode in fine-tuning, in units of the task."""
    look_above: float = 0.0
    """`largest_return` beyond which the range of returns is looked at again."""
    critic_until: int = 0
    """Updates up to which a new critic learns without the actor."""
    reference: float | None = None
    """Mean return of episodes in the warm-up, which new heads have to reach before the explorer retires."""
    returns: list[float] = field(default_factory=list)
    """Returns of the last episodes since then."""
    rollouts: int = 0
    """Rollouts that an on-policy learner has learned from."""
    rollout_start: int = 0
    """Steps before the rollout under way. One that a checkpoint interrupts continues with new episodes: its
    steps are in the replay, and the policy has not changed."""
    visits: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    """How often each `info["cell"]` was entered, if the environment reports it."""
    states: dict[str, np.ndarray] = field(default_factory=dict)
    """The states that `env.count_states` has counted, as of the last checkpoint."""
    metrics_bytes: int | None = None
    """Length of metrics.jsonl at the last checkpoint; None for a new run."""
    callbacks: list[dict[str, Any]] = field(default_factory=list)
    """The states of callbacks, as of the last checkpoint."""


def save_run(
    folder: RunFolder,
    agent: Agent,
    replay: Replay | None,
    state: LoopState,
    explorer: Explorer | None,
    engine: str,
) -> Path:
    """Everything that a resumed run needs, as safetensors and JSON; without a replay it cannot be resumed.

    All ranks save their parts first; the first one, which has the agent, completes the checkpoint.
    """
    here, keep_last = ranks.current(), agent.config.log.keep_last
    meta: dict[str, Any] = {RANKS: here.size, "steps": state.steps}
    if here.size > 1:
        meta[AGENT_SUM] = _require_same_agent(agent)  # tells which parts belong together
    files = _part_files(agent, replay, state)
    if not here.is_main:
        # Those that are not needed any more are deleted when the whole has been written.
        checkpoint.save(rank_root(folder, here.rank), state.steps, files, meta, keep_last=NEVER)
        ranks.all_gather_object(_intact_parts(folder))
        return folder.checkpoints_path / f"step_{state.steps:012d}"
    files |= {
        "agent.safetensors": checkpoint.Group(agent.tensors()),
        "optimizers.safetensors": checkpoint.Group(agent.optimizers.tensors()),
    }
    meta |= {
        "agent_steps": agent.steps,
        "updates": state.updates,
        "episodes": state.episodes,
        "rollouts": state.rollouts,
        "rollout_start": state.rollout_start,
        "adaptation": {name: getattr(state, name) for name in ADAPTATION},
        "metrics_bytes": state.metrics_bytes,
        "spec": agent.spec.to_json(),
        "config": to_json(agent.config),
        "callbacks": state.callbacks,
        "engine": engine,
    }
    if agent.device.type == "cpu":
        meta["cpu_threads"] = torch.get_num_threads()
    if explorer is not None:  # its weights never change: one file serves all checkpoints of a run
        files[EXPLORER] = checkpoint.Group(explorer.tensors(), tag="frozen")
        meta["explorer"] = explorer.meta()
    # When all have answered, the parts of the others are on the disk.
    intact = {part for parts in ranks.all_gather_object(_intact_parts(folder)) for part in parts}

    for rank in range(1, here.size):
        if (rank, state.steps, here.size, meta[AGENT_SUM]) not in intact:
            raise CheckpointError(
                f"the part of rank {rank} of step {state.steps} in {rank_root(folder, rank)} was damaged as "
                f"soon as it was written: check the disk; older checkpoints are untouched"
            )

    def is_whole(saved: checkpoint.Checkpoint) -> bool:
        return all(_name_of(rank, saved) in intact for rank in range(1, rank_count(saved)))

    path = checkpoint.save(
        folder.checkpoints_path, state.steps, files, meta, keep_last=keep_last, is_whole=is_whole
    )
    sweep_parts(folder)
    return path


def _name_of(rank: int, part: checkpoint.Checkpoint) -> tuple[Any, ...]:
    """What tells the part of a rank from all others; the same for a checkpoint and its parts."""
    return rank, part.step, *(part.meta.get(name) for name in BELONGS)


def _intact_parts(folder: RunFolder) -> set[tuple[Any, ...]]:
    """The names of valid parts, of which each rank looks at its own and at some that ranks left before.

    It has hashed its own when it wrote them, so that no file is read again.
    """
    here = ranks.current()
    roots = folder.ranks_path.glob("*") if folder.ranks_path.is_dir() else ()
    numbers = [int(root.name) for root in roots if root.name.isdecimal()]
    mine = [rank for rank in numbers if rank % here.size == here.rank]
    return {_name_of(rank, part) for rank in mine for part in checkpoint.intact(rank_root(folder, rank))}


def _part_files(agent: Agent, replay: Replay | None, state: LoopState) -> dict[str, checkpoint.Group]:
    """What every rank has of its own."""
    loop = {"visits": torch.from_numpy(state.visits), **random_state(agent.device)}
    loop |= {f"{STATES}{name}": torch.from_numpy(seen) for name, seen in state.states.items()}
    files = {"loop.safetensors": checkpoint.Group(loop)}
    if replay is not None:
        files[REPLAY] = checkpoint.Group(replay.state())
        for name, tag, tensors in replay.chunks():
            files[f"replay_{name}.safetensors"] = checkpoint.Group(tensors, tag)
    return files


def _require_same_agent(agent: Agent) -> str:
    """Compare the agents of all ranks, tensor by tensor; returns a sum of them."""
    tensors = {**agent.tensors(), **{f"optimizer {k}": v for k, v in agent.optimizers.tensors().items()}}
    # In this order, since optimizers are in that of their first use.
    sums = {name: checksum([tensor.detach()]) for name, tensor in sorted(tensors.items())}
    first, *others = ranks.all_gather_object(sums)
    for rank, other in enumerate(others, 1):
        name = next((name for name in first if other.get(name) != first[name]), None)
        if name is not None:
            raise PieceFailedError(
                f"{name} of the agent differs between rank 0 and rank {rank}: expected the same in all; a "
                f"custom piece that keeps what only its own process has seen must exchange it, with "
                f"voidrl.ranks.average_ or all_gather, or run on one rank"
            )
    return f"{checksum([torch.tensor([*sums.values()])]):08x}"


def rank_root(folder: RunFolder, rank: int) -> Path:
    """Where the checkpoints of a rank other than the first are."""
    return folder.ranks_path / str(rank)


def sweep_parts(folder: RunFolder) -> None:
    """Delete the parts of ranks that belong to no checkpoint of the run."""
    if not folder.ranks_path.is_dir():
        return
    kept = {*checkpoint.list_steps(folder.checkpoints_path)}
    with suppress(OSError):  # the next save tries again
        for root in folder.ranks_path.iterdir():
            for step in {*checkpoint.list_steps(root)} - kept:
                checkpoint.discard(root, step)
            if not checkpoint.list_steps(root):
                shutil.rmtree(root, ignore_errors=True)


def latest_run(folder: RunFolder, say: Callable[[str], None]) -> checkpoint.Checkpoint:
    """The newest checkpoint that is valid with the parts of all its ranks."""
    return checkpoint.latest(folder.checkpoints_path, say, check=_require_parts)


def _require_parts(saved: checkpoint.Checkpoint) -> None:
    for _ in _parts(saved):
        pass


def rank_count(saved: checkpoint.Checkpoint) -> int:
    """The number of ranks that wrote a checkpoint."""
    return saved.count(RANKS) if RANKS in saved.meta else 1


def _parts(saved: checkpoint.Checkpoint) -> Iterator[checkpoint.Checkpoint]:
    """The checkpoint and those of its other ranks, in their order."""
    yield saved
    folder = RunFolder(saved.path.parent.parent)
    for rank in range(1, rank_count(saved)):
        yield _part(saved, folder, rank)


def _part(saved: checkpoint.Checkpoint, folder: RunFolder, rank: int) -> checkpoint.Checkpoint:
    try:
        part = checkpoint.load_step(rank_root(folder, rank), saved.step)
        if any(part.meta.get(name) != saved.meta.get(name) for name in BELONGS):
            raise CheckpointError(f"{part.path} belongs to another checkpoint of step {saved.step}")
    except CheckpointError as error:
        raise CheckpointError(
            f"the part of rank {rank} of {rank_count(saved)} cannot be used ({error})"
        ) from error
    return part


def load_explorer(saved: checkpoint.Checkpoint, agent: Agent) -> Explorer | None:
    """The pre-trained policy of a run that still needs it.

    Draws random numbers: `load_run`, which restores them, is called afterwards.
    """
    meta = saved.meta.get("explorer")
    if meta is None:
        return None
    return Explorer.load(meta, saved.tensors(EXPLORER), agent.spec, agent.device)


def load_run(saved: checkpoint.Checkpoint, agent: Agent, replay: Replay) -> LoopState:
    """The inverse of `save_run`, random numbers included.

    Where the number of ranks is the same, each has its part again. Otherwise the replay is divided again, the
    first rank continues with its random numbers, and the others begin theirs.
    """
    here, before = ranks.current(), rank_count(saved)
    agent.load_tensors(saved.tensors("agent.safetensors"))
    agent.load_optimizer_tensors(saved.tensors("optimizers.safetensors"))
    agent.steps = saved.count("agent_steps")
    if REPLAY in saved.files:
        load_replay(saved, replay)
    elif saved.count("steps") < agent.config.steps:
        raise CheckpointError(
            f"{saved.path} holds no replay, since the run was complete with log.keep_replay = False, and "
            f"cannot be extended to {agent.config.steps} steps: fine-tune its agent, or run it again with "
            f"log.keep_replay = True"
        )
    mine = saved
    if before == here.size and not here.is_main:
        mine = _part(saved, RunFolder(saved.path.parent.parent), here.rank)
    loop = mine.tensors("loop.safetensors", "visits", "rng_cpu")
    visits = loop["visits"].numpy()
    if before == here.size or here.is_main:
        restore_random_state(loop, agent.device)
    else:
        begin_stream(agent, saved.step)
        visits = np.zeros(0, np.int64)
    if before != here.size and here.is_main:
        visits = sum_counts(
            [part.tensors("loop.safetensors", "visits")["visits"].numpy() for part in _parts(saved)]
        )
    names = ("steps", "updates", "episodes", "rollouts", "rollout_start", "metrics_bytes")
    counts: dict[str, Any] = {name: saved.count(name) for name in names}
    counted = loop if here.is_main else {}  # the first rank has those of all
    states = {k.removeprefix(STATES): v.numpy() for k, v in counted.items() if k.startswith(STATES)}
    callbacks = saved.meta.get("callbacks", [])
    adaptation = checkpoint.require_field(saved.path / checkpoint.MANIFEST, saved.meta, "adaptation", dict)
    state = LoopState(visits=visits, states=states, callbacks=callbacks, **counts)
    for name in ADAPTATION:
        setattr(state, name, adaptation[name])
    return state


def begin_stream(agent: Agent, step: int) -> None:
    """Random numbers of this rank alone from here on; the first has those of a run on one process."""
    here = ranks.current()
    if not here.is_main:
        reseed(run_seed(agent.config.seed, RANK_STREAM, here.rank, step), agent.device)


def load_replay(saved: checkpoint.Checkpoint, replay: Replay) -> None:
    """Fill a replay with that of a checkpoint, which must have one, or with this rank's part of it."""
    here, before, folder = ranks.current(), rank_count(saved), RunFolder(saved.path.parent.parent)
    if before != here.size:
        raise CheckpointError(
            f"{saved.path} was written on {before} ranks and cannot be read on {here.size}: use {before}"
        )
    _load_replay(saved if here.is_main else _part(saved, folder, here.rank), replay)


def _load_replay(saved: checkpoint.Checkpoint, replay: Replay) -> None:
    def chunks() -> Iterator[tuple[str, str, dict[str, Tensor]]]:
        for name, file in saved.files.items():
            if name.startswith("replay_"):
                chunk = name.removeprefix("replay_").removesuffix(".safetensors")
                yield chunk, file["tag"] or "", saved.tensors(name)

    positions = saved.tensors(REPLAY, *replay.state())
    if positions["starts"].shape != replay.starts.shape:
        raise CheckpointError(
            f"the replay in {saved.path} has {len(positions['starts'])} slots and the run's config makes "
            f"one of {len(replay.starts)}: set replay.capacity_steps and env.num_envs back to what they "
            f"were"
        )
    replay.load(positions, chunks())
