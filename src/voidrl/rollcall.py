"""Which of the processes that train one agent are still there, and what the others said when they ended.

An exchange that fails says that a connection was closed, not by whom. Each process therefore leaves its host
and process id in the store through which all have met, and its last sentence when it ends. Does not import
torch.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE_SECONDS = 5.0  # for the last sentence of a process that has just closed its connections
LOOK_SECONDS = 0.02
WATCH_SECONDS, GRACE_SECONDS = 1.0, 15.0
FAILED = 2  # exit status of bad input and of failures


class End(NamedTuple):
    """How a process ended."""

    sentence: str
    is_loss: bool
    """Because another one was lost, which explains nothing."""


class RollCall:
    """The processes of a group, as one of them sees them; `store` is torch's."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._processes: dict[int, tuple[str, int]] = {}
        self._left = threading.Event()
        self._set(f"process/{rank}", [socket.gethostname(), os.getpid()])

    def meet(self) -> None:
        """Learn who the others are; all have signed by now."""
        for rank in range(self._size):
            host, pid = self._get(f"process/{rank}")
            self._processes[rank] = str(host), int(pid)

    def sign_off(self, end: End) -> None:
        """Leave a last sentence; also ends well where nobody can read it any more."""
        self._set(f"end/{self._rank}", end)

    def is_reported(self, end: End) -> bool:
        """Whether the first rank, which speaks for all, ends for the same reason: no need to say it again."""
        if self._rank == 0:
            return False
        for _ in self._looks():
            first = self._end_of(0)
            if first is not None:
                return end.is_loss or first.sentence == end.sentence
            if self._is_dead(0):
                return False
        return False

    def wait_for_others(self) -> None:
        """Keep the store, which is in the first process, until the others have read from it."""
        self._set(f"gone/{self._rank}", True)
        if self._rank == 0:
            for _ in self._looks():
                if all(self._get(f"gone/{r}") or self._is_dead(r) for r in range(1, self._size)):
                    return

    def dead(self) -> list[int]:
        """Ranks on this machine whose process does not exist any more."""
        return [rank for rank in range(self._size) if rank != self._rank and self._is_dead(rank)]

    def culprit(self) -> str:
        """Who was lost, and why, in words; nothing if that cannot be known."""
        hearsay = ""
        for _ in self._looks():
            for rank in range(self._size):
                if rank == self._rank:
                    continue
                end = self._end_of(rank)
                if end is not None and not end.is_loss:
                    return f"rank {rank} failed: {end.sentence}"
                if end is not None:
                    hearsay = hearsay or end.sentence
                elif self._is_dead(rank):
                    return f"rank {rank} died"
        return hearsay

    def watch(self, report: Callable[[list[int]], None]) -> None:
        """Look after the others in a thread, and end this process some time after one of them has died.

        For kernels of NCCL, which wait for a dead rank on the GPU: the host waits for them in turn, and no
        exchange of its own fails. Gloo notices a closed connection.
        """

        def look() -> None:
            while not self._left.wait(WATCH_SECONDS):
                if lost := self.dead():
                    if not self._left.wait(GRACE_SECONDS):  # else it has ended by itself
                        report(lost)
                        os._exit(FAILED)
                    return

        threading.Thread(target=look, name="voidrl-ranks", daemon=True).start()

    def close(self) -> None:
        """Stop looking."""
        self._left.set()

    def _looks(self) -> Any:
        """Several looks, until patience ends."""
        last = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < last:
            yield
            time.sleep(LOOK_SECONDS)

    def _end_of(self, rank: int) -> End | None:
        found = self._get(f"end/{rank}")
        return None if found is None else End(*found)

    def _is_dead(self, rank: int) -> bool:
        host, pid = self._processes.get(rank, ("", 0))
        return host == socket.gethostname() and not is_running(pid)

    def _set(self, key: str, value: Any) -> None:
        with suppress(RuntimeError):  # the store has ended with its process
            self._store.set(key, json.dumps(value))

    def _get(self, key: str) -> Any:
        with suppress(RuntimeError):
            if self._store.check([key]):  # `get` would wait for it
                return json.loads(self._store.get(key))
        return None


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
