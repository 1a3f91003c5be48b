"""A replay filled from a dataset, before a run's first step.

The replay's rows advance in all N columns together, so the data is laid end to end and cut into N parts of
equal length. Where a cut falls into an episode, its second part begins with a new frame stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from voidrl import dist
from voidrl.config import EnvConfig
from voidrl.data.episodes import Episode
from voidrl.data.files import Dataset
from voidrl.data.units import actions_within, agent_action
from voidrl.envs.spaces import read_spaces, to_frames
from voidrl.envs.spaces.check import ROUNDING
from voidrl.errors import ConfigError, DataError, SpaceError
from voidrl.methods.base import Method
from voidrl.replay import Replay
from voidrl.types import EnvSpec

SAME = (  # of data and environment
    *("frame_shape", "pixels", "num_values", "num_actions"),
    *("action_shape", "action_sizes", "action_start", "action_integer"),
)


class Move(NamedTuple):
    """One row of one column, or of all: the reset that begins an episode, or a step for `Replay.add`."""

    is_reset: Any
    action: np.ndarray
    reward: Any
    terminated: Any
    truncated: Any
    next_frame: np.ndarray
    skill: Any
    ended: Any
    skill_ended: Any


def open_fitting(data: str, spec: EnvSpec, env: EnvConfig) -> tuple[Dataset, EnvSpec]:
    """A dataset and its spec, after a comparison of its spaces with the environment's."""
    dataset = Dataset(data)
    keys, masks = env.keys, env.action_masks if env.action_masks == "key" else "none"  # others are not there
    if dataset.is_ours:  # with masks in the frames
        keys, masks = (), "none"
    try:
        spaces = dataset.observation_space, dataset.action_space
        found = read_spaces(*spaces, spec.frame_stack, keys=keys, masks=masks).spec
    except (SpaceError, ConfigError) as error:
        raise DataError(f"the dataset {data!r} cannot be used: {error}") from None
    differs = [name for name in SAME if getattr(found, name) != getattr(spec, name)]
    for name in ("action_low", "action_high"):
        mine, theirs = np.array(getattr(spec, name)), np.array(getattr(found, name))
        if mine.shape == theirs.shape and not np.allclose(mine, theirs, rtol=ROUNDING, atol=ROUNDING):
            differs.append(name)
    if differs:
        both = (", ".join(f"{k} {getattr(each, k)}" for k in differs) for each in (found, spec))
        raise DataError(
            f"the dataset {data!r} has {found.describe()} and environment {env.id!r} has {spec.describe()} "
            f"({' against '.join(both)}): expected the same spaces on both sides"
        )
    if not dataset.lengths.sum():
        raise DataError(f"the dataset {data!r} cannot be used: it has no steps")
    return dataset, found


