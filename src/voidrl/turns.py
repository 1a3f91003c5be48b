"""Turns of runs that share one process: each has a thread, and only one of them computes at a time.

A run gives up its turn where it waits for its actions or its environments. Updates that it has launched run
on its own CUDA stream meanwhile, and its environments step in their own processes. Turns are taken in the
order in which they are asked for, so that all runs advance alike.

What torch keeps for the whole process is exchanged with the turn, so that every run draws the random numbers
that it would draw alone. On CUDA the generator's state is exchanged as an object and not by its value, as
captured graphs refer to it. Everything else that a run changes in torch (streams, autocast, CPU threads)
belongs to its thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from voidrl.errors import ConfigError

MOST_ON_CUDA = 10  # runs with three streams each: torch has 32, and gives the first ones out again


class RandomState:
    """The states of torch's generators that belong to one run."""

    def __init__(self, cpu: torch.Tensor) -> None:
        self._cpu = cpu
        self._cuda: list[torch.Generator] = []

    def keep(self) -> None:
        """Take over the present states."""
        self._cpu = torch.get_rng_state()
        self._cuda = [generator.graphsafe_get_state() for generator in torch.cuda.default_generators]

    def restore(self) -> None:
        """Make these the present states; where CUDA was not used yet, with copies of another run's."""
        torch.set_rng_state(self._cpu)
        for index, generator in enumerate(torch.cuda.default_generators):
            known = index < len(self._cuda)
            generator.graphsafe_set_state(self._cuda[index] if known else generator.clone_state())


class Turns:
    """Hands the turn from thread to thread, first come, first served; at first in the order of the runs."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self._guard = threading.Lock()
        self._firsts = [threading.Lock() for _ in range(runs)]
        for ticket in self._firsts[1:]:
            ticket.acquire()
        self._waiting = deque(self._firsts[1:])
        self._is_taken = True  # by the first run, though its thread may not have started
        self._start = torch.get_rng_state()
        self._outside = RandomState(self._start)
        self._present = self._outside  # whose states torch has now

    def take(self, random_state: RandomState) -> None:
        """Wait for the turn."""
        ticket = threading.Lock()
        with self._guard:
            if self._is_taken:
                ticket.acquire()
                self._waiting.append(ticket)
            self._is_taken = True
        self._begin(ticket, random_state)

    def _begin(self, ticket: threading.Lock, random_state: RandomState) -> None:
        ticket.acquire()  # once `give` has released it
        if random_state is not self._present:
            self._present.keep()
            random_state.restore()
            self._present = random_state

    def give(self) -> None:
        """Pass the turn on to whoever has waited longest."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False

    def restore(self) -> None:
        """Give the caller's generators back, once all runs have ended."""
        self._begin(threading.Lock(), self._outside)

    @contextmanager
    def taken(self, run: int) -> Iterator[None]:
        """Inside, this thread is a run: it begins with its first turn, and ends by giving it up."""
        place = self, RandomState(self._start)
        token = _place.set(place)
        self._begin(self._firsts[run], place[1])
        try:
            yield
        finally:
            self.give()
            _place.reset(token)


_place: ContextVar[tuple[Turns, RandomState] | None] = ContextVar("place", default=None)


def is_shared() -> bool:
    """Whether this thread is one of several runs of its process."""
    return _place.get() is not None


@contextmanager
def released() -> Iterator[None]:
    """Inside, the other runs of this process may compute; this one waits for something and uses no torch."""
    place = _place.get()
    if place is None:
        yield
        return
    turns, random_state = place
    turns.give()
    try:
        yield
    finally:
        turns.take(random_state)


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Inside, one of several runs launches on a CUDA stream of its own, next to those of the others."""
    place = _place.get()
    if device.type != "cuda" or place is None:
        yield
        return
    if place[0].runs > MOST_ON_CUDA:
        # Two runs on one stream would also share the workspaces of their products.
        raise ConfigError(
            f"{place[0].runs} runs cannot share a process on {device}: expected at most {MOST_ON_CUDA}; "
            f"start the others in another process"
        )
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        stream.synchronize()  # what was made on it is used on others from now on
