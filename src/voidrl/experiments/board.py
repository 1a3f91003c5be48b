"""How an experiment shows where it is: a live table on a terminal, elsewhere a line when anything changes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, TextIO

from rich.console import Group
from rich.live import Live
from rich.text import Text

from voidrl.experiments.plan import Cell
from voidrl.experiments.state import last_row
from voidrl.terminal.screen import is_terminal, width_of
from voidrl.terminal.tables import make_console, wrap_text
from voidrl.units import human_count, human_seconds

DRAW_EVERY_SECONDS = 0.5
LINES_EVERY_SECONDS = 60.0  # in a log file: one line for each run that is under way
EARLY_SECONDS = 10.0  # the same in the first minute, when one looks whether it works
MOST_ROWS = 12
LEAST_NAME = 12


class Running(NamedTuple):
    """A cell that this process has under way."""

    cell: Cell
    folder: Path


class Standing(NamedTuple):
    """Where a run is, as its metrics tell."""

    step: int
    steps: int
    rate: float
    """Steps a second."""
    at_end: str
    """What it does when it has made all of them."""

    @property
    def left(self) -> str:
        """How long it still takes."""
        if self.step >= self.steps:
            return self.at_end
        if not self.step:
            return "starting"
        return f"eta {human_seconds((self.steps - self.step) / self.rate if self.rate > 0 else math.inf)}"

    @property
    def done(self) -> str:
        """Steps done, of all."""
        return f"{human_count(self.step)}/{human_count(self.steps)}"


def standing(running: Running) -> Standing:
    """Read from the last row of its metrics."""
    row: dict[str, Any] = last_row(running.folder) or {}
    rate = row.get("time/steps_per_second") or 0.0
    at_end = "saving" if running.cell.evaluation is None else "evaluating"
    return Standing(int(row.get("step", 0)), running.cell.config.steps, float(rate), at_end)


class Board:
    """Counts what is done and failed; used as a context manager while cells are under way."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._total = self._done = self._failed = 0
        self._began = self._drawn = time.monotonic()
        self._live: Live | None = None

    def begin(self, total: int, done: int) -> None:
        """How many cells there are, and how many of them are done already."""
        self._total, self._done = total, done
        there = f", {done} of them done" if done else ""
        self.say(f"{total} runs{there}")

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
        """A line that stays."""
        if self._live is not None:
            self._live.console.print(Text(wrap_text(text, file=self._stream)))
        else:
            print(wrap_text(text, file=self._stream), file=self._stream, flush=True)

    def done(self, text: str) -> None:
        """One more is done."""
        self._done += 1
        self.say(f"{text} ({self._done} of {self._total})")

    def fail(self, text: str) -> None:
        """One more has failed."""
        self._failed += 1
        self.say(text)

    def draw(self, running: Sequence[Running], elsewhere: int) -> None:
        """Show what is under way, if it is time to."""
        now = time.monotonic()
        if self._live is None:
            early = now - self._began < LINES_EVERY_SECONDS
            if now - self._drawn >= (EARLY_SECONDS if early else LINES_EVERY_SECONDS):
                self._drawn = now
                for each in running:
                    at = standing(each)
                    rate = f"{human_count(at.rate)} steps/s, " if at.rate else ""
                    self.say(f"{each.cell.folder}: {at.done}, {rate}{at.left}")
            return
        if now - self._drawn < DRAW_EVERY_SECONDS:
            return
        self._drawn = now
        self._live.console.width = width = width_of(self._stream)  # the window may have changed
        self._live.update(Group(*self.lines(running, elsewhere, width)), refresh=True)

    def lines(self, running: Sequence[Running], elsewhere: int, width: int) -> list[Text]:
        """The live table, each line no wider than `width`: names are cut first, then numbers left out."""
        parts = [f"{self._done}/{self._total} done"]
        parts += [f"{self._failed} failed"] * bool(self._failed)
        parts += [f"{elsewhere} elsewhere"] * bool(elsewhere)
        parts.append(human_seconds(time.monotonic() - self._began))
        head = Text(", ".join(parts), style="bold", no_wrap=True)
        head.truncate(width, overflow="ellipsis")
        rows = []
        for each in running[:MOST_ROWS]:
            at = standing(each)
            rows.append(
                (each.cell.folder, [at.done, at.left, f"{human_count(at.rate)}/s" if at.rate else ""])
            )
        widths = [max((len(numbers[i]) for _, numbers in rows), default=0) for i in range(3)]
        while widths and width - sum(w + 2 for w in widths) < LEAST_NAME:
            widths.pop()
        room = min(
            max((len(name) for name, _ in rows), default=0), max(1, width - sum(w + 2 for w in widths))
        )
        lines = [head]
        for name, numbers in rows:
            shown = name if len(name) <= room else f"…{name[len(name) - room + 1 :]}"
            line = Text(f"{shown:<{room}}", no_wrap=True)
            for text, w, style in zip(numbers, widths, ("", "cyan", "green"), strict=False):
                line.append(f"  {text:>{w}}", style)
            lines.append(line)
        if len(running) > MOST_ROWS:
            lines.append(Text(f"… and {len(running) - MOST_ROWS} more"))
        return lines
