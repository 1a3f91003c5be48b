"""The contract of an executor: it starts the processes of cells somewhere and says how they ended.

`voidrl.experiments.run` decides for all executors which cell runs next, which are done and which have
failed. A cell is known by its folder, relative to the experiment's. Its process is always
`python -m voidrl.experiments.cell`, which holds the cell's lock, trains and evaluates the missing parts from
the last checkpoint on, and ends with one of the exit codes of that module.

The module of an executor has `Options`, a frozen dataclass made of `option`, and `make(plan, options)`, which
returns the executor or refuses with a sentence, before anything is written or submitted. It imports neither
torch nor an optional package at its top: the command line reads the options of all executors.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypedDict

from voidrl.errors import RunFolderError
from voidrl.system.files import open_regular
from voidrl.system.terminal.output import say

INTERRUPTED = os.EX_TEMPFAIL
"""Exit code of a cell that was asked to stop."""
POLL_SECONDS = 0.1
CELL_COMMAND = [sys.executable, "-P", "-m", "voidrl.experiments.cell"]
"""The command of a cell's process, which reads its job as a line of JSON from standard input."""


class Job(TypedDict):
    """The request for the process of a cell."""

    command: list[str]
    """The experiment's command line, for the run's environment.json."""
    root: str
    """The experiment's folder, as an absolute path."""
    cell: str
    """The run folder, relative to the root."""
    config: dict[str, Any]
    source: str | None
    """The run folder of the pre-training that it starts from, relative to the root."""
    evaluation: dict[str, Any] | None
    zero_shot: dict[str, Any] | None
    """Settings with which the source is evaluated, too."""
    threads: int | None
    """CPU threads, where the experiment says how many."""
    paths: str
    """`PYTHONPATH` with which it finds the modules that this process finds."""


def option(default: Any, text: str, **argument: Any) -> Any:
    """A field of `Options`, and the command line's option of that name: `max_running` is `--max-running`.

    Args:
        default: Its value where the command line does not give it.
        text: Its help.
        argument: More for `add_argument`, such as type, choices, metavar or action.
    """
    return dataclasses.field(default=default, metadata={"help": text, **argument})


@dataclass(frozen=True)
class ClusterOptions:
    """Options of executors that reserve resources in a cluster."""

    cpus_per_cell: float = option(1.0, "CPUs to reserve for a run (default: 1)", type=float, metavar="N")
    gpus_per_cell: float | None = option(
        None,
        "GPUs to reserve for a run; on Ray also a part of one, such as 0.25 (default: 1, or 0 with --device "
        "cpu or on a Ray cluster without GPUs)",
        type=float,
        metavar="X",
    )


class Ended(NamedTuple):
    """The end of a cell's process."""

    code: int | None
    """Its exit code, negative for a signal; None where unknown."""
    why: str = ""
    """The reason, as part of a sentence; empty where the exit code or the process itself gives it."""
    lost: bool = False
    """Whether the cluster ended it: the cell is submitted again and resumes from its checkpoint."""


class Executor(ABC):
    """Runs cells somewhere; a context manager, entered before any other call.

    Most end their processes with themselves. One that `detaches` leaves them in a queue, however the command
    ends, and `attach` finds them again.
    """

    detaches: ClassVar[bool] = False
    say: Callable[[str], None] = staticmethod(say)
    """Prints a line above the table of runs; set by the caller."""

    def attach(self, cells: Collection[str]) -> set[str]:
        """The cells that an earlier command submitted and that are still queued or running."""
        return set()

    def has_room(self) -> bool:
        """Whether another cell may be submitted now; an executor that queues by itself says yes."""
        return True

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Start the process of a cell, or queue it; the next `poll` may send several at once."""

    @abstractmethod
    def poll(self) -> dict[str, Ended]:
        """The cells whose processes have ended since the last call; each appears once.

        Called ten times a second: an executor that has to ask a server asks it less often.
        """

    def stop(self) -> None:  # noqa: B027
        """Ask running cells to write a checkpoint and end, and queued ones to end; `poll` says when."""

    def kill(self) -> None:  # noqa: B027
        """End all cells at once."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *exc: object) -> None:
        """Leave nothing behind that a later command could not find."""


def log_path(root: Path, cell: str) -> Path:
    """The file that has, or will have, the output of a cell's process."""
    return root / "logs" / f"{cell}.log"


def import_paths() -> str:
    """`PYTHONPATH` with which another process finds the modules that this process finds."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)


def start_cell(job: Job, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the process of a cell; closing its standard input asks it to stop with a checkpoint."""
    if not Path(job["root"], "experiment.json").is_file():
        raise RunFolderError(
            f"{job['root']} is not seen by {socket.gethostname()}: choose an --out on storage that all nodes "
            f"share"
        )
    log_file = log_path(Path(job["root"]), job["cell"])
    threads = {} if job["threads"] is None else {"OMP_NUM_THREADS": str(job["threads"])}
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_regular(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as log:
        date = datetime.now(UTC).isoformat(timespec="seconds")
        log.write(f"{date} {shlex.join(job['command'])} on {socket.gethostname()}\n".encode())
        log.flush()
        # In its own session: a terminal's Ctrl-C goes only to the parent, which passes it on.
        process = subprocess.Popen(
            CELL_COMMAND,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": job["paths"], **threads, **variables},
            start_new_session=True,
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already, and its exit status says how
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
    return process


def stop_cell(process: subprocess.Popen[bytes]) -> None:
    """Ask the process of a cell to write a checkpoint and end."""
    with suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()


def wait_for_cell(process: subprocess.Popen[bytes]) -> int:
    """Exit code of a cell's process, negative for a signal.

    Any signal handler may call this again while it waits, which `Popen.wait` does not allow; and the
    interrupt of a Ray task, which is no signal, comes through.
    """
    how = os.WEXITED | os.WNOWAIT | os.WNOHANG
    while (ended := os.waitid(os.P_PID, process.pid, how)) is None:
        time.sleep(POLL_SECONDS)
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
