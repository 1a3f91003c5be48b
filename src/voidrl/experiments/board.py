"""Progress of an experiment: a live table on a terminal, elsewhere lines of text."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TextIO

from rich.console import Group
from rich.live import Live
from rich.text import Text

from voidrl.errors import RunFolderError
from voidrl.experiments.plan import Cell
from voidrl.runs.status import RunStatus, read_status
from voidrl.system.terminal.screen import is_terminal, width_of
from voidrl.system.terminal.tables import make_console, wrap_text
from voidrl.system.units import human_count, human_seconds

DRAW_EVERY_SECONDS = 0.5
LINES_EVERY_SECONDS = 60.0  # in a log file: one line per active run
EARLY_SECONDS = 10.0  # in the first minute, when people check that it works
MAX_ROWS = 12
MIN_NAME = 12


def read_progress(cell: Cell, folder: Path) -> tuple[str, str, str]:
    """Read steps, time left and steps per second from the status of a run, as text."""
    status = RunStatus("starting")
    with suppress(RunFolderError):  # damaged: the next heartbeat replaces it
        status = read_status(folder) or status
    steps = f"{human_count(status.steps)}/{human_count(cell.config.steps)}"
    if status.steps >= cell.config.steps:
        is_evaluated = status.state == "done" and cell.evaluation is not None
        return steps, "evaluating" if is_evaluated else "saving", ""
    if status.state != "running":  # the status may be an earlier process's
        return steps, "starting", ""
    if status.rate is None:  # before the first update
        return steps, "running", ""
    seconds = math.inf if status.seconds_left is None else status.seconds_left
    return steps, f"eta {human_seconds(seconds)}", human_count(status.rate)


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
        early = now - self._started < LINES_EVERY_SECONDS
        period = EARLY_SECONDS if early else LINES_EVERY_SECONDS
        if now - self._drawn < (period if self._live is None else DRAW_EVERY_SECONDS):
            return
        self._drawn = now
        if self._live is not None:
            self._live.console.width = width = width_of(self._stream)  # the window may have changed
            self._live.update(Group(*self.lines(running, elsewhere, width)), refresh=True)
            return
        if len(running) > MAX_ROWS:  # on a cluster, most are queued: the ones that train come first
            running = sorted(running, key=lambda each: not (each[1] / "config.json").is_file())
        for cell, folder in running[:MAX_ROWS]:
            steps, left, rate = read_progress(cell, folder)
            self.say(f"{cell.folder}: {steps}, {f'{rate} steps/s, ' if rate else ''}{left}")
        if len(running) > MAX_ROWS:
            self.say(f"… and {len(running) - MAX_ROWS} more")

    def lines(self, running: Sequence[tuple[Cell, Path]], elsewhere: int, width: int) -> list[Text]:
        """The live table, each line at most `width` wide: names are cut first, then numbers left out."""
        counts = {"failed": self._failed, "elsewhere": elsewhere}
        parts = [f"{self._done}/{self._total} done", *(f"{n} {name}" for name, n in counts.items() if n)]
        head = Text(", ".join([*parts, human_seconds(time.monotonic() - self._started)]), style="bold")
        head.truncate(width, overflow="ellipsis")
        names = [cell.folder for cell, _ in running[:MAX_ROWS]]
        rows = [read_progress(cell, folder) for cell, folder in running[:MAX_ROWS]]
        columns = [[steps for steps, _, _ in rows], [left for _, left, _ in rows]]
        columns.append([f"{rate}/s" if rate else "" for _, _, rate in rows])
        widths = [max(map(len, column), default=0) for column in columns]
        while widths and width - sum(w + 2 for w in widths) < MIN_NAME:
            widths.pop()
        room = min(max(map(len, names), default=0), max(1, width - sum(w + 2 for w in widths)))
        lines = [head]
        for i, name in enumerate(names):
            shown = name if len(name) <= room else f"…{name[len(name) - room + 1 :]}"
            line = Text(f"{shown:<{room}}", no_wrap=True)
            for column, w, style in zip(columns, widths, ("", "cyan", "green"), strict=False):
                line.append(f"  {column[i]:>{w}}", style)
            lines.append(line)
        if len(running) > MAX_ROWS:
            lines.append(Text(f"… and {len(running) - MAX_ROWS} more"))
        return lines
