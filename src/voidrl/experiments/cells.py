"""Several cells in one process: `python -m voidrl.experiments.cells`, started by the executor `local`.

They differ in their seed alone and are trained at once, as `voidrl.concurrent` does it. Everything else is as
if each of them had a process of its own (`voidrl.experiments.cell`): its lock, its folder, its log, its exit
code, which is reported through a pipe when it ends, and its failure, which does not concern the others.
"""

from __future__ import annotations

import json
import os
import sys
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypedDict, cast

from voidrl.errors import RunInterrupted, StoppedBySignal
from voidrl.experiments.cell import DONE, INTERRUPTED, Job, do_cell, watch_parent
from voidrl.experiments.executors.base import log_path
from voidrl.terminal.output import durable_output, say
from voidrl.terminal.signals import StopSignals

_log: ContextVar[TextIO | None] = ContextVar("log", default=None)


class JobGroup(TypedDict):
    """What the parent asks for, as a line of JSON on standard input."""

    jobs: list[Job]
    report: int
    """The inherited file descriptor to which a line of JSON is written for each cell that ends: its folder
    and its exit code. Cells that are not reported end as the process does."""


class OutputOfCell:
    """A stream that writes to the log of the cell in whose thread it is used, and else to another stream."""

    def __init__(self, otherwise: TextIO) -> None:
        self._otherwise = otherwise

    def __getattr__(self, name: str) -> Any:
        return getattr(_log.get() or self._otherwise, name)


def main() -> int:
    """Run the missing parts of several cells; returns the exit code of those that were not reported."""
    sys.stdout = cast(TextIO, OutputOfCell(sys.stdout))
    sys.stderr = cast(TextIO, OutputOfCell(sys.stderr))
    try:
        with durable_output(), StopSignals(raises=True, ends_at_once=False):
            group: JobGroup = json.loads(sys.stdin.buffer.readline())
            watch_parent()
            sys.argv = group["jobs"][0]["command"]
            _work(group)
            return DONE
    except (RunInterrupted, StoppedBySignal) as stop:
        say(f"voidrl: {stop}")
        return INTERRUPTED


def _work(group: JobGroup) -> None:
    from voidrl.concurrent import run_together  # imports torch

    os.set_inheritable(group["report"], False)
    with StopSignals(ends_at_once=False) as stop:
        ends = run_together({job["cell"]: partial(_do, job, group["report"]) for job in group["jobs"]}, stop)
        for end in ends.values():
            if end.error is not None:
                raise end.error


def _do(job: Job, report: int) -> None:
    """Do one cell in its thread."""
    with log_path(Path(job["root"]), job["cell"]).open("a", encoding="utf-8") as log:
        _log.set(log)
        try:
            code = do_cell(job)
        except (RunInterrupted, StoppedBySignal) as stop:
            say(f"voidrl: {stop}")
            code = INTERRUPTED
        finally:
            _log.set(None)
    os.write(report, f"{json.dumps([job['cell'], code])}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
