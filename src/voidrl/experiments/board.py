"""Progress of an experiment: a live table on a terminal, elsewhere lines of text."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TextIO

from rich.live import Live
from rich.table import Table
from rich.text import Text

from voidrl.errors import RunFolderError
from voidrl.experiments.plan import Cell
from voidrl.runs.status import RunStatus, read_status
from voidrl.system.terminal.tables import is_terminal, make_console, width_of, wrap_text
from voidrl.system.units import human_count, human_seconds

DRAW_EVERY_SECONDS = 0.5
LINES_EVERY_SECONDS = 60.0  # in a log file: one line per active run
EARLY_SECONDS = 10.0  # in the first minute, when people check that it works
MAX_ROWS = 12


def read_progress(cell: Cell, folder: Path) -> tuple[str, str, str]:
    """Read steps, time left and steps per second from the status of a run, as text."""
    status = RunStatus("starting")
    with suppress(RunFolderError):  # damaged: the next heartbeat replaces it
        status = read_status(folder) or status
    left, rate = "starting", ""  # the status may be an earlier process's
    if status.steps >= cell.config.steps:
        left = "evaluating" if status.state == "done" and cell.evaluation is not None else "saving"
    elif status.state == "running" and status.rate is None:  # before the first update
        left = "running"
    elif status.state == "running" and status.rate is not None:
        seconds = math.inf if status.seconds_left is None else status.seconds_left
        left, rate = f"eta {human_seconds(seconds)}", human_count(status.rate)
    return f"{human_count(status.steps)}/{human_count(cell.config.steps)}", left, rate


class Board:
    """Counts done and failed cells, and shows active ones while used as a context manager."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._total = self._done = self._failed = 0
        self._started = self._drawn = time.monotonic()
        self._live: Live | None = None

    def start(self, total: int, done: int) -> None:
        """Set how many cells there are, and how many of them are done already."""
        self._total, self._done = total, done
        self.say(f"{total} runs{f', {done} of them done' if done else ''}")

    def add(self, number: int) -> None:
        """Set that there are so many more cells."""
        self._total += number

    def __enter__(self) -> Self:
        if is_terminal(self._stream):
            self._live = Live(console=make_console(self._stream), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Print a permanent line."""
        if self._live is not None:
            self._live.console.print(Text(wrap_text(text, file=self._stream)))
        else:
            print(wrap_text(text, file=self._stream), file=self._stream, flush=True)

    def done(self, text: str) -> None:
        """Count one more done."""
        self._done += 1
        self.say(f"{text} ({self._done} of {self._total})")

    def fail(self, text: str) -> None:
        """Count one more failed."""
        self._failed += 1
        self.say(text)

    def draw(self, running: Sequence[tuple[Cell, Path]], elsewhere: int) -> None:
        """Show the active cells and their folders, if it is time to."""
        now = time.monotonic()
        period = EARLY_SECONDS if now - self._started < LINES_EVERY_SECONDS else LINES_EVERY_SECONDS
        if now - self._drawn < (period if self._live is None else DRAW_EVERY_SECONDS):
            return
        self._drawn = now
        # On a cluster, most are queued: the ones that train come first.
        shown = sorted(running, key=lambda each: not (each[1] / "config.json").is_file())[:MAX_ROWS]
        rows = [(cell.folder, *read_progress(cell, folder)) for cell, folder in shown]
        more = [f"… and {len(running) - MAX_ROWS} more"] if len(running) > MAX_ROWS else []
        if self._live is None:
            for name, steps, left, rate in rows:
                self.say(f"{name}: {steps}, {f'{rate} steps/s, ' if rate else ''}{left}")
            for text in more:
                self.say(text)
            return
        counts = {"done": f"{self._done}/{self._total}", "failed": self._failed, "elsewhere": elsewhere}
        head = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
        head = f"{head}, {human_seconds(now - self._started)}"
        self._live.console.width = width_of(self._stream)  # the window may have changed
        self._live.update(make_table(head, rows, more), refresh=True)


def make_table(head: str, rows: Sequence[tuple[str, str, str, str]], more: Sequence[str]) -> Table:
    """The live table of active cells: name, steps, time left, steps per second."""
    table = Table.grid(padding=(0, 2))
    table.title, table.title_justify = head, "left"
    table.add_column(no_wrap=True, overflow="ellipsis")
    for style in ("", "cyan", "green"):
        table.add_column(justify="right", style=style, no_wrap=True)
    for name, steps, left, rate in rows:
        table.add_row(name, steps, left, f"{rate}/s" if rate else "")
    for text in more:
        table.add_row(text)
    return table
