"""The task of a SLURM job: start the process of a cell, and requeue the job if that stops early.

submitit calls the task in a separate process, which sees the signals of SLURM:

| signal | when | what follows |
|---|---|---|
| USR2 | some time before the limit | the cell writes a checkpoint, and the job is requeued |
| TERM | `scancel`, or a preemption | the cell writes a checkpoint; SLURM decides about a requeue |

A cell that ends with exit status 75 by itself was asked to stop from elsewhere, and is requeued too.
Does not import torch.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voidrl.experiments.cell import Job

INTERRUPTED = os.EX_TEMPFAIL  # 75, as in `voidrl.experiments.cell`
MAX_IDLE_REQUEUES = 2  # in a row, without a new checkpoint; then the driver judges


class CellTask:
    """The work of a job, which submitit pickles; it is pickled again when the job is requeued.

    Args:
        job: The job for the cell's process.
        command: The command of that process.
        variables: Environment variables of that process, besides the job's.
        folder: Its working directory.
        log: The file that gets its output.
    """

    def __init__(
        self, job: Job, command: Sequence[str], variables: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        self.job, self.command, self.variables = job, [*command], {**variables}
        self.folder, self.log = str(folder), str(log)
        self.last_checkpoint = -1
        """Step of the newest checkpoint when the job was requeued."""
        self.idle_requeues = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._terminated = False

    def __call__(self) -> int:
        """Run the cell to its end; returns the exit status of its process."""
        from submitit import JobEnvironment

        before_limit = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
        signal.signal(signal.SIGTERM, self._on_terminate)  # submitit's handler ignores it
        # Any error of requeueing is raised by submitit's handler, within this block.
        try:
            self._start(before_limit)
            code = self._wait()
            if code == INTERRUPTED and not self._terminated:
                # Its handler saves `checkpoint`, has the job requeued and ends this process.
                signal.raise_signal(before_limit)
        except Exception as error:
            if self._process is None:
                raise
            code = self._wait()
            self._note(f"not requeued: {error}")
        if self._terminated and code:
            raise SystemExit(code)  # without a result: the state of the job counts, which may be requeued
        return code

    def checkpoint(self) -> Any:
        """Stop the cell with a checkpoint; returns the work of the requeued job, or None without one."""
        from submitit.helpers import DelayedSubmission

        if self._process is None:
            return DelayedSubmission(self._next(self.last_checkpoint, self.idle_requeues))
        self._close()
        if self._wait() != INTERRUPTED:
            return None  # done or failed, and the driver will see which
        step = self._newest_checkpoint()
        idle = self.idle_requeues + 1 if step <= self.last_checkpoint else 0
        if idle > MAX_IDLE_REQUEUES:
            return None
        self._note(f"requeued at step {step}")
        return DelayedSubmission(self._next(step, idle))

    def _next(self, last_checkpoint: int, idle_requeues: int) -> CellTask:
        task = CellTask(self.job, self.command, self.variables, Path(self.folder), Path(self.log))
        task.last_checkpoint, task.idle_requeues = last_checkpoint, idle_requeues
        return task

    def _start(self, ignored: int) -> None:
        Path(self.log).parent.mkdir(parents=True, exist_ok=True)
        self._note(shlex.join(self.job["command"]))
        with Path(self.log).open("ab") as log:
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self.variables},
                # SLURM may signal all processes of a job, and this one would die of it.
                preexec_fn=lambda: signal.signal(ignored, signal.SIG_IGN),
            )
        self._process = process
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, and its exit status says how
            process.stdin.write(json.dumps(self.job).encode() + b"\n")
            process.stdin.flush()
        if self._terminated:
            self._close()

    def _wait(self) -> int:
        """Exit status of the cell's process, negative for a signal.

        Does not use `Popen.wait`: a signal handler that calls it within another such call blocks forever.
        """
        assert self._process is not None
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True
        self._close()

    def _close(self) -> None:
        """Close the pipe, which asks the process to stop."""
        if self._process is not None:
            with suppress(OSError):
                assert self._process.stdin is not None
                self._process.stdin.close()

    def _newest_checkpoint(self) -> int:
        status = Path(self.folder, self.job["root"], self.job["cell"], "status.json")
        with suppress(OSError, ValueError, AttributeError):
            return int(json.loads(status.read_text("utf-8")).get("checkpoint") or 0)
        return 0

    def _note(self, text: str) -> None:
        time, job = datetime.now(UTC).isoformat(timespec="seconds"), os.environ.get("SLURM_JOB_ID", "")
        node = f"{socket.gethostname()}, job {job}" if job else socket.gethostname()
        with suppress(OSError), Path(self.log).open("a", encoding="utf-8") as log:
            log.write(f"{time} {node}: {text}\n")
