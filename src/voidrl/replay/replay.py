"""Transitions read from a ring of frames.

Observations are stacked and n-step returns are summed when a batch is gathered. `sample` is uniform over
exactly those slots that have a transition; `draw` may prefer those with a high priority. Everything that
sampling reads (`head`, `starts` and their number) is on the device, so that it can be captured in a CUDA
graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.kernels.fusion import fusable
from voidrl.replay.ring import TERMINATED, Ring
from voidrl.types import Batch, Frames


class Draw(NamedTuple):
    """A sample of transitions for the learner."""

    slots: Tensor  # (B,)
    weight: Tensor  # (B,) importance weights, 1 where sampling is uniform


class Segment(NamedTuple):
    """Up to n steps from each of B starts, fewer where the episode, the skill or the data ends."""

    slots: Tensor  # (B, n) the step's slot; after the last valid step, that step's again
    weights: Tensor  # (B, n) γ^i, 0 after the last valid step
    states: Tensor  # (B, n + 1) slot of each state passed through; after the last one, that one again
    discount: Tensor  # (B,) factor of that state's value: γ^m, 0 where the episode terminated


class OptionSlots(NamedTuple):
    """The options that B transitions belong to: from one ending up to the next."""

    first: Tensor  # (B,) slot of the first state
    last: Tensor  # (B,) slot of the state after the last step
    steps: Tensor  # (B,) length of the option
    complete: Tensor  # (B,) bool: it has ended within the steps searched, and both states are stored


class Rollout(NamedTuple):
    """The newest steps of N environments: P transitions, row by row in a grid of time steps.

    An episode that ends leaves one place of the grid empty, that of its reset.
    """

    slots: Tensor  # (P,) oldest first
    batch: Batch  # (P, …) single steps
    ends: Tensor  # (P,) bool: no return runs past this step
    real: Tensor  # (R, N) bool: the places of the P steps

    def grid(self, x: Tensor) -> Tensor:
        """(P,) → (R, N), 0 in empty places."""
        empty = torch.zeros(self.real.shape, dtype=x.dtype, device=x.device)
        return empty.masked_scatter(self.real, x)

    def path_sums(self, x: Tensor) -> Tensor:
        """(P,): x summed over the steps of the same episode up to and including each."""
        total = F.pad(self.grid(x).cumsum(0), (0, 0, 1, 0))  # (R + 1, N)
        row = torch.arange(len(self.real), device=x.device)[:, None]
        begins = F.pad(~self.real[:-1], (0, 0, 1, 0), value=True)  # after an empty place
        first = torch.where(begins, row, 0).cummax(0).values  # (R, N) the row in which the episode begins
        return (total[1:] - total.gather(0, first))[self.real]


class Replay(Ring):
    """Experience of N environments, and samples of it."""

    # Sampling

    def sample(self, batch_size: int) -> Tensor:
        """Slots of `batch_size` transitions, uniformly with replacement."""
        assert self._size, "nothing to sample yet"
        return self._draw(batch_size)

    @fusable
    def _draw(self, batch_size: int) -> Tensor:
        # rand() times a size that lives on the device. With 2⁻²⁴ between the numbers of a float32, some of
        # a million starts would be drawn more often than others.
        uniform = torch.rand(batch_size, dtype=torch.float64, device=self.starts.device)
        back = (uniform * self.starts_count).long()
        return self.starts[self.starts_head - 1 - back]  # below 0 it counts from the ring's end

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
        return Rollout(slots, self.batch(slots, 1, discount), self.ending[slots] != 0, real)

    # Steps from a slot on

    def segment(
        self, slots: Tensor, n: int | Tensor, discount: float | Tensor, longest: int | None = None
    ) -> Segment:
        """The next n steps from each slot, never past the end of an episode, of a skill or of the data.

        n and γ are numbers, or scalars on the device that change between updates: then n ≤ `longest`.
        """
        limit, width = (None, n) if isinstance(n, int) else (n, longest)
        assert width is not None, "a scalar on the device needs the longest n"
        time, powers = self._time_and_powers(width, 1.0 if isinstance(discount, Tensor) else discount)
        return self._segment(slots, time, discount**time if isinstance(discount, Tensor) else powers, limit)

    def _time_and_powers(self, n: int, discount: float) -> tuple[Tensor, Tensor]:
        """0 … n, and γ^0 … γ^n, made once."""
        if (n, discount) not in self._powers:
            time = torch.arange(n + 1, device=self.device)
            self._powers[n, discount] = time, discount**time
        return self._powers[n, discount]

    @fusable
    def _segment(self, slots: Tensor, time: Tensor, powers: Tensor, limit: Tensor | None) -> Segment:
        """`time` is 0 … n, `powers` are γ^0 … γ^n; with a `limit`, steps from it on are left out."""
        if len(time) == 2:  # the step in each slot, in fewer kernels
            after = (slots + self.num_envs) % len(self.starts)
            alive = self.ending[slots] != TERMINATED
            one = self._one.expand(len(slots), 1)
            return Segment(slots[:, None], one, torch.stack([slots, after], 1), alive * powers[1])
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

    def _recorded(self, slots: Tensor) -> Tensor:
        """(B,): the steps of the slot's environment from this slot up to its newest frame."""
        return (self.head - slots // self.num_envs) % self.rows

    def continues(self, segment: Segment) -> Tensor:
        """(B, n): 1 where the step is valid and ends neither its episode nor its skill, else 0."""
        return ((segment.weights > 0) & (self.ending[segment.slots] == 0)).float()

    def options(self, slots: Tensor, longest: int) -> OptionSlots:
        """The option that each transition belongs to, searched over `longest` steps in both directions.

        An option is an uninterrupted use of one skill: it begins with the skill, the episode or a new
        life, and ends with the first of these that ends.
        """
        return self._options(slots, self._time_and_powers(longest, 1.0)[0])

    @fusable
    def _options(self, slots: Tensor, time: Tensor) -> OptionSlots:
        """`time` is 0 … n."""
        n, size, age = len(time) - 1, len(self.starts), self.age[slots]
        recorded = self._recorded(slots)
        path = torch.add(slots[:, None], time[:-1], alpha=self.num_envs) % size  # (B, n) from here on
        continues = (self.ending[path] == 0) & (time[:-1] < recorded[:, None])
        ahead = continues.int().cumprod(1).sum(1)  # (B,) steps from here to the last one of the option
        path = torch.sub(slots[:, None], time[1:], alpha=self.num_envs) % size  # (B, n) from here back
        continues = (self.ending[path] == 0) & (time[1:] <= age[:, None])
        back = continues.int().cumprod(1).sum(1)  # (B,) steps from the first one of the option to here
        # What precedes an option is the beginning of its episode, or an ending that is still stored.
        oldest, steps = recorded + back, back + ahead + 1
        found = (back == age) | (oldest + 1 < self.rows)
        complete = found & (oldest <= self.rows - self.spec.frame_stack) & (ahead < recorded) & (steps <= n)
        first = torch.sub(slots, torch.where(complete, back, 0), alpha=self.num_envs) % size
        last = torch.add(slots, torch.where(complete, ahead, 0) + 1, alpha=self.num_envs) % size
        return OptionSlots(first, last, steps, complete)

    # Observations

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
        lag = torch.minimum(self._lags, self.age[slots, None])
        return torch.sub(slots[:, None], lag, alpha=self.num_envs) % len(self.starts)

    def observations(self, slots: Tensor) -> Tensor:
        """(B,) slots → (B, *obs_shape), as stored."""
        return self.frames_of(slots).stacked()

    def latest(self) -> Tensor:
        """(N, *obs_shape): the observations on which the environments wait for an action."""
        return self.observations(torch.add(self._columns, self.head, alpha=self.num_envs))

    # Batches

    def batch(self, slots: Tensor, n: int, discount: float) -> Batch:
        """n-step transitions with the environment's reward, observations as they were stored."""
        return self.n_step_batch(self.segment(slots, n, discount))

    def n_step_batch(
        self, segment: Segment, obs: Tensor | None = None, next_obs: Tensor | None = None
    ) -> Batch:
        """Each segment as one n-step transition, between the given observations or the stored ones."""
        if obs is None or next_obs is None:
            both = torch.cat([segment.slots[:, 0], segment.states[:, -1]])
            obs, next_obs = self.observations(both).chunk(2)  # in one pass
        return self._n_step_batch(segment, obs, next_obs)

    @fusable
    def _n_step_batch(self, segment: Segment, obs: Tensor, next_obs: Tensor) -> Batch:
        reward = self.reward[segment.slots]  # (B, n)
        reward = (reward * segment.weights).sum(1) if reward.shape[1] > 1 else reward[:, 0]
        first, last = segment.slots[:, 0], segment.slots[:, -1]
        return self._batch(first, last, obs, reward, segment.discount, next_obs)

    def steps(self, segment: Segment, obs: Tensor) -> Iterator[tuple[Batch, Tensor]]:
        """The segment's one-step transitions, offset by offset, each with its (B,) weights.

        `obs` is (n + 1, B, *obs_shape): the observations in `segment.states.T`.
        """
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


def as_words(tensor: Tensor) -> Tensor:
    """(S, …) → (S, n): each entry as the longest words that divide it, of up to 8 bytes."""
    flat = tensor.view(len(tensor), -1).view(torch.uint8)
    words = (torch.int64, torch.int32, torch.int16, torch.uint8)
    return flat.view(next(dtype for dtype in words if flat.shape[1] % dtype.itemsize == 0))
