"""Progress of a run: a bar on a terminal, sparse lines in a log file."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Self, TextIO

from rich import progress as bars
from rich.table import Column
from rich.text import Text

from voidrl.system.terminal.tables import is_terminal, make_console, width_of
from voidrl.system.units import Rates, human_count, human_seconds

_BAR_EVERY_SECONDS = 0.1
_LINE_EVERY_SECONDS = 30.0  # in a log file
_RATE_WINDOW_SECONDS = 30.0
_MEASURED_SECONDS = 1.0  # until a rate is shown
_BAR_COLUMNS = 20


class _Numbers(bars.ProgressColumn):
    """The numbers to the right of the bar, on one line that a narrow terminal cuts."""

    def render(self, task: bars.Task) -> Text:
        return Text(task.fields["numbers"], no_wrap=True, overflow="ellipsis")


class Progress:
    """Shows a run's progress on `stream` (stderr by default) while used as a context manager.

    `initial_step` and `initial_updates` are where a resumed run starts, so that rates count only new steps.
    Until `warmup_steps` nothing is learned, so steps are faster and say nothing about the time left.
    Calling `update` at every step is fine: it draws at most ten times a second on a terminal, and elsewhere
    every half minute.
    """

    def __init__(
        self,
        total_steps: int,
        initial_step: int = 0,
        *,
        title: str = "",
        stream: TextIO | None = None,
        initial_updates: int = 0,
        warmup_steps: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_steps
        self._title = title
        self._warmup_steps = warmup_steps
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._now = self._start = clock(), initial_step, initial_updates
        self._all, self._recent = (Rates(each, *self._start) for each in (math.inf, _RATE_WINDOW_SECONDS))
        self._measured_from = self._start[0]
        self._fields: dict[str, float] = {}
        self._drawn: tuple[float, int, int] | None = None
        self._bar: bars.Progress | None = None
        self._task = bars.TaskID(0)

    def __enter__(self) -> Self:
        if is_terminal(self._stream):
            console = make_console(self._stream)
            if self._title:
                console.print(self._title, style="bold", markup=False, soft_wrap=True)
            # No refresh thread: it would compete with training for the GIL. What the environment prints goes
            # above the bar, unless stdout is a pipe or a file.
            self._bar = bars.Progress(
                bars.TextColumn("{task.percentage:>3.0f}%"),
                bars.BarColumn(_BAR_COLUMNS, table_column=Column(no_wrap=True)),
                _Numbers(),
                console=console,
                auto_refresh=False,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._task = self._bar.add_task("", total=self._total, numbers="", visible=False)
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._drawn != self._now and self._now != self._start:
            self._draw()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(
        self, step: int, fields: Mapping[str, float] | None = None, *, updates: int | None = None
    ) -> None:
        """Show the number of steps and updates done; fields that are not given keep their values."""
        self._fields.update(fields or {})
        self._now = self._clock(), step, self._now[2] if updates is None else updates
        if step <= self._warmup_steps:
            self._measured_from, self._recent = self._now[0], Rates(_RATE_WINDOW_SECONDS, *self._now)
        pause = _LINE_EVERY_SECONDS if self._bar is None else _BAR_EVERY_SECONDS
        if self._drawn is None or self._now[0] - self._drawn[0] >= pause:
            self._draw()

    def _draw(self) -> None:
        self._drawn = self._now
        numbers, steps = self._numbers(), self._now[1]
        if self._bar is not None:
            self._bar.console.width = width_of(self._stream)  # the window may have been resized
            self._bar.update(self._task, completed=steps, visible=True, refresh=True, numbers=numbers)
            return
        parts = [self._title, f"{min(100, 100 * steps // max(1, self._total))}%", numbers]
        print("  ".join(filter(None, parts)), file=self._stream, flush=True)

    def _numbers(self) -> str:
        """The most important ones first, since a narrow terminal cuts the others."""
        now, steps, updates = self._now
        # Rates are those of the last half minute, or of the whole run once it is done.
        is_done, recent = steps >= self._total, self._recent.add(*self._now)
        rate, update_rate = (each or 0.0 for each in (self._all.add(*self._now) if is_done else recent))
        parts, rates = [f"{human_count(steps)}/{human_count(self._total)}"], [f"{human_count(rate)} steps/s"]
        if updates:
            rates.append(f"{human_count(update_rate)} updates/s")
        if is_done:
            parts += [f"took {human_seconds(now - self._start[0])}", *rates]
        elif now - self._measured_from >= _MEASURED_SECONDS:
            left = (self._total - steps) / rate if rate > 0 else math.inf
            parts += [f"eta {human_seconds(left)}", *rates]
        elif steps <= self._warmup_steps:
            parts.append(f"warm-up until {human_count(self._warmup_steps)}")
        return "  ".join([*parts, *(f"{name} {human_count(value)}" for name, value in self._fields.items())])
