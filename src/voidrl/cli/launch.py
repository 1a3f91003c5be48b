"""`--ranks N`: one command as N processes that train one agent. Imports no torch.

torchrun may start a run as well. It is not called here since its report of a failed process hides our
sentence, and since it kills the others after a fixed time, when they may be writing a checkpoint.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from voidrl.errors import ConfigError
from voidrl.system.machine import CORES, whole_cores
from voidrl.system.terminal.output import say
from voidrl.system.terminal.signals import StopSignals, end_with_process

RANKS_HELP = "train with N processes, each on its own GPU if there are enough, with its part of each batch"
THREADS = "OMP_NUM_THREADS"
LOOK_SECONDS = 0.05
GRACE_SECONDS = 30.0  # after one has failed, for the others to notice it and to say so
KILL_SECONDS = 10.0  # after they were asked to end


def ranks_to_start(ranks: int | None) -> int:
    """The number of processes to start for `--ranks`, 0 if this process is to run the command itself."""
    if ranks is None:
        return 0
    if ranks < 1:
        raise ConfigError(f"--ranks {ranks} cannot be used: expected a whole number from 1 on")
    if (size := os.environ.get("WORLD_SIZE")) is None:
        return ranks if ranks > 1 else 0
    if int(size) != ranks:
        raise ConfigError(
            f"--ranks {ranks} cannot be used under torchrun, which has started {size} processes already: "
            f"leave it out"
        )
    return 0


def launch(number: int, command: str, argv: Sequence[str]) -> int:
    """Run a command as `number` processes; returns their exit status.

    Signals are passed on, and a second one ends all at once. If a process fails, the others have some time to
    end by themselves. The first has this terminal; the others only show errors.
    """
    children: list[subprocess.Popen[bytes]] = []
    with StopSignals() as stop:
        try:
            port = _port()
            for rank in range(number):
                children.append(_start(rank, number, port, command, argv))
                end_with_process(children[-1])
            _wait(children, stop)
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                child.wait()
        status = _status(children)
        if stop.requested:  # the first process has reported the outcome
            raise SystemExit(status)
    return status


def _start(rank: int, number: int, port: int, command: str, argv: Sequence[str]) -> subprocess.Popen[bytes]:
    own = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": number,
        "LOCAL_WORLD_SIZE": number,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    share = whole_cores(number)
    threads = {CORES: share} if os.environ.get(THREADS) else {CORES: share, THREADS: share}
    environment = os.environ | {name: str(value) for name, value in {**own, **threads}.items()}
    return subprocess.Popen(
        [sys.executable, "-m", "voidrl", command, *argv],
        env=environment,
        stdin=None if rank == 0 else subprocess.DEVNULL,
        stdout=None if rank == 0 else subprocess.DEVNULL,
    )


def _port() -> int:
    """A free port; if it is taken before the first rank listens there, that rank says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(children: Sequence[subprocess.Popen[bytes]], stop: StopSignals) -> None:
    """Wait until all have ended; end those that outlive a failed one for too long."""
    is_passed_on, deadline, asked = False, float("inf"), False
    while any(child.poll() is None for child in children):
        if stop.requested and not is_passed_on:
            is_passed_on = True
            _send(children, signal.Signals[stop.requested])
        if deadline == float("inf") and any(child.poll() for child in children):
            deadline = time.monotonic() + GRACE_SECONDS
        if time.monotonic() > deadline:
            _send(children, signal.SIGKILL if asked else signal.SIGTERM)
            asked, deadline = True, time.monotonic() + KILL_SECONDS
        time.sleep(LOOK_SECONDS)


def _send(children: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(number)


def _status(children: Sequence[subprocess.Popen[bytes]]) -> int:
    """The exit status of the first process, unless it was killed; names processes that a signal has ended."""
    codes = [child.returncode for child in children]
    for rank, code in enumerate(codes):
        if code < 0:
            name = signal.Signals(-code).name
            say(f"voidrl: rank {rank} of {len(codes)} was ended by {name}; older checkpoints are untouched")
    worst = next((code for code in codes if code), 0)
    return codes[0] if codes[0] > 0 else 128 - worst if worst < 0 else worst
