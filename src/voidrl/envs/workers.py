"""Worker processes, connected by a pipe, that do not outlive their parent. Imports no torch."""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

from voidrl.system.terminal.signals import STOP_SIGNALS, end_with_process

# A terminal and a scheduler send these to all processes of a run. The run's own process handles them: it
# writes a checkpoint, then ends its workers.
SIGNALS_OF_THE_RUN = STOP_SIGNALS
PART_S = 1.0  # waiting is counted in parts of this length
PARENT_S = 1.0  # how often a worker checks that its parent lives, where the kernel does not tell it
DEATH_S = 5.0  # how long a process may take to end after it closed its pipe
PR_SET_PDEATHSIG = 1  # of Linux's prctl


class WorkerLostError(Exception):
    """A worker ended or does not answer; the message says which process and how."""


class Worker:
    """A process at the other end of a pipe.

    Args:
        process: The process.
        pipe: This process's end of the pipe.
    """

    def __init__(self, process: subprocess.Popen[bytes] | BaseProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(pipe.fileno(), select.POLLIN)
        self._writable.register(pipe.fileno(), select.POLLOUT)

    def send(self, message: bytes, timeout_s: float) -> None:
        """Send a message, of at most some kilobytes; wait for room in the pipe no longer than `timeout_s`."""
        self._wait(self._writable, timeout_s)
        try:
            self.pipe.send_bytes(message)
        except OSError:
            raise WorkerLostError(self.death()) from None

    def receive(self, timeout_s: float) -> bytes:
        """Wait for the next message, no longer than `timeout_s`."""
        self._wait(self._readable, timeout_s)
        try:
            return self.pipe.recv_bytes()
        except (EOFError, OSError):
            raise WorkerLostError(self.death()) from None

    def _wait(self, event: select.poll, timeout_s: float) -> None:
        waited = 0.0
        # Counted in small parts and not by the clock, which keeps running while the process is suspended.
        while not event.poll(1000 * min(PART_S, timeout_s - waited)):
            if self._exit_code() is not None:  # a process that it started itself may hold its pipe open
                raise WorkerLostError(self.death())
            waited += PART_S
            if waited >= timeout_s:
                raise WorkerLostError(
                    f"worker process {self.process.pid} has given no answer for {timeout_s:g} s "
                    f"(raise env.timeout_s if it needs longer)"
                )

    def death(self) -> str:
        """Describe how the process ended."""
        code = self._exit_code(DEATH_S)
        if code is None:
            return f"worker process {self.process.pid} closed its pipe"
        how = f"by signal {_signal_name(-code)}" if code < 0 else f"with exit status {code}"
        return f"worker process {self.process.pid} ended {how}"

    def _exit_code(self, timeout_s: float = 0.0) -> int | None:
        """The exit code, negative for a signal; None if the process still runs."""
        if isinstance(self.process, BaseProcess):
            self.process.join(timeout_s)
            return self.process.exitcode
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        return self.process.returncode


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return str(number)


class ScriptWorker(Worker):
    """A worker that runs one of our files.

    Its arguments are the descriptor of its end of the pipe, the ids of this process and thread, and settings.
    It has this process's import path and starts no NumPy thread pool.

    Args:
        script: The file to run.
        settings: Settings, passed as JSON.
        files: Further file descriptors to inherit.
        environment: Additional environment variables.
    """

    process: subprocess.Popen[bytes]

    def __init__(
        self,
        script: str,
        settings: Mapping[str, Any],
        files: tuple[int, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        pipe, theirs = Pipe()
        ids = (theirs.fileno(), os.getpid(), threading.get_native_id())
        arguments = [*map(str, ids), json.dumps(settings)]
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        variables["PYTHONWARNINGS"] = os.environ.get("PYTHONWARNINGS", "ignore")  # of simulators, unseen
        try:
            with _signals_blocked():  # for its whole life
                process = subprocess.Popen(
                    [sys.executable, "-P", script, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), *files),
                    env={**os.environ, **variables, **(environment or {})},
                )
        finally:
            theirs.close()
        super().__init__(process, pipe)
        end_with_process(process)


class ForkedWorker(Worker):
    """A worker that is a fork of this process, so that it can run any function.

    Args:
        serve: Called in the fork with its end of the pipe and `arguments`.
        arguments: Further arguments, which need not be picklable.
    """

    process: BaseProcess

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        pipe, theirs = Pipe()
        ids = (os.getpid(), threading.get_native_id())
        process = multiprocessing.get_context("fork").Process(
            target=_run_fork, args=(*ids, pipe, serve, theirs, *arguments), daemon=True
        )
        try:
            with _signals_blocked():
                process.start()
        finally:
            theirs.close()
        super().__init__(process, pipe)


def _run_fork(
    parent: int, thread: int, parents_pipe: Connection, serve: Callable[..., None], *arguments: Any
) -> None:
    parents_pipe.close()
    end_with_parent(parent, thread)
    _leave_signals_to_parent()
    serve(*arguments)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block the run's signals in a process that is started here, so that none arrives while it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS_OF_THE_RUN)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_signals_to_parent() -> None:
    """Survive the run's signals in a fork.

    A simulator that the environment starts as a process inherits the ignored and blocked signals: a Ctrl-C in
    the terminal must not end it, but the environment must be able to, by SIGTERM.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _do_nothing)
    signal.siginterrupt(signal.SIGTERM, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_OF_THE_RUN)


def _do_nothing(number: int, frame: object) -> None:
    pass


def end_with_parent(parent: int, thread: int) -> None:
    """Have this process killed when its parent ends, however that happens.

    On Linux the kernel does it, even while C code holds the GIL here. It does so as soon as the *thread* ends
    that started this process, so it is asked only where that is the main thread. Elsewhere a thread watches.

    Args:
        parent: The id of the parent process.
        thread: The native id of the thread that started this process; the main one has the process's id.
    """
    libc = ctypes.CDLL(None)
    by_kernel = thread == parent and hasattr(libc, "prctl")
    if not by_kernel or libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_S)
    os._exit(1)


def kill_with(owner: object, workers: list[Any]) -> Finalize:
    """Kill the workers when `owner` is no longer used, when Python exits, or when the result is called."""
    # Before multiprocessing ends its own processes at exit, which it does by SIGTERM.
    return Finalize(owner, _kill, (workers,), exitpriority=100)


def _kill(workers: Iterable[Worker]) -> None:
    """Kill the workers, which hold no unsaved data."""
    workers = list(workers)
    for worker in workers:
        worker.process.kill()
    await_end(workers)  # no zombie remains
    for worker in workers:
        worker.pipe.close()


def await_end(workers: Iterable[Worker]) -> None:
    """Wait until the processes have ended, no longer than `DEATH_S` for all of them together."""
    deadline = time.monotonic() + DEATH_S
    for worker in workers:
        worker._exit_code(max(0.0, deadline - time.monotonic()))