def fill_replay(replay: Replay, data: str, env: EnvConfig, method: Method) -> str:
    """Fill an empty replay with as much of a dataset as it keeps, the last; returns a sentence about it.

    Each of several ranks fills its columns as they would be filled on one process.
    """
    if replay.note.shape[1]:
        raise ConfigError(
            f"replay.data = {data!r} cannot be used with method {method.config.name!r}, which notes "
            f"something on every step while it is played: leave it out, or use a method such as apt or rnd"
        )
    dataset, spec = open_fitting(data, replay.spec, env)
    stream = Stream(dataset, spec)
    here, dim = dist.current(), replay.skill.shape[1]
    n = replay.num_envs if here.size == 1 else env.num_envs
    kept = replay.rows - replay.spec.frame_stack - 1  # rows with transitions, after the reset of the run
    share = min(kept, stream.moves // n)
    begins = [stream.moves - share * (n - i) for i in range(n)]
    rows = share - any(begin in stream.resets for begin in begins)
    if rows < 1:
        few = f"its {stream.steps} steps are too few for env.num_envs = {n}"
        raise DataError(f"the dataset {data!r} cannot be used: {few}")
    columns = [stream.moves_from(begins[i]) for i in here.part(n)]
    replay.reset(np.stack([next(column).next_frame for column in columns]))
    draws = dim > 0 and stream.skill_dim != dim
    at_start = torch.zeros(len(columns), dtype=torch.int64, device=replay.device)
    skill = method.sample_skill(at_start) if dim else torch.zeros(len(columns), 0)
    added = 0
    for _ in range(rows):
        move = Move(*map(np.stack, zip(*[next(column) for column in columns], strict=True)))
        if draws and move.is_reset.any():
            fresh = torch.from_numpy(move.is_reset).to(skill.device)
            skill = torch.where(fresh[:, None], method.sample_skill(at_start), skill)
        elif dim and not draws:
            skill = torch.from_numpy(move.skill).to(skill.device)
        _, *step = move._replace(skill=skill)
        added += replay.add(*step)
    added = int(dist.total(added)[0])
    of_all = f" of {stream.steps}" if added < stream.steps else ""
    drawn = "; skills, which it lacks, were drawn for each episode" if draws else ""
    return f"the replay begins with {added}{of_all} transitions from the dataset {data!r}{drawn}"


class Stream:
    """All steps of a dataset end to end, with a reset between two episodes."""

    def __init__(self, dataset: Dataset, spec: EnvSpec) -> None:
        self._dataset, self._spec = dataset, spec
        self._order = np.flatnonzero(dataset.lengths)  # an episode without steps has no transitions
        lengths = dataset.lengths[self._order]
        self.steps = int(lengths.sum())
        self.moves = self.steps + len(lengths) - 1  # the reset to the first episode is none
        self._ends = np.cumsum(lengths + 1) - 1  # the move after each episode's last step
        self._begins = self._ends - lengths
        self.resets = {*self._ends[:-1].tolist()}
        skills = next(dataset.episodes(self._order[:1].tolist())).skills
        self.skill_dim = 0 if skills is None else skills.shape[1]

    def moves_from(self, number: int) -> Iterator[Move]:
        """A reset to the state before a move, and all moves from there on.

        Where that move is itself a reset, they begin with it.
        """
        episode = int(np.searchsorted(self._ends, number, side="right"))
        skipped = max(0, number - int(self._begins[episode]))
        for found in self._dataset.episodes(self._order[episode:].tolist()):
            yield from self._episode(found, skipped)
            skipped = 0

    def _episode(self, episode: Episode, skipped: int) -> Iterator[Move]:
        frames, actions = to_frames(episode.observations, self._spec), episode.actions
        steps, dim = len(episode), self.skill_dim
        skills = np.zeros((steps, 0), np.float32) if episode.skills is None else episode.skills
        finite = np.isfinite(episode.rewards).all() and (self._spec.pixels or np.isfinite(frames).all())
        within = actions_within(actions, self._spec, ROUNDING)
        for problem, found in (
            (f"{len(frames)} observations in an episode of {steps} steps", len(frames) != steps + 1),
            (f"{len(actions)} actions in an episode of {steps} steps", len(actions) != steps),
            (f"actions outside of its space {self._dataset.action_space}", not within),
            ("observations or rewards that are not finite", not finite),
            (f"skills of shape {skills.shape} in {steps} steps", skills.shape != (steps, dim)),
        ):
            if found:
                raise DataError(f"the dataset {self._dataset.name!r} cannot be used: it has {problem}")
        actions = agent_action(actions, self._spec)
        changes = np.append((skills[1:] != skills[:-1]).any(1), False)
        start = frames[skipped], skills[skipped], False, False
        yield Move(True, np.zeros_like(actions[0]), np.float32(0), False, False, *start)
        for t in range(skipped, steps):
            last, terminated = t == steps - 1, bool(episode.terminations[t])
            truncated = bool(episode.truncations[t]) or (last and not terminated)
            outcome = episode.rewards[t], terminated, truncated
            yield Move(False, actions[t], *outcome, frames[t + 1], skills[t], last, bool(changes[t]))
