"""Lossless compression of stored images: each as what differs from a key frame.

Every `KEY_ROWS` rows the frames of all environments are kept as they are: key frames. Of every other frame
only the words of 8 bytes that differ from its key frame are stored, behind a mask of which words these are.
Such a record is read without any other, and all of its words at once: word i of a frame is that of the key
frame or, where bit i of the mask is set, the n-th word behind the mask, n being the number of bits set up to
and including i. Images of games that differ in a few objects take a fifth to a fifteenth of their bytes.

Records lie in a ring of words, a row after the other. How long a row's are is known when the device has made
them: the host reads it one row later, when it needs to know where the next row begins. Until then it reckons
with the longest possible. When the ring is full, the oldest rows are dropped.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.errors import CheckpointError, ConfigError
from voidrl.kernels import usable
from voidrl.pinned import pinned_zeros

KEY_ROWS = 256
WORD_BYTES = 8
MASK_BITS = 64  # in a word
GIB = 2**30
HEAD, OLDEST, LIVE, LAP, CAPACITY = range(5)  # places of the counters


class CompressedFrames:
    """The frames of a replay: rows of N, slot = row · N + column."""

    def __init__(
        self,
        frame_shape: tuple[int, ...],
        num_envs: int,
        rows: int,
        memory_bytes: int,
        storage: torch.device,
        device: torch.device,
    ) -> None:
        """Records take `memory_bytes` on `storage`, which may be main memory; all else is on `device`."""
        self.frame_shape, self.num_envs, self.rows, self.device = frame_shape, num_envs, rows, device
        self.frame_bytes = math.prod(frame_shape)
        self.words = word_count(self.frame_bytes)
        self.mask_words = -(-self.words // MASK_BITS)
        self.longest_row = num_envs * (self.words + self.mask_words)
        ring_words = memory_bytes // WORD_BYTES
        self._pinned: Tensor | None = None  # the ring as the host has it
        if storage == device:
            self.ring = _zeros((ring_words,), torch.int64, device)
        else:
            self._pinned, self.ring = pinned_zeros((ring_words,), torch.int64, device)
        # Two of each group of rows: while a group is overwritten, its old rows still need their key frames.
        self.keys = _zeros((2 * key_rows(rows) * num_envs, self.words), torch.int64, device)
        self.begin = _zeros((rows * num_envs,), torch.int64, device)  # of each slot's record
        self.key = _zeros((rows * num_envs,), torch.int32, device)  # of each slot, its key frame
        self.arrived = _zeros((num_envs, *frame_shape), torch.uint8, device)
        """Where frames are written that `encode` stores."""
        # The records of a row, which are then copied as a whole; what is not stored goes behind them.
        self._row = _zeros((self.longest_row + 1,), torch.int64, device)
        self._columns = torch.arange(num_envs, dtype=torch.int32, device=device)
        self._mask_places = torch.arange(self.mask_words, device=device)
        self._bits = torch.arange(MASK_BITS, device=device)
        # The host's bookkeeping.
        self.row_begin = np.zeros(rows, np.int64)
        self.row_words = np.zeros(rows, np.int64)  # 0 where no frames are stored, or none any more
        self.counters = np.zeros(5, np.int64)
        self.counters[CAPACITY] = ring_words
        self._pending: int | None = None  # the row whose length is not known yet
        on_cuda = device.type == "cuda"
        self._length = torch.zeros((), dtype=torch.int64, pin_memory=on_cuda)
        self._measured = torch.cuda.Event() if on_cuda else None

    @property
    def live_rows(self) -> int:
        """Rows whose frames are stored, the newest included."""
        return int(self.counters[LIVE])

    # Writing

    def make_room(self, row: int) -> list[int]:
        """Reserve memory for a row, the next one; returns the rows that are dropped for it, oldest first."""
        self._settle()
        counters, dropped = self.counters, []
        if counters[HEAD] + self.longest_row > counters[CAPACITY]:
            counters[HEAD] = 0  # a row is never divided, so none begins behind here
        reserved = range(counters[HEAD], counters[HEAD] + self.longest_row)
        while counters[LIVE]:
            oldest = int(counters[OLDEST])
            if counters[LIVE] < self.rows and int(self.row_begin[oldest]) not in reserved:
                break
            dropped.append(oldest)
            self.row_words[oldest] = 0
            counters[OLDEST] = (oldest + 1) % self.rows
            counters[LIVE] -= 1
        assert (counters[OLDEST] + counters[LIVE]) % self.rows == row, (counters, row)
        self.row_begin[row] = counters[HEAD]
        counters[LIVE] += 1
        if row == 0:
            counters[LAP] += 1
        return dropped

    def encode(self, row: int) -> None:
        """Store the frames that have arrived, on the device and without waiting for it."""
        n, first = self.num_envs, int(self.row_begin[row])
        group = 2 * (row // KEY_ROWS) + int(self.counters[LAP] % 2)
        keys = self.keys[group * n : (group + 1) * n]
        flat = F.pad(self.arrived.view(n, -1), (0, self.words * WORD_BYTES - self.frame_bytes))
        words = flat.view(torch.int64)  # (N, W)
        if row % KEY_ROWS == 0:
            keys.copy_(words)
        differs = words != keys
        count = differs.cumsum(1)  # (N, W)
        length = count[:, -1] + self.mask_words
        begin = length.cumsum(0) - length  # (N,)
        bits = F.pad(differs, (0, self.mask_words * MASK_BITS - self.words)).view(n, -1, MASK_BITS)
        masks = (bits.long() << self._bits).sum(2)  # (N, M)
        self._row[begin[:, None] + self._mask_places] = masks
        behind = self.longest_row  # where nothing is read
        places = torch.where(differs, begin[:, None] + (self.mask_words - 1) + count, behind)
        self._row.scatter_(0, places.flatten(), words.flatten())
        self.ring[first : first + self.longest_row].copy_(self._row[: self.longest_row])
        slots = slice(row * n, (row + 1) * n)
        self.begin[slots] = begin + first
        self.key[slots] = self._columns + group * n
        self._length.copy_(length.sum(), non_blocking=True)
        if self._measured is not None:
            self._measured.record(torch.cuda.current_stream(self.device))
        self._pending = row

    def _settle(self) -> None:
        """Read how long the last row has become."""
        if self._pending is None:
            return
        if self._measured is not None:
            self._measured.synchronize()  # host synchronization: actions chosen since then have arrived
        self.row_words[self._pending] = int(self._length)
        self.counters[HEAD] = self.row_begin[self._pending] + self.row_words[self._pending]
        self._pending = None

    # Reading

    def read(self, slots: Tensor) -> Tensor:
        """(n,) slots → (n, *frame_shape) uint8, on the device."""
        if usable(self.keys):
            from voidrl.kernels.frames import MAX_WORDS, decode  # imports Triton

            if self.words <= MAX_WORDS:
                return self._as_frames(decode(self.ring, self.begin, self.key, self.keys, slots))
        return self._as_frames(decode_plainly(self.ring, self.begin, self.key, self.keys, slots))

    def _as_frames(self, words: Tensor) -> Tensor:
        flat = words.view(torch.uint8)[:, : self.frame_bytes]
        return flat.reshape(len(words), *self.frame_shape)

    # Checkpoints

    def state(self) -> dict[str, np.ndarray]:
        """The host's bookkeeping, to be read and to be set in place."""
        self._settle()
        return {"row_begin": self.row_begin, "row_words": self.row_words, "counters": self.counters}

    def require_capacity(self, counters: Tensor) -> None:
        """Refuse the bookkeeping of a ring of another size."""
        saved, mine = int(counters[CAPACITY]), int(self.counters[CAPACITY])
        if saved != mine:
            raise CheckpointError(
                f"the compressed frames of the checkpoint are from a ring of {saved * WORD_BYTES} bytes and "
                f"the run's config makes one of {mine * WORD_BYTES}: set replay.compressed_gib back to "
                f"{saved * WORD_BYTES / GIB:g}"
            )

    def part(self, first: int, last: int) -> dict[str, Tensor]:
        """What is stored of the rows from `first` up to `last`; `first` begins a group of key frames."""
        assert first % KEY_ROWS == 0, first
        self._settle()
        ring, n = self._host_or_device_ring(), self.num_envs
        begins, lengths = self.row_begin[first:last], self.row_words[first:last]
        records = [ring[b : b + w] for b, w in zip(begins.tolist(), lengths.tolist(), strict=True)]
        groups = slice(2 * (first // KEY_ROWS) * n, 2 * key_rows(last) * n)
        return {
            "records": torch.cat(records),
            "row_begin": torch.from_numpy(begins.copy()),
            "row_words": torch.from_numpy(lengths.copy()),
            "begin": self.begin[first * n : last * n],
            "key": self.key[first * n : last * n],
            "keys": self.keys[groups],
        }

    def load_part(self, first: int, part: dict[str, Tensor]) -> None:
        """The inverse of `part`, after `state` was set: rows dropped since it was saved are left out."""
        ring, n, at = self._host_or_device_ring(), self.num_envs, 0
        last = first + len(part["row_words"])
        for row, begin, words in zip(
            range(first, last), part["row_begin"].tolist(), part["row_words"].tolist(), strict=True
        ):
            if words and (self.row_begin[row], self.row_words[row]) == (begin, words):
                ring[begin : begin + words].copy_(part["records"][at : at + words])
            at += words
        self.begin[first * n : last * n].copy_(part["begin"])
        self.key[first * n : last * n].copy_(part["key"])
        self.keys[2 * (first // KEY_ROWS) * n : 2 * key_rows(last) * n].copy_(part["keys"])

    def _host_or_device_ring(self) -> Tensor:
        if self._pinned is None:
            return self.ring
        torch.cuda.synchronize(self.device)  # host synchronization: the stream may still use the ring
        return self._pinned


def decode_plainly(ring: Tensor, begin: Tensor, key: Tensor, keys: Tensor, slots: Tensor) -> Tensor:
    """(n,) slots → (n, W) words of their frames."""
    word = torch.arange(keys.shape[1], device=keys.device)
    mask_words = -(-len(word) // MASK_BITS)
    first = begin[slots, None]  # (n, 1)
    masks = ring[first + word[:mask_words]]  # (n, M)
    differs = (masks[:, word // MASK_BITS] >> (word % MASK_BITS)) & 1  # (n, W)
    stored = ring[first + (mask_words - 1) + differs.cumsum(1)]
    return torch.where(differs.bool(), stored, keys[key[slots]])


def word_count(frame_bytes: int) -> int:
    """Words of a frame, the last of which may be padded."""
    return -(-frame_bytes // WORD_BYTES)


def key_rows(rows: int) -> int:
    """Rows of key frames for so many rows."""
    return -(-rows // KEY_ROWS)


def index_bytes(frame_bytes: int, num_envs: int, rows: int) -> int:
    """Memory on the networks' device: key frames, and where the records of each slot are."""
    keys = 2 * key_rows(rows) * num_envs * word_count(frame_bytes) * WORD_BYTES
    return keys + rows * num_envs * (8 + 4)


def require_room(compressed_gib: float, frame_bytes: int, num_envs: int, frame_stack: int) -> None:
    """Refuse a ring that could lose frames of the newest observations."""
    words = word_count(frame_bytes)
    row_bytes = num_envs * (words + -(-words // MASK_BITS)) * WORD_BYTES
    # A stack, the row after it, one that is being written, and one that would not fit at the ring's end.
    needed = (frame_stack + 3) * row_bytes
    if compressed_gib * GIB < needed:
        raise ConfigError(
            f"replay.compressed_gib = {compressed_gib:g} cannot be used with env.num_envs = {num_envs}: "
            f"expected {math.ceil(needed / GIB * 1000) / 1000:g} or more, or 0 not to compress"
        )


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":  # NumPy's zeros take memory page by page, as they are written to
        return torch.from_numpy(np.zeros(shape, str(dtype).removeprefix("torch.")))
    return torch.zeros(shape, dtype=dtype, device=device)
