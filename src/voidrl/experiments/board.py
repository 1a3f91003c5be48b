"""Progress of an experiment: a line for each active run, on a terminal in place."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TextIO

from rich.live import Live
from rich.text import Text

from voidrl.experiments.planner import Cell
from voidrl.report.find import Place
from voidrl.report.live import look_at
from voidrl.system.terminal.tables import is_terminal, make_console, width_of, wrap_text
from voidrl.system.units import human_count, human_seconds, plural

DRAW_EVERY_SECONDS = 0.5
LINES_EVERY_SECONDS = 60.0  # in a log file: one line per active run
EARLY_SECONDS = 10.0  # in the first minute, when people check that it works
MAX_ROWS = 12


def progress_line(cell: Cell, folder: Path) -> str:
    """A line about a run, from its status: `walker_run/apt/seed1: 4k/16k, 100 steps/s, eta 2m00s`."""
    run = look_at(Place(folder, cell.folder))
    left = "starting" if run.state != "running" else "running"  # the state may be an earlier process's
    if run.steps >= cell.config.steps:
        left = "evaluating" if run.took_all_steps and cell.evaluation is not None else "saving"
    elif run.state == "running" and run.rate is not None:
        seconds = math.inf if run.seconds_left is None else run.seconds_left
        left = f"{human_count(run.rate)} steps/s, eta {human_seconds(seconds)}"
    return f"{cell.folder}: {human_count(run.steps)}/{human_count(cell.config.steps)}, {left}"


class Board:
    """Counts done and failed cells, and shows active ones while used as a context manager."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.total = self._done = self._failed = 0
        self._started = self._drawn = time.monotonic()
        self._live: Live | None = None

    def start(self, total: int, done: int) -> None:
        """Set how many cells there are, and how many of them are done already."""
        self.total, self._done = total, done
        self.say(f"{plural(total, 'run')}{f', {done} of them done' if done else ''}")

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
        self.say(f"{text} ({self._done} of {self.total})")

    def fail(self, text: str) -> None:
        """Count one more failed."""
        self._failed += 1
        self.say(text)

    def draw(self, running: Sequence[tuple[Cell, Path]]) -> None:
        """Show the active cells and their folders, if it is time to."""
        now = time.monotonic()
        period = EARLY_SECONDS if now - self._started < LINES_EVERY_SECONDS else LINES_EVERY_SECONDS
        if now - self._drawn < (period if self._live is None else DRAW_EVERY_SECONDS):
            return
        self._drawn = now
        # On a cluster, most are queued: the ones that train come first.
        shown = sorted(running, key=lambda each: not (each[1] / "config.json").is_file())[:MAX_ROWS]
        lines = [progress_line(cell, folder) for cell, folder in shown]
        lines += [f"… and {len(running) - MAX_ROWS} more"] if len(running) > MAX_ROWS else []
        if self._live is None:
            for line in lines:
                self.say(line)
            return
        failed = f", {self._failed} failed" if self._failed else ""
        head = f"{self._done}/{self.total} done{failed}, {human_seconds(now - self._started)}"
        self._live.console.width = width_of(self._stream)  # the window may have changed
        text = Text("\n".join([head, *lines]), no_wrap=True, overflow="ellipsis")
        self._live.update(text, refresh=True)
