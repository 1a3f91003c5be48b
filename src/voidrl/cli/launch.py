"""`--ranks N` and `--gpus N`: one command as N processes that train one agent.

torchrun may start a run as well. It is not called here since its report of a failed process hides our
sentence, and since it kills the others after a fixed time, when they may be writing a checkpoint.
Imports no torch unless GPUs are to be counted.
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
from voidrl.system.machine import whole_cores
from voidrl.system.terminal.output import say
from voidrl.system.terminal.signals import StopSignals, end_with_process

OPTIONS = {
    "--ranks N": "train with N processes, each with a part of the environments, of the replay and of batches",
    "--gpus N": "as --ranks N, each process on a GPU of its own",
}
NAMES = ("--ranks", "--gpus")
THREADS = "OMP_NUM_THREADS"
LOOK_SECONDS = 0.05
GRACE_SECONDS = 30.0  # after one has failed, for the others to notice it and to say so
KILL_SECONDS = 10.0  # after they were asked to end


def split_off(argv: Sequence[str]) -> tuple[int, list[str]]:
    """The number of processes in a command line, 0 without one, and the rest of it."""
    found: dict[str, str] = {}
    rest: list[str] = []
    words = [*argv]
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name not in NAMES:
            rest.append(word)
            continue
        if not equals:
            if not words or words[0].startswith("--"):
                raise ConfigError(f"option {name} has no value: expected `{name} N`")
            value = words.pop(0)
        found[name] = value
    if not found:
        return 0, rest
    if len(found) == 2:
        raise ConfigError("--ranks and --gpus cannot be used together: --gpus N starts N ranks itself")
    (name, text), *_ = found.items()
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{name} {text} cannot be used: expected a whole number from 1 on")
    number = int(text)
    if "WORLD_SIZE" in os.environ and "RANK" in os.environ:
        raise ConfigError(
            f"{name} {number} cannot be used under torchrun, which has started "
            f"{os.environ['WORLD_SIZE']} processes already: leave one of the two out"
        )
    if name == "--gpus":
        _require_gpus(number, rest)
    return number, rest


def _require_gpus(number: int, argv: Sequence[str]) -> None:
    words = " ".join(argv).replace("=", " ").split()
    device = words[words.index("--device") + 1] if "--device" in words[:-1] else "auto"
    if device not in ("auto", "cuda"):
        raise ConfigError(
            f"--gpus {number} cannot be used with --device {device}: each process takes a GPU of its own; "
            f"leave --device out, or use --ranks {number}"
        )
    import torch

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if there < number:
        sees = f"sees {there} CUDA device{'s' * (there != 1)}" if there else "sees no CUDA device"
        raise ConfigError(
            f"--gpus {number} cannot be used: torch {sees} here; use --gpus {there}"
            if there
            else f"--gpus {number} cannot be used: torch {sees} here; use --ranks {number} --device cpu"
        )


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
    threads = {} if os.environ.get(THREADS) else {THREADS: max(1, whole_cores() // number)}
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
