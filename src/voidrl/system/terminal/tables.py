"""Tables and text: wrapped on a terminal, and in a pipe one whole line per row."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from voidrl.errors import printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod

UNKNOWN_WIDTH = 80
UNLIMITED = 10**6
GAP = 2
LEAST_PROSE = 24  # narrowest readable column of text


def is_terminal(stream: TextIO) -> bool:
    """Whether lines can be redrawn: not in a file, a pipe, the log of a CI job or a dumb terminal."""
    is_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return stream.isatty() and not is_ci and os.environ.get("TERM") != "dumb"


def width_of(stream: TextIO) -> int:
    """The current number of columns: COLUMNS if it is set, else the terminal's; some report 0 for unknown."""
    given, own = os.environ.get("COLUMNS", ""), 0
    if given.isdigit() and int(given):
        return int(given)
    with suppress(OSError, ValueError):  # not a file, or not a terminal
        own = os.get_terminal_size(stream.fileno()).columns
    return own or UNKNOWN_WIDTH


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    file: TextIO | None = None,
) -> None:
    """Print aligned rows under the names of their columns; numbers are right-aligned.

    On a terminal, cells are wrapped to its width. Elsewhere nothing is wrapped, cut or colored. A cell of
    None is empty, a float is formatted with `%g`, anything else with `str`, on one line.
    """
    from rich.table import Table
    from rich.text import Text

    body = list(rows)
    grid = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for i, name in enumerate(map(printable, columns)):
        side: JustifyMethod = "right" if _is_numeric([row[i] for row in body]) else "left"
        grid.add_column(Text(name), style="" if i else "cyan", justify=side, overflow="fold", no_wrap=not i)
    for row in body:
        grid.add_row(*(Text(_shown(cell)) for cell in row))
    stream = sys.stdout if file is None else file
    console = make_console(stream)
    if title is not None:
        gap = "\n\n" if is_terminal(stream) else "\n"
        console.print(printable(title), style="bold", markup=False, end=gap)
    if is_terminal(stream):
        console.print(grid)
        return
    console.width = UNLIMITED
    with console.capture() as text:
        console.print(grid)
    for line in text.get().splitlines():
        print(line.rstrip(), file=stream)


def wrap_text(text: str, *, indent: int = 2, file: TextIO | None = None) -> str:
    """Wrap lines that are too long for the terminal, without control characters."""
    text, stream = printable_lines(text), sys.stdout if file is None else file
    if not is_terminal(stream):
        return text
    room = width_of(stream)
    wrapper = textwrap.TextWrapper(room, subsequent_indent=" " * indent)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return "\n".join(line if len(line) <= room else wrapper.fill(line) for line in text.split("\n"))


def described(rows: Mapping[str, str], *, file: TextIO | None = None) -> str:
    """A list of names and their descriptions, as in the help of a command."""
    stream = sys.stdout if file is None else file
    longest = max(map(len, rows))
    indent = longest + 2 * GAP
    if width_of(stream) - indent < LEAST_PROSE:
        longest, indent = 0, 2 * GAP
    lines = (f"{' ' * GAP}{name:<{longest}}{' ' * GAP}{text}" for name, text in rows.items())
    return "\n".join(wrap_text(line, indent=indent, file=stream) for line in lines)


def make_console(stream: TextIO) -> Console:
    """A rich console that never writes HTML into a notebook, nor escape codes into a log."""
    from rich.console import Console

    width, terminal = width_of(stream), is_terminal(stream)
    return Console(file=stream, width=width, force_terminal=terminal, force_jupyter=False, highlight=False)


def _is_numeric(cells: Sequence[object]) -> bool:
    given = [cell for cell in cells if cell is not None]
    return bool(given) and all(isinstance(cell, int | float) for cell in given)


def _shown(cell: object) -> str:
    if cell is None:
        return ""
    return printable(f"{cell:g}" if isinstance(cell, float) else cell)
