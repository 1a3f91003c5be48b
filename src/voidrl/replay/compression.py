"""Lossless compression of stored images: each as what differs from a key frame.

Every `KEY_ROWS` rows the frames of all environments are kept as they are: key frames. Of every other frame
only the words of 8 bytes that differ from its key frame are stored, behind a mask of which words these are.
Such a record is read without any other, and all of its words at once: word i of a frame is that of the key
frame or, where bit i of the mask is set, the n-th word behind the mask, n being the number of bits set up to
and including i. Images of games that differ in a few objects take a fifth to an eighteenth of their bytes.

Records lie in a ring of words, a row after the other. When it is full, the oldest rows are dropped. The host
compresses, at about two microseconds for a frame of a game, so that it knows how long records are. It uploads
the records instead of the frames.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from voidrl.errors import CheckpointError, ConfigError
from voidrl.kernels import usable
from voidrl.replay.pinned import pinned_zeros
from voidrl.units import GIB

KEY_ROWS = 256
WORD_BYTES = 8
MASK_BITS = 64  # in a word
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
        # The host's bookkeeping.
        self.row_begin = np.zeros(rows, np.int64)
        self.row_words = np.zeros(rows, np.int64)  # 0 where no frames are stored, or none any more
        self.counters = np.zeros(5, np.int64)
        self.counters[CAPACITY] = ring_words
        self._newest_keys: np.ndarray | None = None  # the host's copy

    @property
    def live_rows(self) -> int:
        """Rows whose frames are stored, the newest included."""
        return int(self.counters[LIVE])

    def tensors(self) -> dict[str, Tensor]:
        """What the writes of `encode` are for."""
        return {"ring": self.ring, "begin": self.begin, "key": self.key, "keys": self.keys}

    # Writing

    def encode(
        self, row: int, frames: np.ndarray | Tensor
    ) -> tuple[list[int], list[tuple[str, int, np.ndarray]]]:
        """Compress the frames of the next row.

        Returns:
            The rows that are dropped for it, oldest first; and what to write: the name of the tensor, where,
            and the values.
        """
        n = self.num_envs
        array = frames.cpu().numpy() if isinstance(frames, Tensor) else frames  # host synchronization
        flat = np.zeros((n, self.words * WORD_BYTES), np.uint8)
        flat[:, : self.frame_bytes] = array.reshape(n, -1)
        words = flat.view(np.int64)  # (N, W)
        if row == 0:
            self.counters[LAP] += 1
        group = 2 * (row // KEY_ROWS) + int(self.counters[LAP] % 2)
        writes: list[tuple[str, int, np.ndarray]] = []
        if row % KEY_ROWS == 0:
            self._newest_keys = words
            writes.append(("keys", group * n, words))
        elif self._newest_keys is None:  # after loading; host synchronization
            self._newest_keys = self.keys[group * n : (group + 1) * n].cpu().numpy()
        records, begin = self._records(words, words != self._newest_keys)
        dropped = self._reserve(row, len(records))
        first = int(self.row_begin[row])
        keys = np.arange(group * n, (group + 1) * n, dtype=np.int32)
        writes += [("ring", first, records), ("begin", row * n, begin + first), ("key", row * n, keys)]
        return dropped, writes

    def _records(self, words: np.ndarray, differs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The records of a row, joined, and where each begins."""
        count = differs.sum(1)  # (N,)
        length = count + self.mask_words
        begin = length.cumsum() - length
        records = np.empty(length.sum(), np.int64)
        bits = np.zeros((len(words), self.mask_words * MASK_BITS), bool)
        bits[:, : self.words] = differs
        masks = np.packbits(bits, axis=1, bitorder="little").view("<i8")  # (N, M)
        is_mask = np.zeros(len(records), bool)
        is_mask[begin[:, None] + np.arange(self.mask_words)] = True
        records[is_mask] = masks.ravel()
        records[~is_mask] = words[differs]
        return records, begin

    def _reserve(self, row: int, length: int) -> list[int]:
        """Take a part of the ring for a row; returns the rows that are dropped for it."""
        counters, dropped = self.counters, []
        tail = int(counters[CAPACITY])
        if counters[HEAD] + length > tail:
            tail, counters[HEAD] = int(counters[HEAD]), 0  # a row is never divided
        first = int(counters[HEAD])
        while counters[LIVE]:
            oldest = int(counters[OLDEST])
            begin = int(self.row_begin[oldest])
            # What lies behind the last row, at the ring's end, is older than what is overwritten.
            if counters[LIVE] < self.rows and not (first <= begin < first + length or begin >= tail):
                break
            dropped.append(oldest)
            self.row_words[oldest] = 0
            counters[OLDEST] = (oldest + 1) % self.rows
            counters[LIVE] -= 1
        assert (counters[OLDEST] + counters[LIVE]) % self.rows == row, (counters, row)
        self.row_begin[row], self.row_words[row] = first, length
        counters[HEAD] = first + length
        counters[LIVE] += 1
        return dropped

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
        return {"row_begin": self.row_begin, "row_words": self.row_words, "counters": self.counters}

    def begin_loading(self, counters: Tensor) -> None:
        """Before `state` is set and `load_part` called: refuse the bookkeeping of a ring of another size."""
        self._newest_keys = None
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
    # A stack, the row after it, the next one, and one that would not fit at the ring's end.
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
