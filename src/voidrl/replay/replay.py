"""A ring of frames, each stored once, and the transitions that can be read from it.

Rows are time steps, columns are environments: slot = row · N + column. A slot holds a frame, the action taken
on it and its outcome. Observations are stacked and n-step returns are summed when a batch is gathered. The
last frame of an episode has a slot but no action, so it is never a start: `starts` lists the slots that are,
in order of time, and `sample` is uniform over exactly these. `draw` may prefer those with a high priority.
Everything that sampling reads (`head`, `starts` and their number) is on the device, so that sampling can be
captured in a CUDA graph. Frames, which take nearly all of the memory, may be in main memory: pinned, so that
kernels read and write them there in the order of the stream, and the host does neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from functools import partial

import numpy as np
import torch
from torch import Tensor

from voidrl.config import ReplayConfig
from voidrl.kernels.fusion import fusable
from voidrl.replay.checksum import checksum
from voidrl.replay.pinned import pinned_zeros
from voidrl.replay.priorities import NEW, NONE, Priorities
from voidrl.replay.samples import SKILL_ENDED, TERMINATED, TRUNCATED, Draw, OptionSlots, Rollout, Segment
from voidrl.replay.sizes import chunk_row_count, row_count
from voidrl.replay.writing import Entries, Upload, Write, write_directly
from voidrl.types import Batch, EnvSpec, Frames

CPU = torch.device("cpu")


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
        config: ReplayConfig | None = None,
        note_dim: int = 0,
    ) -> None:
        """Frames are stored on `storage`, everything else on `device`, where the networks are.

        `storage` is the same device or main memory. `config` says how `draw` samples, None uniformly;
        `note_dim` is the width of what `annotate` stores with each step.
        """
        assert storage in (device, CPU), (storage, device)
        self.spec, self.num_envs, self.device = spec, num_envs, device
        self.config = config
        self.rows = row_count(capacity_steps, num_envs, spec)
        slots = self.rows * num_envs

        def empty(*shape: int, dtype: torch.dtype) -> Tensor:
            if device.type == "cpu":  # NumPy's zeros take memory page by page, as they are written to
                return torch.from_numpy(np.zeros((slots, *shape), str(dtype).removeprefix("torch.")))
            return torch.zeros(slots, *shape, dtype=dtype, device=device)

        frame_dtype = torch.uint8 if spec.pixels else torch.float32
        self._pinned: Tensor | None = None  # the frames as the host has them
        if storage == device:
            self.frames = empty(*spec.stored_shape, dtype=frame_dtype)
        else:
            self._pinned, self.frames = pinned_zeros((slots, *spec.stored_shape), frame_dtype, device)
        self.action = (
            empty(dtype=torch.int64) if spec.discrete else empty(spec.action_dim, dtype=torch.float32)
        )
        self.reward = empty(dtype=torch.float32)
        self.ending = empty(dtype=torch.uint8)
        self.age = empty(dtype=torch.int32)  # steps since the episode began
        self.skill = empty(skill_dim, dtype=torch.float32)
        self.note = empty(note_dim, dtype=torch.float32)
        self.starts = empty(dtype=torch.int64)  # a separate ring
        positions = torch.zeros(3, dtype=torch.int64, device=device)
        self.head, self.starts_head, self.starts_count = positions.unbind()  # head: row of the newest frames
        self._one = torch.ones((), device=device)
        self.priorities: Priorities | None = None
        if config is not None and config.priority_exponent:
            beta = config.importance_start, config.importance_end
            self.priorities = Priorities(slots, config.priority_exponent, *beta, device)
        # Small constants, made once: in a captured graph each would be a kernel of its own.
        columns = torch.arange(num_envs, device=device)
        lags = torch.arange(spec.frame_stack - 1, -1, -1, dtype=torch.int32, device=device)
        self._constants = {"columns": columns, "lags": lags}
        self._powers: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}
        # The host's copies of the positions, so that writing never waits for the device.
        self._row, self._filled_rows, self._starts_head, self._size = -1, 0, 0, 0
        self._row_starts = np.zeros(self.rows, np.int64)
        self._age = np.zeros(num_envs, np.int32)
        self._ended = np.zeros(num_envs, bool)
        self._chunk_rows = chunk_row_count(spec, num_envs, skill_dim)
        self._chunk_writes = np.zeros(-(-self.rows // self._chunk_rows), np.int64)
        self._chunk_sums = np.zeros(len(self._chunk_writes), np.int64)
        self._summed_writes = self._chunk_writes.copy()  # those that `_chunk_sums` knows of
        names = ("frames", "action", "reward", "ending", "age", "starts")
        stored = {**{name: getattr(self, name) for name in names}, "positions": positions}
        if self.priorities is not None:
            stored["priority"] = self.priorities.values
        self._write = Upload(stored) if device.type == "cuda" else partial(write_directly, stored)

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return self._size

    # Writing

    def reset(self, frames: Entries) -> None:
        """Every environment begins a new episode; those under way are cut as truncations."""
        if self._age.any():  # else there is no step that could be cut
            before = (self._row - 1) % self.rows
            ending = self.ending[self._slots(before)]
            ending.masked_fill_(ending == 0, TRUNCATED)
            self._touch(before)
        self._age[:] = 0
        self._ended[:] = False
        self._write(self._advance(frames))

    def add(
        self,
        action: Entries,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        next_frames: Entries,
        skill: Tensor,
        ended: np.ndarray | None = None,
        skill_ended: np.ndarray | None = None,
    ) -> int:
        """Store one step of all environments; returns how many of them were real steps.

        An environment whose episode `ended` in the step before resets in this one (Gymnasium's NEXT_STEP):
        its action was ignored and `next_frames` begins the new episode, so no transition is recorded. By
        default terminated and truncated episodes have ended. A lost life can terminate without ending the
        episode: nothing is bootstrapped across it, and the game continues from the same frames. Where
        `skill_ended`, another skill acts from the next step on, so no n-step sum runs past this one.
        """
        over = terminated | truncated if ended is None else ended
        here, real = self._row * self.num_envs, ~self._ended
        cut = 0 if skill_ended is None else np.where(skill_ended, SKILL_ENDED, 0)
        ending = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, cut))
        starts = here + np.flatnonzero(real)
        until_wrap = len(self.starts) - self._starts_head
        writes: list[Write] = [
            ("action", here, action),
            ("reward", here, reward),
            ("ending", here, ending),
            ("starts", self._starts_head, starts[:until_wrap]),
            ("starts", 0, starts[until_wrap:]),
        ]
        if self.skill.shape[1]:
            self.skill[self._slots(self._row)] = skill.to(self.device)
        self._starts_head = (self._starts_head + len(starts)) % len(self.starts)
        self._size += len(starts)
        self._row_starts[self._row] = len(starts)
        if self.priorities is not None:
            writes.append(("priority", here, np.where(real, NEW, NONE)))
        self._touch(self._row)
        self._age[:] = np.where(real, self._age + 1, 0)
        self._ended[:] = over & real
        self._write(writes + self._advance(next_frames))
        return len(starts)

    def annotate(self, columns: Tensor, note: Tensor) -> None:
        """Store (n, note_dim) notes on the last step in the (n,) environments `columns`; others have 0."""
        row = (self._row - 1) % self.rows
        here = self.note[self._slots(row)]
        here.zero_()
        here[columns.to(self.device)] = note.to(here)
        self._touch(row)

    def _advance(self, frames: Entries) -> list[Write]:
        """Advance to the next row; returns the writes for it, and the new positions."""
        self._row = (self._row + 1) % self.rows
        self._filled_rows = max(self._filled_rows, self._row + 1)
        # The frames written here were the oldest: starts whose stack reaches back to them go first.
        stale = (self._row + self.spec.frame_stack - 1) % self.rows
        self._size -= int(self._row_starts[stale])
        self._row_starts[stale] = 0
        here = self._row * self.num_envs
        writes: list[Write] = [
            ("age", here, self._age),
            ("ending", here, np.zeros(self.num_envs, np.uint8)),
            ("frames", here, frames),
        ]
        self._touch(self._row)
        if self.priorities is not None:
            writes.append(("priority", stale * self.num_envs, np.full(self.num_envs, NONE)))
        return [*writes, self._positions()]

    def _positions(self) -> Write:
        """The host's positions, for the device."""
        return "positions", 0, np.array((self._row, self._starts_head, self._size))

    def _touch(self, row: int) -> None:
        """Mark the chunk of a row as changed."""
        self._chunk_writes[row // self._chunk_rows] += 1

    def _slots(self, row: int) -> slice:
        return slice(row * self.num_envs, (row + 1) * self.num_envs)

    # Reading

    def sample(self, batch_size: int) -> Tensor:
        """Slots of `batch_size` transitions, uniformly with replacement."""
        assert self._size, "nothing to sample yet"
        return self._draw(batch_size)

    def draw(self, batch_size: int) -> Draw:
        """Transitions for the learner, by priority if there are priorities, with their importance weights."""
        if self.priorities is None:
            return Draw(self.sample(batch_size), self._one.expand(batch_size))
        assert self._size, "nothing to sample yet"
        return Draw(*self.priorities.draw(batch_size))

    def set_progress(self, fraction: float) -> None:
        """Tell prioritized sampling how much of the run is over."""
        if self.priorities is not None:
            self.priorities.set_progress(fraction)

    def restricted(self, slots: Tensor) -> Replay:
        """The same data, not copied, from which only the transitions in (n,) `slots` are sampled uniformly.

        It is for reading only.
        """
        part = copy(self)
        part.starts, part.priorities = torch.zeros_like(self.starts), None
        part.starts[: len(slots)] = slots
        part.starts_head = part.starts_count = torch.full_like(self.starts_count, len(slots))
        part._starts_head = part._size = len(slots)
        return part

    def newest(self, count: int) -> Tensor:
        """Slots of the newest transitions, at most `count`, each once."""
        back = torch.arange(min(count, self._size), device=self.starts.device)
        return self.starts[self.starts_head - 1 - back]

    def rollout(self, count: int, discount: float) -> Rollout:
        """The newest `count` transitions; the host reads how many time steps they span."""
        slots = self.newest(count).flip(0)  # (P,)
        row = (slots // self.num_envs - slots[0] // self.num_envs) % self.rows
        real = torch.zeros(int(row[-1]) + 1, self.num_envs, dtype=torch.bool, device=slots.device)
        real[row, slots % self.num_envs] = True
        ends = self.ending[slots] != 0
        batch = self.batch(slots, 1, discount)
        return Rollout(slots, batch, ends, real)

    @fusable
    def _draw(self, batch_size: int) -> Tensor:
        # rand() times a size that lives on the device. With 2⁻²⁴ between the numbers of a float32, some of
        # a million starts would be drawn more often than others.
        uniform = torch.rand(batch_size, dtype=torch.float64, device=self.starts.device)
        back = (uniform * self.starts_count).long()
        return self.starts[self.starts_head - 1 - back]  # below 0 it counts from the ring's end

    def segment(self, slots: Tensor, n: int, discount: float) -> Segment:
        """The next n steps from each slot, never past the end of an episode, of a skill or of the data."""
        if n == 1:
            return self._step(slots, discount)
        time, powers = self._time_and_powers(slots.device, n, discount)
        return self._run(slots, time, powers)

    def annealed_segment(self, slots: Tensor, longest: int, n: Tensor, discount: Tensor) -> Segment:
        """The next n ≤ `longest` steps from each slot, with n and γ as scalars on the device."""
        time, _ = self._time_and_powers(slots.device, longest, 1.0)
        return self._run(slots, time, discount**time, n)

    def _time_and_powers(self, device: torch.device, n: int, discount: float) -> tuple[Tensor, Tensor]:
        """0 … n, and γ^0 … γ^n, made once."""
        if (n, discount) not in self._powers:
            time = torch.arange(n + 1, device=device)
            self._powers[n, discount] = time, discount**time
        return self._powers[n, discount]

    @fusable
    def _step(self, slots: Tensor, discount: float) -> Segment:
        after = (slots + self.num_envs) % len(self.starts)
        return Segment(
            slots=slots[:, None],
            weights=self._one.expand(len(slots), 1),
            states=torch.stack([slots, after], 1),
            discount=(self.ending[slots] != TERMINATED) * discount,
        )

    def _recorded(self, slots: Tensor) -> Tensor:
        """(B,): the steps of the slot's environment from this slot up to its newest frame."""
        return (self.head - slots // self.num_envs) % self.rows

    @fusable
    def _run(self, slots: Tensor, time: Tensor, powers: Tensor, limit: Tensor | None = None) -> Segment:
        """`time` is 0 … n, `powers` are γ^0 … γ^n; with a `limit`, steps from it on are left out."""
        path = torch.add(slots[:, None], time, alpha=self.num_envs) % len(self.starts)  # (B, n + 1)
        recorded = self._recorded(slots)
        ends = self.ending[path[:, :-1]] != 0  # (B, n)
        longest = recorded if limit is None else torch.minimum(recorded, limit)
        valid = (ends.cumsum(1) == ends) & (time[:-1] < longest[:, None])  # (B, n) up to the first end
        length = valid.sum(1, keepdim=True)  # (B, 1) m ≥ 1
        steps = path.gather(1, torch.minimum(time[:-1], length - 1))
        alive = self.ending[steps[:, -1]] != TERMINATED
        return Segment(
            slots=steps,
            weights=valid * powers[:-1],
            states=path.gather(1, torch.minimum(time, length)),
            discount=powers[length[:, 0]] * alive,
        )

    def options(self, slots: Tensor, longest: int) -> OptionSlots:
        """The option that each transition belongs to, searched over `longest` steps in both directions.

        An option is what one skill does without interruption: it begins with the skill, the episode or a new
        life, and ends with the first of these that ends.
        """
        time, _ = self._time_and_powers(slots.device, longest, 1.0)
        return self._option_slots(slots, time)

    @fusable
    def _option_slots(self, slots: Tensor, time: Tensor) -> OptionSlots:
        """`time` is 0 … n."""
        n, size, age = len(time) - 1, len(self.starts), self.age[slots]
        recorded = self._recorded(slots)
        path = torch.add(slots[:, None], time[:-1], alpha=self.num_envs) % size  # (B, n) from here on
        goes_on = (self.ending[path] == 0) & (time[:-1] < recorded[:, None])
        ahead = goes_on.int().cumprod(1).sum(1)  # (B,) steps from here to the last one of the option
        path = torch.sub(slots[:, None], time[1:], alpha=self.num_envs) % size  # (B, n) from here back
        goes_on = (self.ending[path] == 0) & (time[1:] <= age[:, None])
        back = goes_on.int().cumprod(1).sum(1)  # (B,) steps from the first one of the option to here
        # What precedes an option is the beginning of its episode, or an ending that is still stored.
        oldest = recorded + back
        found = (back == age) | (oldest + 1 < self.rows)
        complete = found & (oldest <= self.rows - self.spec.frame_stack) & (ahead < recorded)
        steps = back + ahead + 1
        complete &= steps <= n
        back = torch.where(complete, back, 0)
        ahead = torch.where(complete, ahead, 0)
        first = torch.sub(slots, back, alpha=self.num_envs) % size
        last = torch.add(slots, ahead + 1, alpha=self.num_envs) % size
        return OptionSlots(first, last, steps, complete)

    def frames_of(self, slots: Tensor) -> Frames:
        """The frames that make up the observations in (B,) slots, on the networks' device."""
        index = slots[:, None] if self.spec.frame_stack == 1 else self._stack(slots)
        if self._pinned is None:
            return Frames(self.frames, index)
        there = self.read_frames(index.flatten())
        return Frames(there, torch.arange(len(there), device=self.device).view(index.shape))

    def read_frames(self, slots: Tensor) -> Tensor:
        """(n,) slots → (n, *stored_shape): a copy of their frames, on the networks' device."""
        # Frames in main memory cross PCIe in long words; the kernels that augment images read single bytes.
        words = as_words(self.frames).index_select(0, slots)
        return words.view(self.frames.dtype).view(-1, *self.spec.stored_shape)

    @fusable
    def _stack(self, slots: Tensor) -> Tensor:
        """(B, stack) slots, oldest first; an episode begins with its first frame repeated."""
        lag = torch.minimum(self._constants["lags"], self.age[slots, None])
        return torch.sub(slots[:, None], lag, alpha=self.num_envs) % len(self.starts)

    def observations(self, slots: Tensor) -> Tensor:
        """(B,) slots → (B, *obs_shape), as stored."""
        return self.frames_of(slots).stacked()

    def latest(self) -> Tensor:
        """(N, *obs_shape): the observations on which the environments wait for an action."""
        return self.observations(torch.add(self._constants["columns"], self.head, alpha=self.num_envs))

    def batch(self, slots: Tensor, n: int, discount: float) -> Batch:
        """n-step transitions with the environment's reward, observations as they were stored."""
        return self.n_step_batch(self.segment(slots, n, discount))

    def continues(self, segment: Segment) -> Tensor:
        """(B, n): 1 where the step is valid and ends neither its episode nor its skill, else 0."""
        return ((segment.weights > 0) & (self.ending[segment.slots] == 0)).float()

    def n_step_batch(
        self, segment: Segment, obs: Tensor | None = None, next_obs: Tensor | None = None
    ) -> Batch:
        """Each segment as one n-step transition, between the given observations or the stored ones."""
        slots = segment.slots[:, 0]
        if obs is None or next_obs is None:
            stored = self.observations(torch.cat([slots, segment.states[:, -1]])).chunk(2)  # in one pass
            obs, next_obs = stored[0] if obs is None else obs, stored[1] if next_obs is None else next_obs
        return self._n_step_batch(segment, obs, next_obs)

    @fusable
    def _n_step_batch(self, segment: Segment, obs: Tensor, next_obs: Tensor) -> Batch:
        reward = self.reward[segment.slots]  # (B, n)
        reward = (reward * segment.weights).sum(1) if reward.shape[1] > 1 else reward[:, 0]
        first, last = segment.slots[:, 0], segment.slots[:, -1]
        return self._batch(first, last, obs, reward, segment.discount, next_obs)

    def steps(self, segment: Segment, obs: Tensor | None = None) -> Iterator[tuple[Batch, Tensor]]:
        """The segment's one-step transitions, offset by offset, each with its (B,) weights.

        `obs` is (n + 1, B, *obs_shape), what lies in `segment.states.T`.
        """
        if obs is None:  # every state once: s' of a step is s of the next
            states = segment.states.T
            obs = self.observations(states.flatten()).unflatten(0, states.shape)
        slots, weights = segment.slots.T, segment.weights.T  # (n, B)
        alive = self.ending[slots] != TERMINATED
        together = self._batch(slots, slots, obs[:-1], self.reward[slots], alive, obs[1:])
        for i in range(len(slots)):
            yield Batch._make(part[i] for part in together), weights[i]

    def _batch(
        self, slots: Tensor, last: Tensor, obs: Tensor, reward: Tensor, discount: Tensor, next_obs: Tensor
    ) -> Batch:
        """`slots` have the first steps, on `obs`; `last` have those that led to `next_obs`."""
        return Batch(
            obs=obs,
            action=self.action[slots],
            reward=reward,
            discount=discount.float(),
            next_obs=next_obs,
            skill=self.skill[slots],
            weight=self._one.expand(slots.shape),
            ended=(self.ending[last] != 0).float(),
            note=self.note[last],
        )

    # Checkpoints

    def state(self) -> dict[str, Tensor]:
        """Positions, counters and priorities. The stored steps come from `chunks`."""
        self._sum_chunks()
        counters = (self._row, self._filled_rows, self._starts_head, self._size)
        arrays = {name: torch.from_numpy(array.copy()) for name, array in self._host_arrays().items()}
        state = {"starts": self.starts, "counters": torch.tensor(counters), **arrays}
        return state if self.priorities is None else state | self.priorities.state()

    def chunks(self) -> Iterator[tuple[str, str, Callable[[], dict[str, Tensor]]]]:
        """(name, tag, tensors) of each written part; a part with the same tag has not changed."""
        self._sum_chunks()
        for i in np.flatnonzero(self._chunk_writes).tolist():
            tag = f"{self._chunk_writes[i]} writes, {self._chunk_sums[i]:08x}"
            yield f"{i:05d}", tag, partial(self._chunk, i)

    def load(
        self,
        state: dict[str, Tensor],
        chunks: Iterator[tuple[str, dict[str, Tensor]]],
    ) -> None:
        """The inverse of `state` and `chunks`, in place."""
        self.starts.copy_(state["starts"])
        self._row, self._filled_rows, self._starts_head, self._size = state["counters"].tolist()
        for name, array in self._host_arrays().items():
            array[:] = state[name].numpy()
        self._summed_writes[:] = self._chunk_writes
        self._write([self._positions()])
        if self.priorities is not None:
            self.priorities.load(state)
        for name, tensors in chunks:
            first = int(name) * self._chunk_rows
            last = first + len(tensors["age"]) // self.num_envs
            for key, tensor in self._columns_of(slice(first * self.num_envs, last * self.num_envs)).items():
                tensor.copy_(tensors[key])

    def _sum_chunks(self) -> None:
        """Checksum the chunks that changed. The sums tell apart runs resumed from the same checkpoint.

        A changed chunk is written in full with the next checkpoint, where its sum costs little; in `add` it
        would cost more than everything else.
        """
        for i in np.flatnonzero(self._chunk_writes != self._summed_writes).tolist():
            self._chunk_sums[i] = checksum(self._chunk(i).values())
        self._summed_writes[:] = self._chunk_writes

    def _host_arrays(self) -> dict[str, np.ndarray]:
        return {
            "row_starts": self._row_starts,
            "age": self._age,
            "ended": self._ended,
            "chunk_writes": self._chunk_writes,
            "chunk_sums": self._chunk_sums,
        }

    def _chunk(self, i: int) -> dict[str, Tensor]:
        first, last = i * self._chunk_rows, min((i + 1) * self._chunk_rows, self._filled_rows)
        return self._columns_of(slice(first * self.num_envs, last * self.num_envs))

    def _columns_of(self, slots: slice) -> dict[str, Tensor]:
        return {name: tensor[slots] for name, tensor in self.stored().items()}

    def stored(self) -> dict[str, Tensor]:
        """What is stored with each slot, to be read or written in bulk.

        Frames in main memory are the host's tensor, so that they do not pass through the device.
        """
        names = ["frames", "action", "reward", "ending", "age", "skill"]
        names += ["note"] if self.note.shape[1] else []
        found: dict[str, Tensor] = {name: getattr(self, name) for name in names}
        if self._pinned is not None:
            torch.cuda.synchronize(self.device)  # host synchronization: the stream may still use the frames
            found["frames"] = self._pinned
        return found


def as_words(tensor: Tensor) -> Tensor:
    """(S, …) → (S, n): each entry as the longest words that divide it, of up to 8 bytes."""
    flat = tensor.view(len(tensor), -1).view(torch.uint8)
    words = (torch.int64, torch.int32, torch.int16, torch.uint8)
    return flat.view(next(dtype for dtype in words if flat.shape[1] % dtype.itemsize == 0))
