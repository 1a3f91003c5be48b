"""The contract of an executor: it starts the processes of cells somewhere and says how they end.

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
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from voidrl.system.terminal.output import say

if TYPE_CHECKING:
    from voidrl.experiments.cell import Job

CELL_MODULE = "voidrl.experiments.cell"


def option(default: Any, text: str, **argument: Any) -> Any:
    """A field of `Options`, and the command line's option of that name: `max_running` is `--max-running`.

    Args:
        default: Its value where the command line does not give it.
        text: Its help.
        argument: More for `add_argument`, such as type, choices, metavar or action.
    """
    return dataclasses.field(default=default, metadata={"help": text, **argument})


class Ended(NamedTuple):
    """The end of a cell's process."""

    code: int | None
    """Its exit code, negative for a signal; None where unknown."""
    why: str = ""
    """Why it ended, as part of a sentence; empty where its exit code or the process itself says it."""
    lost: bool = False
    """Its node is gone, or its time is up: the cell is submitted again and resumes from its checkpoint. One
    that is lost several times without a new checkpoint fails."""


class ClusterLostError(Exception):
    """Why an executor cannot reach its cluster any more, as part of a sentence; raised by any of its calls.

    The command ends then. Its cells are left for a command that attaches later.
    """


class Executor(ABC):
    """Runs cells somewhere; a context manager, entered before any other call.

    A local one ends its processes with itself. One that `detaches` leaves them if its command ends, however
    it ends, and `attach` finds them again.
    """

    preempts: ClassVar[bool] = False
    """Whether exit code 75 without a stop from here means that the cluster took the node away, after which
    the cell is submitted again; otherwise a signal came from elsewhere, which is a failure."""
    detaches: bool = False
    """Whether cells keep running when the command ends; `voidrl experiment … --stop` stops them then."""
    say: Callable[[str], None] = staticmethod(say)
    """Prints a line above the table of runs; set by the caller."""

    def attach(self, cells: Collection[str]) -> set[str]:
        """The cells that an earlier command submitted and that have not been collected since.

        Called once, first. They count as submitted: `poll` returns them. It may return those that have ended.
        """
        return set()

    @abstractmethod
    def has_room(self, cell: str) -> bool:
        """Whether the cell may be submitted now; an executor that queues by itself says yes."""

    def has_queue(self) -> bool:
        """Whether a submitted cell waits for a place, so that another one would not start soon."""
        return False

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Start the process of a cell, or queue it; several may be queued until the next `poll` sends them.

        During this call `job["lock"]` is an open descriptor that holds the cell's lock. A process on this
        machine inherits it. For one elsewhere it is replaced by None: the process then takes the lock itself,
        or ends with `cell.HELD` if another process does not give it back. An executor whose nodes do not
        share the folder keeps an `os.dup` of it until the cell has ended.
        """

    @abstractmethod
    def poll(self) -> dict[str, Ended]:
        """The cells whose processes have ended since the last call; each appears once.

        Called ten times a second: an executor that has to ask a server for it does so less often.
        """

    def where(self, cell: str) -> str:
        """The node of a running cell, such as `node3` or `cuda:1`; empty while it is queued or unknown."""
        return ""

    @abstractmethod
    def stop(self) -> None:
        """Ask running cells to write a checkpoint and end, and queued ones to end; `poll` says when."""

    @abstractmethod
    def kill(self) -> None:
        """End all cells at once."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *exc: object) -> None:
        """Leave nothing behind that a later command could not find."""


def log_path(root: Path, cell: str) -> Path:
    """The file that has, or will have, the output of a cell's process."""
    return root / "logs" / f"{cell}.log"


def cell_command() -> list[str]:
    """The command of a cell's process, which reads its job as a line of JSON from standard input."""
    return [sys.executable, "-P", "-m", CELL_MODULE]


def cell_environment(job: Job) -> dict[str, str]:
    """Environment variables of a cell's process, besides the parent's."""
    variables = {"PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)}
    if job["fixed_threads"]:  # otherwise `threads` is a limit, within which a run chooses
        variables["OMP_NUM_THREADS"] = str(job["threads"])
    return variables
