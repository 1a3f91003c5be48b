"""The contract of an executor: it starts the processes of cells somewhere and says how they end.

What is to run next, what is done and what has failed is decided in `voidrl.experiments.run`, the same for all
executors. A cell is known by its folder, relative to the experiment's. Its process is
`python -m voidrl.experiments.cell` everywhere: it holds the cell's lock, trains and evaluates what is missing
from the last checkpoint on, and ends with one of the exit codes of that module.

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
    """How the process of a cell ended."""

    code: int | None
    """Its exit code, negative for a signal; None where nobody knows."""
    why: str = ""
    """Why it ended, as part of a sentence; empty where its exit code or the process itself says it."""
    lost: bool = False
    """Its node is gone, or its time is up: the cell is submitted again and resumes from its checkpoint. One
    that is lost several times without a new checkpoint fails."""


class ClusterLostError(Exception):
    """Why an executor cannot reach its cluster any more, as part of a sentence; raised by any of its calls.

    The command ends then. Its cells stay as they are, for a command that attaches later.
    """


class Executor(ABC):
    """Runs cells somewhere; a context manager, entered before any other call.

    A local one ends its processes with itself. One that `detaches` leaves them if its command ends, however
    it ends, and `attach` finds them again.
    """

    preempts: ClassVar[bool] = False
    """Whether exit code 75 without a stop from here means that the cluster took the node away, after which
    the cell is submitted again; otherwise somebody has signalled the process, which is a failure."""
    detaches: bool = False
    """Whether cells keep running when the command ends; `voidrl experiment … --stop` stops them then."""
    say: Callable[[str], None] = staticmethod(say)
    """Prints a line above the table of runs; set by whoever uses the executor."""

    def attach(self, cells: Collection[str]) -> set[str]:
        """Those of the cells that an earlier command submitted and that have not been collected since.

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
        """The cells whose processes have ended since the last call; each is returned once.

        Called ten times a second: an executor that has to ask a server for it does so less often.
        """

    def where(self, cell: str) -> str:
        """The node of a cell that runs, such as `node3` or `cuda:1`; empty while it is queued or unknown."""
        return ""

    @abstractmethod
    def stop(self) -> None:
        """Ask all cells to write a checkpoint and end, those that are queued to end; `poll` says when."""

    @abstractmethod
    def kill(self) -> None:
        """End all cells at once."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *exc: object) -> None:
        """Leave nothing behind that nobody would find again."""


def log_path(root: Path, cell: str) -> Path:
    """The file that has, or will have, the output of a cell's process."""
    return root / "logs" / f"{cell}.log"


def cell_command() -> list[str]:
    """The command of a cell's process, which reads its job as a line of JSON from standard input."""
    return [sys.executable, "-P", "-m", CELL_MODULE]


def cell_environment(job: Job) -> dict[str, str]:
    """Environment variables of a cell's process, besides those of whoever starts it."""
    variables = {"PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)}
    if job["fixed_threads"]:  # otherwise `threads` is a limit, within which a run chooses
        variables["OMP_NUM_THREADS"] = str(job["threads"])
    return variables
