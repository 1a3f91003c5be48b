"""A ring that stores the frames of N environments, each once, with actions, rewards and endings.

Rows are time steps, columns are environments: slot = row · N + column. A slot holds a frame, the action taken
on it and its outcome. The last frame of an episode has a slot but no action, so it is never a start: `starts`
lists the slots that are, in order of time. Frames, which take nearly all of the memory, may be in main
memory: pinned, so that kernels read and write them there in the order of the stream, and the host does
neither.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from voidrl.config import ReplayConfig
from voidrl.kernels.copies import Mark
from voidrl.replay.pinned import pinned_zeros
from voidrl.replay.priorities import NEW, NONE, Priorities
from voidrl.types import EnvSpec

# Why no n-step sum runs past the step taken in a slot; 0 where it does. Only termination ends the value.
TERMINATED, TRUNCATED, SKILL_ENDED = 1, 2, 3
CPU = torch.device("cpu")
CHUNK_BYTES = 64 * 2**20
COLUMNS = ("frames", "action", "reward", "ending", "age")
Write = tuple[str, int, np.ndarray]
"""Name of the stored tensor, index of the first entry to write, and the entries."""


def write_directly(stored: dict[str, Tensor], writes: list[Write]) -> None:
    """Writes to tensors in main memory."""
    for name, first, entries in writes:
        stored[name].numpy()[first : first + len(entries)] = entries


class Upload:
    """Writes to tensors on a device: packed in pinned memory, one copy to the device, one kernel there.

    A copy of each would be a dozen launches per step of the environments.
    """

    def __init__(self, stored: dict[str, Tensor]) -> None:
        self._bytes = {name: tensor.view(-1).view(torch.uint8) for name, tensor in stored.items()}
        self._entry_bytes = {name: tensor[0].nbytes for name, tensor in stored.items()}
        self._dtypes = {name: tensor[:0].cpu().numpy().dtype for name, tensor in stored.items()}
        self._device = stored["positions"].device
        self._packed = self._arrived = torch.empty(0, dtype=torch.uint8)
        self._copied = Mark(self._device)

    def __call__(self, writes: list[Write]) -> None:
        """Copy the entries, so that the caller may change them, and write them after all earlier launches."""
        targets, contents, length = [], [], 0
        for name, first, entries in writes:
            if len(entries):
                content = np.ascontiguousarray(entries, self._dtypes[name]).reshape(-1).view(np.uint8)
                begin = first * self._entry_bytes[name]
                targets.append(self._bytes[name][begin : begin + len(content)])
                contents.append((length, content))
                length += -(-len(content) // 16) * 16  # aligned for vectorized copies
        self._copied.wait()  # host synchronization: the last copy has usually already finished
        if len(self._packed) < length:
            self._packed = torch.empty(length, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
            self._arrived = torch.empty(length, dtype=torch.uint8, device=self._device)
        packed = self._packed.numpy()
        for begin, content in contents:
            packed[begin : begin + len(content)] = content
        self._arrived[:length].copy_(self._packed[:length], non_blocking=True)
        self._copied.set()
        sources = [self._arrived[begin : begin + len(content)] for begin, content in contents]
        torch._foreach_copy_(targets, sources)


class Ring:
    """Experience of N environments, written step by step and saved in chunks."""

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
        self.rows = row_count(capacity_steps, num_envs, spec)
        slots = self.rows * num_envs

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            if device.type == "cpu":  # NumPy's zeros take memory page by page, as they are written to
                return torch.from_numpy(np.zeros((slots, *shape), str(dtype).removeprefix("torch.")))
            return torch.zeros(slots, *shape, dtype=dtype, device=device)

        frame_dtype = torch.uint8 if spec.pixels else torch.float32
        self._pinned: Tensor | None = None  # the frames as the host has them
        if storage == device:
            self.frames = empty(*spec.stored_shape, dtype=frame_dtype)
        else:
            self._pinned, self.frames = pinned_zeros((slots, *spec.stored_shape), frame_dtype, device)
        self.action = empty(dtype=torch.int64) if spec.discrete else empty(spec.action_dim)
        self.reward = empty()
        self.ending = empty(dtype=torch.uint8)
        self.age = empty(dtype=torch.int32)  # steps since the episode began
        self.skill, self.note = empty(skill_dim), empty(note_dim)
        self.starts = empty(dtype=torch.int64)  # a separate ring
        positions = torch.zeros(3, dtype=torch.int64, device=device)
        self.head, self.starts_head, self.starts_count = positions.unbind()  # head: row of the newest frames
        self.priorities: Priorities | None = None
        if config is not None and config.priority_exponent:
            alpha, beta = config.priority_exponent, config.importance_range
            self.priorities = Priorities(slots, alpha, beta, device)
        # Small constants, made once: in a captured graph each would be another kernel.
        self._one = torch.ones((), device=device)
        self._columns = torch.arange(num_envs, device=device)
        self._lags = torch.arange(spec.frame_stack - 1, -1, -1, dtype=torch.int32, device=device)
        self._powers: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}
        # The host's copies of the positions, so that writing never waits for the device.
        self._row, self._filled_rows, self._starts_head, self._size = -1, 0, 0, 0
        self._row_starts = np.zeros(self.rows, np.int64)
        self._age = np.zeros(num_envs, np.int32)
        self._ended = np.zeros(num_envs, bool)
        self._chunk_rows = chunk_row_count(spec, num_envs, skill_dim)
        self._tags: dict[int, str] = {}  # of the chunks that were written to
        self._writes, self._session = 0, secrets.token_hex(8)
        stored = {name: getattr(self, name) for name in (*COLUMNS, "starts")} | {"positions": positions}
        if self.priorities is not None:
            stored["priority"] = self.priorities.values
        self._write = Upload(stored) if device.type == "cuda" else partial(write_directly, stored)

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return self._size

    # Writing

    def reset(self, frames: np.ndarray) -> None:
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
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        next_frames: np.ndarray,
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

    def _advance(self, frames: np.ndarray) -> list[Write]:
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

    def _slots(self, row: int) -> slice:
        return slice(row * self.num_envs, (row + 1) * self.num_envs)

    # Checkpoints

    def state(self) -> dict[str, Tensor]:
        """Positions, counters and priorities, not copied. The stored steps come from `chunks`."""
        counters = torch.tensor((self._row, self._filled_rows, self._starts_head, self._size))
        arrays = {"row_starts": self._row_starts, "age": self._age, "ended": self._ended}
        state = {"starts": self.starts, "counters": counters}
        state |= {name: torch.from_numpy(array) for name, array in arrays.items()}
        return state if self.priorities is None else state | self.priorities.state()

    def chunks(self) -> Iterator[tuple[str, str, Callable[[], dict[str, Tensor]]]]:
        """(name, tag, tensors) of each written part; a part with the same tag has not changed."""
        for i, tag in sorted(self._tags.items()):
            first, last = i * self._chunk_rows, min((i + 1) * self._chunk_rows, self._filled_rows)
            yield f"{i:05d}", tag, partial(self._stored, first, last)

    def load(self, state: dict[str, Tensor], chunks: Iterator[tuple[str, str, dict[str, Tensor]]]) -> None:
        """The inverse of `state` and `chunks`, in place."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        self._row, self._filled_rows, self._starts_head, self._size = state["counters"].tolist()
        self._write([self._positions()])
        self._tags.clear()
        for name, tag, tensors in chunks:
            first = int(name) * self._chunk_rows
            for key, tensor in self._stored(first, first + len(tensors["age"]) // self.num_envs).items():
                tensor.copy_(tensors[key])
            self._tags[int(name)] = tag

    def _touch(self, row: int) -> None:
        """Give the chunk of a row, which changes, a tag that none ever had."""
        self._writes += 1
        self._tags[row // self._chunk_rows] = f"{self._session}-{self._writes}"

    def _stored(self, first: int, last: int) -> dict[str, Tensor]:
        """Everything stored in some rows, to be read or written in bulk.

        Frames in main memory are the host's tensor, so that they do not pass through the device.
        """
        names = (*COLUMNS, "skill", *["note"] * bool(self.note.shape[1]))
        found: dict[str, Tensor] = {name: getattr(self, name) for name in names}
        if self._pinned is not None:
            torch.cuda.synchronize(self.device)  # host synchronization: the stream may still use the frames
            found["frames"] = self._pinned
        slots = slice(first * self.num_envs, last * self.num_envs)
        return {name: tensor[slots] for name, tensor in found.items()}


def chunk_row_count(spec: EnvSpec, num_envs: int, skill_dim: int) -> int:
    """Rows in a chunk of a checkpoint."""
    return max(1, CHUNK_BYTES // (num_envs * slot_bytes(spec, skill_dim)))


def row_count(capacity_steps: int, num_envs: int, spec: EnvSpec) -> int:
    """Rows of the ring: the steps asked for, and room for the newest frames and a full stack."""
    return max(-(-capacity_steps // num_envs), spec.frame_stack + 1) + spec.frame_stack


def slot_bytes(spec: EnvSpec, skill_dim: int, *, note_dim: int = 0, prioritized: bool = False) -> int:
    """Memory of one slot."""
    action, priority = 8 if spec.discrete else 4 * spec.action_dim, 8 if prioritized else 0
    return frame_bytes(spec) + action + 4 + 1 + 4 + 4 * (skill_dim + note_dim) + 8 + priority


def frame_bytes(spec: EnvSpec) -> int:
    """Memory of one frame."""
    return math.prod(spec.stored_shape) * (1 if spec.pixels else 4)
