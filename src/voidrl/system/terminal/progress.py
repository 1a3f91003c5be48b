"""Progress of a run: a bar on a terminal, one line in a notebook, sparse lines in a log file."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Self, TextIO

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from voidrl.system.terminal.screen import in_notebook, is_terminal, width_of
from voidrl.system.terminal.tables import make_console
from voidrl.system.units import human_count, human_seconds

_BAR_EVERY_SECONDS = 0.1
_NOTEBOOK_EVERY_SECONDS = 1.0  # the notebook's file keeps every update
_LOG_EVERY_SECONDS = 60.0  # at most, for runs of many hours
_RATE_WINDOW_SECONDS = 30.0
_BAR_COLUMNS = (6, 40)  # least and greatest width of the bar


def _width(numbers: Mapping[str, Text]) -> int:
    return sum(text.cell_len for text in numbers.values())


class _Sample(NamedTuple):
    seconds: float
    steps: int
    updates: int


class Progress:
    """Shows a run's progress on `stream` (stderr by default) while used as a context manager.

    `initial_step` and `initial_updates` are where a resumed run starts, so that rates count only new steps.
    Calling `update` at every step is fine: it draws at most ten times a second on a terminal, once a
    second in a notebook, and elsewhere every `plain_every_seconds`, after two hours every minute.
    """

    def __init__(
        self,
        total_steps: int,
        initial_step: int = 0,
        *,
        title: str = "",
        stream: TextIO | None = None,
        initial_updates: int = 0,
        plain_every_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_steps
        self._title = title
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._now = self._start = _Sample(clock(), initial_step, initial_updates)
        self._window = deque([self._start])
        self._fields: dict[str, float] = {}
        self._counts_updates = False
        self._drawn: _Sample | None = None
        self._pending = False
        self._live: Live | None = None
        self._every = plain_every_seconds
        self._on_terminal = is_terminal(self._stream)
        self._in_notebook = not self._on_terminal and in_notebook(self._stream)
        self._written = 0  # length of the line in the notebook

    def __enter__(self) -> Self:
        if self._on_terminal:
            console = make_console(self._stream)
            if self._title:
                console.print(Text(self._title, style="bold"), soft_wrap=True)
            # No refresh thread: it would compete with training for the GIL. What the environment prints goes
            # above the bar, unless stdout is a pipe or a file.
            self._live = Live(console=console, auto_refresh=False, redirect_stdout=sys.stdout.isatty())
            self._every = _BAR_EVERY_SECONDS
            self._live.start()
        elif self._in_notebook:
            self._every = _NOTEBOOK_EVERY_SECONDS
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pending:
            self._draw()
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif self._written:
            print(file=self._stream, flush=True)

    def update(
        self, step: int, fields: Mapping[str, float] | None = None, *, updates: int | None = None
    ) -> None:
        """Show the number of steps and updates done; fields that are not given keep their values."""
        self._fields.update(fields or {})
        self._counts_updates |= updates is not None
        self._now = _Sample(self._clock(), step, self._now.updates if updates is None else updates)
        self._pending = True
        if self._drawn is None or self._now.seconds - self._drawn.seconds >= self._pause():
            self._draw()

    def _pause(self) -> float:
        """Seconds between two drawings; in a log file a hundredth of the elapsed time."""
        if self._on_terminal or self._in_notebook:
            return self._every
        passed = self._now.seconds - self._start.seconds
        return max(self._every, min(passed / 100, _LOG_EVERY_SECONDS))

    def _draw(self) -> None:
        if self._drawn is not None and self._drawn.updates == self._start.updates < self._now.updates:
            self._window = deque([self._drawn])  # steps of the warm-up are faster than later ones
        self._window.append(self._now)
        while len(self._window) > 2 and self._now.seconds - self._window[0].seconds > _RATE_WINDOW_SECONDS:
            self._window.popleft()
        self._drawn, self._pending = self._now, False
        if self._live is not None:
            self._live.console.width = columns = width_of(self._stream)  # the window may have been resized
            self._live.update(self._bar_line(columns), refresh=True)
        elif self._in_notebook:
            line = self._plain_line()
            print(f"\r{line:<{self._written}}", end="", file=self._stream, flush=True)
            self._written = len(line)
        else:
            print(self._plain_line(), file=self._stream, flush=True)

    def _plain_line(self) -> str:
        count = f"{human_count(self._now.steps)}/{human_count(self._total)}"
        steps_rate, updates_rate = self._rates()
        updates = f"{human_count(updates_rate)} updates/s" if self._counts_updates else ""
        fields = [f"{name} {human_count(value)}" for name, value in self._fields.items()]
        parts = [self._title, count, f"{self._percent()}%", f"{human_count(steps_rate)} steps/s", updates]
        return "  ".join(filter(None, [*parts, self._time_left(), *fields]))

    def _bar_line(self, columns: int) -> Table:
        """Lay out one line: percentage, bar, and as many numbers as fit, the important ones first."""
        least, most = _BAR_COLUMNS
        room = columns - len("100% ") - least
        numbers = self._numbers(" steps/s", " updates/s")
        if _width(numbers) > room:
            numbers = self._numbers("/s", " upd/s")
        while numbers and _width(numbers) > room:
            del numbers["updates/s" if "updates/s" in numbers else next(reversed(numbers))]
        width = min(least + room - _width(numbers), most)
        bar = ProgressBar(self._total, min(self._now.steps, self._total), width=max(width, 1))
        line = Table.grid()
        for _ in range(2 + len(numbers)):
            line.add_column(no_wrap=True)
        line.add_row(f"{self._percent():>3}% ", bar, *numbers.values())
        return line

    def _numbers(self, steps_unit: str, updates_unit: str) -> dict[str, Text]:
        """The numbers to the right of the bar, padded to a constant width."""
        steps_rate, updates_rate = self._rates()
        numbers = {
            "steps": Text(f"  {human_count(self._now.steps):>5}/{human_count(self._total)}"),
            "time": Text(f"  {self._time_left():<10}", "cyan"),
            "steps/s": Text(f"  {human_count(steps_rate):>5}{steps_unit}", "green"),
        }
        if self._counts_updates:
            numbers["updates/s"] = Text(f"  {human_count(updates_rate):>5}{updates_unit}", "green")
        for name, value in self._fields.items():
            numbers[f"field {name}"] = Text.assemble((f"  {name} ", "dim"), f"{human_count(value):<5}")
        return numbers

    def _percent(self) -> int:
        return min(100, 100 * self._now.steps // max(1, self._total))

    def _rates(self) -> tuple[float, float]:
        """Steps and updates per second over the last half minute, or over the whole run once it is done."""
        first = self._start if self._now.steps >= self._total else self._window[0]
        seconds = self._now.seconds - first.seconds or math.inf  # no time, no rate
        return (self._now.steps - first.steps) / seconds, (self._now.updates - first.updates) / seconds

    def _time_left(self) -> str:
        if self._now.steps >= self._total:
            return f"took {human_seconds(self._now.seconds - self._start.seconds)}"
        steps_rate, _ = self._rates()
        left = (self._total - self._now.steps) / steps_rate if steps_rate > 0 else math.inf
        return f"eta {human_seconds(left)}"
