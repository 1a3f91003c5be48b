"""A ring of frames, each stored once, and the transitions that can be read from it.

Time runs along rows, environments along columns: slot = row · N + column. A slot holds a frame, the action
taken on it and what came of it. Observations are stacked and n-step returns are summed when a batch is
gathered. The last frame of an episode has a slot but no action, so it is never a start: `starts` lists the
slots that are, in order of time, and sampling is uniform over exactly these. Whatever sampling reads
(`head`, `starts`, their number) lies on the device, so that it can be captured in a CUDA graph.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from voidrl.config import ReplayConfig
from voidrl.errors import ConfigError, NonFiniteError, ReplayMemoryError
from voidrl.types import Batch, EnvSpec

TERMINATED, TRUNCATED = 1, 2  # how the step taken in a slot ended its episode; 0: it did not
CHUNK_BYTES = 64 * 2**20
GIB = 2**30


class Segment(NamedTuple):
    """Up to n steps from each of B starts; a segment stops early where its episode, or the data, ends."""

    slots: Tensor  # (B, n) the step's slot; after the last valid step, that step's again
    weights: Tensor  # (B, n) γ^i, 0 after the last valid step
    states: Tensor  # (B, n + 1) slot of each state passed through; after the last one, that one again
    discount: Tensor  # (B,) what that state's value is worth: γ^m, 0 where the episode terminated


class Replay:
    """Experience of N environments."""

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        capacity_steps: int,
        skill_dim: int,
        storage: torch.device,
        device: torch.device,
    ) -> None:
        self.spec, self.num_envs, self.device = spec, num_envs, device
        self.rows = row_count(capacity_steps, num_envs, spec)
        slots = self.rows * num_envs

        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(slots, *shape, dtype=dtype, device=storage)

        self.frames = empty(*spec.frame_shape, dtype=torch.uint8 if spec.pixels else torch.float32)
        self.action = (
            empty(dtype=torch.int64) if spec.discrete else empty(spec.action_dim, dtype=torch.float32)
        )
        self.reward = empty(dtype=torch.float32)
        self.ending = empty(dtype=torch.uint8)
        self.age = empty(dtype=torch.int32)  # steps since the episode began, up to a full stack
        self.skill = empty(skill_dim, dtype=torch.float32)
        self.starts = empty(dtype=torch.int64)  # a ring of its own
        self.head = torch.zeros((), dtype=torch.int64, device=storage)  # row of the newest frames
        self.starts_head = torch.zeros((), dtype=torch.int64, device=storage)
        self.starts_count = torch.zeros((), dtype=torch.int64, device=storage)
        # The host's copies of the same, so that writing never waits for the device.
        self._row, self._filled_rows, self._starts_head, self._size = -1, 0, 0, 0
        self._row_starts = np.zeros(self.rows, np.int64)
        self._age = np.zeros(num_envs, np.int32)
        self._ended = np.zeros(num_envs, bool)
        self._chunk_rows = max(1, CHUNK_BYTES // (num_envs * slot_bytes(spec, skill_dim)))
        self._chunk_writes = np.zeros(-(-self.rows // self._chunk_rows), np.int64)
        self._chunk_sums = np.zeros(len(self._chunk_writes), np.int64)

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return self._size

    # Writing

    def reset(self, frames: np.ndarray) -> None:
        """Every environment begins a new episode here; episodes under way are cut as truncations."""
        if self._age.any():  # else there is no step that could be cut
            before = (self._row - 1) % self.rows
            ending = self.ending[self._columns(before)]
            ending.masked_fill_(ending == 0, TRUNCATED)
            self._touch(before)
        self._age[:] = 0
        self._ended[:] = False
        self._advance(frames)

    def add(
        self,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        next_frames: np.ndarray,
        skill: Tensor,
    ) -> int:
        """One step of all environments; returns how many of them were real steps.

        An environment whose episode ended in the step before resets in this one (Gymnasium's NEXT_STEP):
        its action was ignored and `next_frames` begins the new episode, so no transition is recorded.
        """
        here, real = self._columns(self._row), ~self._ended
        reward = reward.astype(np.float32)
        self.action[here] = self._upload(action)
        self.reward[here] = self._upload(reward)
        ending = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, 0)).astype(np.uint8)
        self.ending[here] = self._upload(ending)
        self.skill[here] = skill.to(self.skill.device)
        starts = self._row * self.num_envs + np.flatnonzero(real)
        at = (self._starts_head + np.arange(len(starts))) % len(self.starts)
        self.starts[self._upload(at)] = self._upload(starts)
        self._starts_head = int((self._starts_head + len(starts)) % len(self.starts))
        self._size += len(starts)
        self._row_starts[self._row] = len(starts)
        self._touch(self._row, action, reward, ending)
        self._age = np.where(real, np.minimum(self._age + 1, self.spec.frame_stack), 0).astype(np.int32)
        self._ended = (terminated | truncated) & real
        self._advance(next_frames)
        return len(starts)

    def _advance(self, frames: np.ndarray) -> None:
        self._row = (self._row + 1) % self.rows
        self._filled_rows = max(self._filled_rows, self._row + 1)
        # The frames written here were the oldest: starts whose stack reaches back to them go first.
        stale = (self._row + self.spec.frame_stack - 1) % self.rows
        self._size -= int(self._row_starts[stale])
        self._row_starts[stale] = 0
        here = self._columns(self._row)
        self.frames[here] = self._upload(frames)
        self.age[here] = self._upload(self._age)
        self.ending[here] = 0
        self._publish()
        self._touch(self._row, frames, self._age)

    def _publish(self) -> None:
        """Tell the device where the host stands."""
        self.head.fill_(self._row)
        self.starts_head.fill_(self._starts_head)
        self.starts_count.fill_(self._size)

    def _touch(self, row: int, *written: np.ndarray) -> None:
        """Note that a row's part changed; the sum tells apart runs that went on from one checkpoint."""
        chunk = row // self._chunk_rows
        self._chunk_writes[chunk] += 1
        for array in written:
            content = np.ascontiguousarray(array).data
            self._chunk_sums[chunk] = zlib.crc32(content, int(self._chunk_sums[chunk]))

    def _columns(self, row: int) -> slice:
        return slice(row * self.num_envs, (row + 1) * self.num_envs)

    def _upload(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.frames.device, non_blocking=True)

    # Reading

    def sample(self, batch_size: int) -> Tensor:
        """Slots of `batch_size` transitions, uniformly with replacement."""
        assert self._size, "nothing to sample yet"
        uniform = torch.rand(batch_size, dtype=torch.float64, device=self.starts.device)
        back = (uniform * self.starts_count).long()  # rand() with a size that lives on the device
        return self.starts[(self.starts_head - 1 - back) % len(self.starts)]

    def segment(self, slots: Tensor, n: int, discount: float) -> Segment:
        """The next n steps from each slot, never across the end of an episode or of the data."""
        offset = torch.arange(n, device=slots.device)
        steps = (slots[:, None] + offset * self.num_envs) % len(self.starts)  # (B, n)
        recorded = (self.head - slots // self.num_envs) % self.rows  # rows from this slot up to the newest
        ends = self.ending[steps] != 0
        valid = (ends.cumsum(1) == ends) & (offset < recorded[:, None])  # (B, n) up to the first end
        length = valid.sum(1)  # (B,) m ≥ 1
        last = (slots + (length - 1) * self.num_envs) % len(self.starts)
        passed = torch.minimum(torch.arange(n + 1, device=slots.device), length[:, None])
        return Segment(
            slots=torch.where(valid, steps, last[:, None]),
            states=(slots[:, None] + passed * self.num_envs) % len(self.starts),
            weights=valid * discount**offset,
            discount=torch.pow(discount, length) * (self.ending[last] != TERMINATED),
        )

    def observations(self, slots: Tensor) -> Tensor:
        """(B,) slots → (B, *obs_shape), oldest first; an episode begins with its first frame repeated."""
        stack = self.spec.frame_stack
        lag = torch.arange(stack - 1, -1, -1, device=slots.device)
        lag = torch.minimum(lag, self.age[slots, None])  # (B, stack)
        frames = self.frames[(slots[:, None] - lag * self.num_envs) % len(self.starts)]
        return frames.flatten(1, 2).to(self.device)

    def latest(self) -> Tensor:
        """(N, *obs_shape): the observations on which the environments wait for an action."""
        columns = torch.arange(self.num_envs, device=self.head.device)
        return self.observations(self.head * self.num_envs + columns)

    def batch(self, slots: Tensor, n: int, discount: float) -> Batch:
        """n-step transitions with the environment's reward, observations as they were stored."""
        return self.joined(self.segment(slots, n, discount))

    def joined(self, segment: Segment) -> Batch:
        """Each of the segment's runs of steps as one transition."""
        slots = segment.slots[:, 0]
        reward = (self.reward[segment.slots] * segment.weights).sum(1)
        obs, next_obs = self.observations(slots), self.observations(segment.states[:, -1])
        return self._batch(slots, obs, reward, segment.discount, next_obs)

    def steps(self, segment: Segment) -> Iterator[tuple[Batch, Tensor]]:
        """The segment's one-step transitions, offset by offset, each with its (B,) weights."""
        obs = self.observations(segment.states.T.flatten())  # every state once: s' of a step is s of the next
        obs = obs.unflatten(0, segment.states.T.shape)  # (n + 1, B, *obs_shape)
        for i, (slots, weights) in enumerate(zip(segment.slots.T, segment.weights.T, strict=True)):
            alive = self.ending[slots] != TERMINATED
            yield self._batch(slots, obs[i], self.reward[slots], alive, obs[i + 1]), weights.to(self.device)

    def _batch(self, slots: Tensor, obs: Tensor, reward: Tensor, discount: Tensor, next_obs: Tensor) -> Batch:
        return Batch(
            obs=obs,
            action=self.action[slots].to(self.device),
            reward=reward.to(self.device),
            discount=discount.float().to(self.device),
            next_obs=next_obs,
            skill=self.skill[slots].to(self.device),
        )

    # Checkpoints

    def state(self) -> dict[str, Tensor]:
        """What is small: positions and counters. The stored steps come from `chunks`."""
        counters = (self._row, self._filled_rows, self._starts_head, self._size)
        arrays = {name: torch.from_numpy(array.copy()) for name, array in self._host_arrays().items()}
        return {"starts": self.starts, "counters": torch.tensor(counters), **arrays}

    def chunks(self) -> Iterator[tuple[str, str, Callable[[], dict[str, Tensor]]]]:
        """(name, tag, tensors) of each written part; a part with the same tag has not changed."""
        for i in np.flatnonzero(self._chunk_writes).tolist():
            first, last = i * self._chunk_rows, min((i + 1) * self._chunk_rows, self._filled_rows)
            part = slice(first * self.num_envs, last * self.num_envs)
            tag = f"{self._chunk_writes[i]} writes, {self._chunk_sums[i]:08x}"
            yield f"{i:05d}", tag, partial(self._part, part)

    def load(self, state: dict[str, Tensor], chunks: Iterator[tuple[str, dict[str, Tensor]]]) -> None:
        """The inverse of `state` and `chunks`, in place."""
        self.starts.copy_(state["starts"])
        self._row, self._filled_rows, self._starts_head, self._size = state["counters"].tolist()
        for name, array in self._host_arrays().items():
            array[:] = state[name].numpy()
        self._publish()
        for name, tensors in chunks:
            first = int(name) * self._chunk_rows * self.num_envs
            for key, tensor in self._part(slice(first, first + len(tensors["age"]))).items():
                tensor.copy_(tensors[key])

    def _host_arrays(self) -> dict[str, np.ndarray]:
        return {
            "row_starts": self._row_starts,
            "age": self._age,
            "ended": self._ended,
            "chunk_writes": self._chunk_writes,
            "chunk_sums": self._chunk_sums,
        }

    def _part(self, part: slice) -> dict[str, Tensor]:
        names = ("frames", "action", "reward", "ending", "age", "skill")
        return {name: getattr(self, name)[part] for name in names}


def row_count(capacity_steps: int, num_envs: int, spec: EnvSpec) -> int:
    """Rows of the ring: the steps asked for, and room for the newest frames and a full stack."""
    return max(-(-capacity_steps // num_envs), spec.frame_stack + 1) + spec.frame_stack


def slot_bytes(spec: EnvSpec, skill_dim: int) -> int:
    """Memory of one slot."""
    frame = int(np.prod(spec.frame_shape)) * (1 if spec.pixels else 4)
    return frame + (8 if spec.discrete else 4 * spec.action_dim) + 4 + 1 + 4 + 4 * skill_dim + 8


def make_replay(
    config: ReplayConfig,
    spec: EnvSpec,
    num_envs: int,
    skill_dim: int,
    device: torch.device,
    say: Callable[[str], None],
) -> Replay:
    """A replay where it fits: beside the networks, else in main memory, else an error with what to lower."""
    if config.device == "cuda" and device.type != "cuda":
        raise ConfigError(
            f"replay.device = 'cuda' cannot be used with networks on {device}: expected 'auto' or 'cpu'"
        )
    main_memory = torch.device("cpu")
    places = {"auto": [device, main_memory], "cpu": [main_memory], "cuda": [device]}[config.device]
    row_bytes = num_envs * slot_bytes(spec, skill_dim)
    needed = row_count(config.capacity_steps, num_envs, spec) * row_bytes
    free = {}
    for place in dict.fromkeys(places):
        free[place] = free_bytes(place)
        if needed <= 0.9 * free[place]:
            if place != device:
                why = f": {device} has {free[device] / GIB:.2f} GiB free" if device in free else ""
                say(f"replay of {needed / GIB:.2f} GiB kept in main memory{why}")
            return Replay(spec, num_envs, config.capacity_steps, skill_dim, place, device)
    there = " and ".join(f"{f / GIB:.2f} GiB free on {p}" for p, f in free.items())
    fitting = (int(0.9 * max(free.values())) // row_bytes - spec.frame_stack) * num_envs
    lower = f"replay.capacity_steps to {fitting} or less" if fitting > 0 else "env.num_envs"
    raise ReplayMemoryError(
        f"the replay of {config.capacity_steps} steps needs {needed / GIB:.2f} GiB and there is {there}: "
        f"lower {lower}, or the size of the frames"
    )


def free_bytes(device: torch.device) -> int:
    """Memory that can still be taken."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as file:  # noqa: PTH123
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_finite(array: np.ndarray, what: str, step: int) -> None:
    """Stop before NaN or infinity enters the replay."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))[0]
        raise NonFiniteError(
            f"{what} of environment {bad[0]} is {array[tuple(bad)]} at step {step}: "
            f"expected finite numbers; mend the environment, then `voidrl resume` goes on from the last "
            f"checkpoint"
        )
