"""Processes that run a file of ours beside this one, each at the other end of a pipe. Imports no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any


class Worker:
    """A process that is given the descriptor of its end of the pipe, the parent's process id and settings.

    It finds what this process finds, and no thread pool of NumPy's is waiting in it.

    Args:
        script: The file that it runs.
        settings: What it is told, as JSON.
        files: Descriptors that it inherits, beside its end of the pipe.
        environment: Variables that it has in addition.
    """

    def __init__(
        self,
        script: str,
        settings: Mapping[str, Any],
        files: tuple[int, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.pipe: Connection
        self.pipe, theirs = Pipe()
        arguments = [str(theirs.fileno()), str(os.getpid()), json.dumps(settings)]
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        # A terminal sends Ctrl-C to the workers too, and a scheduler SIGTERM: both come to the parent, which
        # saves the run before it ends them. Blocked here, as otherwise they could come while Python starts.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", script, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *files),
                env={**os.environ, **variables, **(environment or {})},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()

    def death(self) -> str:
        """What became of it."""
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return f"worker process {self.process.pid} closed its pipe"
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        return f"worker process {self.process.pid} ended {how}"


def end(workers: Iterable[Worker], owner: int) -> None:
    """Not asked to end but ended: they hold nothing that could be lost. Only their owner may."""
    if os.getpid() != owner:
        return  # a fork of the owner: they are not its own
    workers = list(workers)
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.wait()
        worker.pipe.close()
