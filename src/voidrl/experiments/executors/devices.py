"""The GPUs of this machine, and which of them the next cell gets.

Memory is read from `nvidia-smi`: asking CUDA itself would take some of it on every GPU.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from voidrl.errors import ConfigError

QUERY = ("nvidia-smi", "--query-gpu=index,uuid,memory.free,memory.total", "--format=csv,noheader,nounits")
MIB = 2**20
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Gpu:
    """A GPU that CUDA sees here."""

    number: int
    """Number among the GPUs that CUDA sees, as in `cuda:1`."""
    uuid: str
    """Its name in CUDA_VISIBLE_DEVICES, whatever others are visible."""
    free: int
    """Free bytes."""
    total: int


def read_gpus() -> list[Gpu]:
    """The GPUs that CUDA may use here, in its order; empty where there are none, or no `nvidia-smi`."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
        rows = [
            [word.strip() for word in line.split(",")] for line in done.stdout.splitlines() if line.strip()
        ]
        there = [(int(i), uuid, int(free) * MIB, int(total) * MIB) for i, uuid, free, total in rows]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        found = []
        for entry in visible.split(","):
            row = next((row for row in there if _names(entry.strip(), row[0], row[1])), None)
            if row is None:  # as in CUDA: devices after an unknown one are invisible
                break
            found.append(row)
        there = found
    return [Gpu(number, *row[1:]) for number, row in enumerate(there)]


def _names(entry: str, index: int, uuid: str) -> bool:
    return entry == str(index) or (entry.startswith("GPU-") and uuid.startswith(entry))


def parse_devices(text: str) -> tuple[int, ...]:
    """The numbers in `0,1,2`; empty for `cpu`."""
    if text == "cpu":
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise ConfigError(
            f"--devices {text} cannot be used: expected numbers of GPUs such as 0,1,2,3, or cpu"
        )
    numbers = tuple(int(word) for word in words)
    if len({*numbers}) < len(numbers):
        remedy = "expected each GPU once; --jobs sets how many runs share it"
        raise ConfigError(f"--devices {text} cannot be used: {remedy}")
    return numbers


class Placement:
    """Gives every cell a GPU: one with a free slot and enough memory, of those the one with the most.

    A cell's memory is not known in advance: it is assumed to be the largest of the ended ones, which write
    it down. Until a new cell has taken its part, that much is reserved. Before any has ended, the cells
    of a GPU are taken to share its memory equally.

    Args:
        gpus: The GPUs that may be used.
        jobs: Cells at a time on each.
        need: Bytes that a cell takes, as far as has been seen.
        read: Reads the memory of all GPUs; replaced in tests.
    """

    def __init__(
        self, gpus: Sequence[Gpu], jobs: int, need: int = 0, read: Callable[[], Sequence[Gpu]] = read_gpus
    ) -> None:
        self.gpus, self.jobs, self.need, self._read = {gpu.number: gpu for gpu in gpus}, jobs, need, read
        self.cells: dict[str, int] = {}
        """The GPU of every running cell."""
        self._idle = {gpu.number: gpu.free for gpu in gpus}  # free bytes without any cell

    def choose(self) -> int | None:
        """The GPU of the next cell; None while it has to wait for a slot or for memory."""
        counts = self._counts()
        if all(count >= self.jobs for count in counts.values()):
            return None
        self._look(counts)
        room = {number: self._room(number, count) for number, count in counts.items() if count < self.jobs}
        fitting = {number: free for number, free in room.items() if free >= self.need}
        return max(fitting, key=lambda number: (fitting[number], -counts[number], -number), default=None)

    def shortage(self) -> str:
        """Reason why a cell waits though none runs; empty where one runs or there is room."""
        if self.cells or self.choose() is not None:
            return ""
        free = max(gpu.free for gpu in self.gpus.values())
        return (
            f"waiting for memory: a run of this experiment took {self.need / 1e9:.1f} GB, and at most "
            f"{free / 1e9:.1f} GB are free on GPU {', '.join(map(str, self.gpus))}"
        )

    def _counts(self) -> dict[int, int]:
        used = [*self.cells.values()]
        return {number: used.count(number) for number in self.gpus}

    def _look(self, counts: Mapping[int, int]) -> None:
        for gpu in self._read():
            if gpu.number not in self.gpus:
                continue
            self.gpus[gpu.number] = gpu
            if not counts[gpu.number]:
                self._idle[gpu.number] = gpu.free

    def _room(self, number: int, count: int) -> int:
        if not self.need:
            return self._idle[number] // (count + 1)
        return min(self.gpus[number].free, self._idle[number] - count * self.need)
