"""Which of the processes that train one agent are still there, and what the others said when they ended.

An exchange that fails says that a connection was closed, not by whom. Each process therefore leaves its
machine and process id in the store that all of them use, and its last sentence when it ends.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from voidrl.errors import RankLostError

END_SECONDS = 5.0  # to wait for the last sentence of a process that has closed its connections
POLL_SECONDS = 0.02
WATCH_SECONDS, GRACE_SECONDS = 1.0, 15.0
BEAT_SECONDS = 10.0
SILENT_SECONDS = 300.0  # without a heartbeat of a process on another machine, until it is lost
DIED, SILENT = "died", "sent no heartbeats for minutes: the machine or its network may be down"
FAILED = 2  # exit status of bad input and of failures


class End(NamedTuple):
    """How a process ended."""

    sentence: str
    is_loss: bool
    """Because another one was lost, which explains nothing."""


class Liveness:
    """The processes of a group, as one of them sees them; `store` is torch's."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._processes: dict[int, tuple[str, int]] = {}
        self._left = threading.Event()
        self._is_cut_off = False
        self._set(f"process/{rank}", [machine_id(), os.getpid()])

    def wait_for_start(
        self, before: Mapping[int, tuple[str, int]], seconds: float
    ) -> dict[int, tuple[str, int]]:
        """Wait until all have registered, and return their machines and process ids.

        Args:
            before: Those of an earlier group, if there was one: who has ended since will not come.
            seconds: How long to wait for one that has not begun.
        """
        last = time.monotonic() + seconds
        while missing := [rank for rank in range(self._size) if not self._is_registered(rank)]:
            gone = [rank for rank in missing if _has_ended(*before.get(rank, ("", 0)))]
            if gone or self._is_cut_off:
                raise RankLostError(
                    f"rank {self._rank} of {self._size} cannot join the others again, since rank "
                    f"{gone[0] if gone else 0} has ended: start all of them again"
                )
            if time.monotonic() > last:
                raise RankLostError(
                    f"rank {self._rank} of {self._size} has waited {seconds:.0f} s for rank {missing[0]}, "
                    f"which did not come: start all of them with the same command"
                )
            time.sleep(POLL_SECONDS)
        return self._processes

    def _is_registered(self, rank: int) -> bool:
        """Whether a rank has registered."""
        if rank not in self._processes and (found := self._get(f"process/{rank}")) is not None:
            self._processes[rank] = str(found[0]), int(found[1])
        return rank in self._processes

    def report_end(self, end: End) -> None:
        """Leave a last sentence; also ends well where nobody can read it any more."""
        self._set(f"end/{self._rank}", end)

    def is_reported(self, end: End) -> bool:
        """Whether the first rank, which speaks for all, ends for the same reason: no need to say it again."""
        if self._rank == 0:
            return False
        for _ in self._polls():
            first = self._end_of(0)
            if first is not None:
                return end.is_loss or end.sentence in first.sentence
            if self._is_dead(0):
                return False
        return False

    def wait_for_others(self) -> None:
        """Keep the store, which is in the first process, until the others have read from it."""
        self._set(f"gone/{self._rank}", True)
        if self._rank == 0:
            for _ in self._polls():
                if all(self._get(f"gone/{r}") or self._is_dead(r) for r in range(1, self._size)):
                    return

    def dead(self) -> list[int]:
        """Ranks on this machine whose process does not exist any more."""
        return [rank for rank in range(self._size) if rank != self._rank and self._is_dead(rank)]

    def describe_loss(self) -> str:
        """Who was lost, and why, in words; nothing if that cannot be known."""
        indirect = ""
        for _ in self._polls():
            for rank in range(self._size):
                if rank == self._rank:
                    continue
                end = self._end_of(rank)
                if end is not None and not end.is_loss:
                    return f"rank {rank} failed: {end.sentence}"
                if end is not None:
                    indirect = indirect or end.sentence
                elif self._is_dead(rank):
                    return f"rank {rank} {DIED}"
        return indirect

    @property
    def is_on_several_machines(self) -> bool:
        """Whether processes of another machine are in the group; known after `wait_for_start`."""
        return len({machine for machine, _ in self._processes.values()}) > 1

    def watch(self, report: Callable[[str, bool], None]) -> None:
        """Look after the others in a thread, and end this process some time after one of them was lost.

        For kernels of NCCL, which wait for a dead rank on the GPU: the host waits for them in turn, and no
        exchange of its own fails. Gloo notices a closed connection, but a machine that loses its power or its
        network closes none: processes of other machines send heartbeats.

        Args:
            report: Called before the end with a sentence, and with whether the first rank says it too.
        """
        heartbeats = Heartbeats(self._store, self._rank, self._elsewhere())

        def beat() -> None:
            while not self._left.wait(BEAT_SECONDS):
                heartbeats.exchange()

        def look() -> None:
            while not self._left.wait(WATCH_SECONDS):
                dead, silent = self.dead(), heartbeats.silent()
                if lost := dead or silent:
                    if not self._left.wait(GRACE_SECONDS):  # else it has ended by itself
                        names = " and ".join(f"rank {rank}" for rank in lost)
                        try:
                            report(f"{names} {DIED if dead else SILENT}", self._rank != 0 and 0 not in lost)
                        finally:  # the file system may be lost too
                            os._exit(FAILED)
                    return

        if self.is_on_several_machines:
            threading.Thread(target=beat, name="voidrl-heartbeats", daemon=True).start()
        threading.Thread(target=look, name="voidrl-ranks", daemon=True).start()

    def _elsewhere(self) -> list[int]:
        """The ranks on other machines."""
        here = self._processes[self._rank][0]
        return [rank for rank, (machine, _) in self._processes.items() if machine != here]

    def close(self) -> None:
        """Stop looking."""
        self._left.set()

    def _polls(self) -> Any:
        """Poll for some seconds."""
        last = time.monotonic() + END_SECONDS
        while time.monotonic() < last:
            yield
            time.sleep(POLL_SECONDS)

    def _end_of(self, rank: int) -> End | None:
        found = self._get(f"end/{rank}")
        return None if found is None else End(*found)

    def _is_dead(self, rank: int) -> bool:
        return _has_ended(*self._processes.get(rank, ("", 0)))

    def _set(self, key: str, value: Any) -> None:
        with self._connected():
            if not self._is_cut_off:
                self._store.set(key, json.dumps(value))

    def _get(self, key: str) -> Any:
        with self._connected():
            if not self._is_cut_off and self._store.check([key]):  # `get` would wait for it
                return json.loads(self._store.get(key))
        return None

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Notice that the store has ended with its process, and ask it no more."""
        try:
            yield
        except RuntimeError:
            self._is_cut_off = True


class Heartbeats:
    """Those of processes on other machines, as one process sends and receives them.

    Args:
        store: Through which they are exchanged, by a connection of its own: others may wait in theirs.
        rank: Of this process.
        others: Ranks whose heartbeats are expected.
    """

    def __init__(self, store: Any, rank: int, others: Sequence[int]) -> None:
        self._store = store.clone() if others else store
        self._rank = rank
        self._sent = 0
        self._received: dict[int, bytes] = {}
        self._exchanged = time.monotonic()
        self._times = dict.fromkeys(others, self._exchanged)

    def exchange(self) -> None:
        """Send one and look for those of the others; connects again if that fails, for the next time."""
        self._sent += 1
        try:
            self._store.set(f"heartbeat/{self._rank}", str(self._sent))
            for rank in self._times:
                key = f"heartbeat/{rank}"
                found = self._store.get(key) if self._store.check([key]) else b""
                if found != self._received.get(rank, b""):
                    self._received[rank] = found
                    self._times[rank] = time.monotonic()
            self._exchanged = time.monotonic()
        except RuntimeError:
            with suppress(RuntimeError):
                self._store = self._store.clone()

    def silent(self) -> list[int]:
        """Ranks that were silent for too long; the first, which has the store, if that does not answer."""
        since = time.monotonic() - SILENT_SECONDS
        if self._times and self._exchanged < since:
            return [0]
        return [rank for rank, heard in self._times.items() if heard < since]


def machine_id() -> str:
    """Where process ids mean the same: a boot of a kernel, and a namespace of them, as containers have.

    Machines from one image may have the same host name, which only stands in where there is no /proc.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return socket.gethostname()


def _has_ended(machine: str, pid: int) -> bool:
    """Whether a process was on this machine and is not any more."""
    return machine == machine_id() and not is_running(pid)


def is_running(pid: int) -> bool:
    """Whether a process of this machine runs; one that has ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:  # not Linux, or it ended meanwhile
        return Path("/proc").is_dir() is False
