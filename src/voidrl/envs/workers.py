"""Worker processes that run one of our files, connected by a pipe. Imports no torch."""

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

from voidrl.signals import end_with_process


class Worker:
    """A process started with the descriptor of its end of the pipe, the parent's process id and settings.

    It has this process's import path and starts no NumPy thread pool.

    Args:
        script: The file to run.
        settings: Settings, passed as JSON.
        files: Further file descriptors to inherit.
        environment: Additional environment variables.
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
        # A terminal sends Ctrl-C to the workers too, and a scheduler SIGTERM. The parent handles both: it
        # saves the run, then ends the workers. Blocked before the start, so that none arrives while Python
        # starts.
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
        end_with_process(self.process)

    def death(self) -> str:
        """Describe how the process ended."""
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return f"worker process {self.process.pid} closed its pipe"
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        return f"worker process {self.process.pid} ended {how}"


def kill_workers(workers: Iterable[Worker], owner: int) -> None:
    """Kill the workers, which hold nothing that could be lost, unless called in a fork of their owner."""
    if os.getpid() != owner:
        return
    workers = list(workers)
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.wait()
        worker.pipe.close()
