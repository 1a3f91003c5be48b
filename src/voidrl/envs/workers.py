"""Worker processes, connected by a pipe, that do not outlive their parent. Does not import torch."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, BinaryIO, cast

from voidrl.errors import EnvironmentFailedError
from voidrl.system.machine import whole_cores
from voidrl.system.terminal.signals import STOP_SIGNALS, end_with_process

PART_S = 1.0  # waiting is counted in parts of this length
PARENT_S = 1.0  # how often a worker checks that its parent lives, where the kernel does not tell it
DEATH_S = 5.0  # how long a process may take to end after it closed its pipe
PR_SET_PDEATHSIG = 1  # of Linux's prctl
FRESH = "import sys; from voidrl.envs.workers import run_fresh; run_fresh(*map(int, sys.argv[1:]))"
Serve = Callable[..., None]
"""Called in the worker with its end of the pipe and further arguments; returns when the pipe is closed."""


def count_workers(num_envs: int, share: int = 1) -> int:
    """Processes, or threads of ALE, that step N environments; all such numbers come from here.

    Args:
        num_envs: N.
        share: 2 for half of the cores, where something else needs as much time.
    """
    return min(num_envs, max(1, whole_cores() // share))


class WorkerLostError(Exception):
    """A worker ended or does not answer; the message says which process and how."""


class Worker:
    """A process that serves requests at the other end of a pipe.

    Without `variables` it is a fork, which can run any function. With `variables` it is a new interpreter
    with these environment variables and this process's import path; `serve` and its arguments are pickled.

    Args:
        serve: Called in the worker.
        arguments: Further arguments of `serve`.
        variables: Environment variables of a new interpreter.
        files: File descriptors that a new interpreter inherits.
    """

    process: subprocess.Popen[bytes] | BaseProcess

    def __init__(
        self,
        serve: Serve,
        *arguments: Any,
        variables: Mapping[str, str] | None = None,
        files: tuple[int, ...] = (),
    ) -> None:
        self.pipe, theirs = Pipe()
        ids = os.getpid(), threading.get_native_id()
        try:
            # Blocked while a worker starts, until it leaves them to the run's process.
            with _signals_blocked():
                if variables is None:
                    context = multiprocessing.get_context("fork")
                    fork = (*ids, self.pipe, theirs, serve, arguments)
                    forked = context.Process(target=_run_fork, args=fork, daemon=True)
                    forked.start()
                    self.process = forked
                else:
                    path = os.pathsep.join(filter(None, sys.path))
                    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
                    self.process = subprocess.Popen(
                        [sys.executable, "-P", "-c", FRESH, str(theirs.fileno()), *map(str, ids)],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=(theirs.fileno(), *files),
                        env={**os.environ, **own, **variables},
                    )
                    end_with_process(self.process)
        finally:
            theirs.close()
        self._readable = select.poll()
        self._readable.register(self.pipe.fileno(), select.POLLIN)
        if variables is not None:
            with contextlib.suppress(OSError):  # it has ended, which the first answer shows
                self.pipe.send_bytes(pickle.dumps((serve, arguments)))

    def send(self, message: bytes) -> None:
        """Send a message, of at most some kilobytes, for which an idle worker's pipe has room."""
        try:
            self.pipe.send_bytes(message)
        except OSError:
            raise WorkerLostError(self.death()) from None

    def receive(self, timeout_s: float) -> bytes:
        """Wait for the next message, no longer than `timeout_s`."""
        waited = 0.0
        # Counted in small parts and not by the clock, which keeps running while the process is suspended.
        while not self._readable.poll(1000 * min(PART_S, timeout_s - waited)):
            if self.exit_code() is not None:  # a process that it started itself may hold its pipe open
                raise WorkerLostError(self.death())
            waited += PART_S
            if waited >= timeout_s:
                raise WorkerLostError(
                    f"worker process {self.process.pid} has given no answer for {timeout_s:g} s "
                    f"(raise env.timeout_s if it needs longer)"
                )
        try:
            return self.pipe.recv_bytes()
        except (EOFError, OSError):
            raise WorkerLostError(self.death()) from None

    def death(self) -> str:
        """Describe how the process ended."""
        code = self.exit_code(DEATH_S)
        if code is None:
            return f"worker process {self.process.pid} closed its pipe"
        names = {each.value: each.name for each in signal.Signals}
        how = f"by signal {names.get(-code, -code)}" if code < 0 else f"with exit status {code}"
        return f"worker process {self.process.pid} ended {how}"

    def exit_code(self, timeout_s: float = 0.0) -> int | None:
        """The exit code, negative for a signal; None if the process still runs."""
        if isinstance(self.process, BaseProcess):
            self.process.join(timeout_s)
            return self.process.exitcode
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        return self.process.returncode


def _run_fork(
    parent: int, thread: int, parents: Connection, pipe: Connection, serve: Serve, arguments: tuple[Any, ...]
) -> None:
    parents.close()
    end_with_parent(parent, thread)
    _leave_signals_to_parent()
    serve(pipe, *arguments)


def run_fresh(descriptor: int, parent: int, thread: int) -> None:
    """Serve in a new interpreter, with the function and arguments that arrive first."""
    end_with_parent(parent, thread)
    _leave_signals_to_parent()
    pipe: Connection = Connection(descriptor)
    serve, arguments = pickle.loads(pipe.recv_bytes())
    serve(pipe, *arguments)
    os._exit(0)  # simulators may crash when Python takes them apart


@contextmanager
def _signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_signals_to_parent() -> None:
    """Survive the signals that a terminal or scheduler sends to all processes of a run.

    The run's own process handles them: it writes a checkpoint, then ends its workers. A simulator that the
    environment starts as a process inherits the ignored signals: a Ctrl-C in the terminal must not end it,
    but the environment must be able to, by SIGTERM.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.siginterrupt(signal.SIGTERM, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


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


def _kill(workers: list[Worker]) -> None:
    for worker in workers:
        worker.process.kill()
    await_end(workers)  # no zombie remains
    for worker in workers:
        worker.pipe.close()


def await_end(workers: Iterable[Worker]) -> None:
    """Wait until the processes have ended, no longer than `DEATH_S` for all of them together."""
    deadline = time.monotonic() + DEATH_S
    for worker in workers:
        worker.exit_code(max(0.0, deadline - time.monotonic()))


def shared_file() -> BinaryIO:
    """An empty unnamed file, on Linux in memory, that disappears with the last process that uses it.

    Unlike `/dev/shm`, which containers limit to 64 MB or do not have, it has no limit of its own.
    """
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("voidrl"), "r+b", buffering=0)
    return cast(BinaryIO, tempfile.TemporaryFile(buffering=0))


def allocate(file: BinaryIO, size: int, name: str) -> mmap.mmap:
    """Map `size` bytes of the file, for environment `name`."""
    try:
        # A file without the memory behind it would end the process by SIGBUS in the middle of a write.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:  # macOS
            file.write(bytes(size))
        return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise EnvironmentFailedError(
            f"environment {name!r} cannot be run in worker processes: {size / 1e6:.1f} MB of shared memory "
            f"cannot be allocated ({error.strerror}); free some memory, or use fewer environments"
        ) from error
