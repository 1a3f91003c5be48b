"""Tables and text: wrapped on a terminal, and in a pipe one whole line per row."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from voidrl.system.terminal.screen import has_color, has_unicode, is_log, is_terminal, width_of

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod

GAP = 2
UNKNOWN_HEIGHT = 25
LEAST_PROSE = 24  # narrowest readable column of text


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    file: TextIO | None = None,
) -> None:
    """Print aligned rows under the names of their columns; numbers are right-aligned.

    On a terminal the last column is wrapped to the width; if there is no room even for that, each row becomes
    a small block. Elsewhere nothing is wrapped, cut or colored. A cell of None is empty, a float is formatted
    with `%g`, anything else with `str`, on one line.
    """
    stream = sys.stdout if file is None else file
    body: list[Sequence[object]] = list(rows)
    numeric = [_is_numeric([row[i] for row in body]) for i in range(len(columns))]
    shown = [[writable(_shown(cell), stream) for cell in row] for row in (columns, *body)]
    if is_log(stream):
        lines = [] if title is None else [writable(title, stream)]
        for line in [*lines, *_aligned(shown, numeric)]:
            print(line, file=stream)
        return
    from rich.cells import cell_len

    console = make_console(stream)
    if title is not None:
        console.print(writable(title, stream), style="bold", markup=False)
        console.print()
    widths = [max(map(cell_len, column)) for column in zip(*shown, strict=True)]
    room = console.width - sum(widths[:-1]) - GAP * (len(columns) - 1)
    if room >= min(widths[-1], LEAST_PROSE):
        _print_grid(console, shown, numeric)
    else:
        _print_blocks(console, shown)


def wrap_text(text: str, *, indent: int = 2, file: TextIO | None = None) -> str:
    """Wrap lines that are too long for the terminal, indenting the continuation lines."""
    stream = sys.stdout if file is None else file
    if is_log(stream):
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
    """A rich console that writes plain text if color is off, and never HTML into a notebook."""
    from rich.console import Console

    return Console(
        file=stream,
        width=width_of(stream),
        height=UNKNOWN_HEIGHT,  # otherwise rich assumes 80 columns on a dumb terminal
        force_terminal=is_terminal(stream),
        color_system="auto" if has_color(stream) else None,
        force_jupyter=False,
        highlight=False,
    )


def _is_numeric(cells: Sequence[object]) -> bool:
    given = [cell for cell in cells if cell is not None]
    return bool(given) and all(isinstance(cell, int | float) for cell in given)


def _shown(cell: object) -> str:
    if cell is None:
        return ""
    text = f"{cell:g}" if isinstance(cell, float) else str(cell)
    return "".join(char if char.isprintable() else " " for char in text)


def writable(text: str, stream: TextIO) -> str:
    """Replace characters that the stream's encoding lacks by plainer ones."""
    if has_unicode(stream):
        return text
    for char, plain in {"…": "...", "–": "-", "−": "-", "×": "x", "·": "-", "→": "->", "½": ".5"}.items():
        text = text.replace(char, plain)
    return text.encode(stream.encoding, "replace").decode(stream.encoding)


def _aligned(rows: list[list[str]], numeric: list[bool]) -> Iterable[str]:
    """Aligned lines without trailing spaces."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, numeric, strict=True)
        yield (" " * GAP).join(c.rjust(w) if right else c.ljust(w) for c, w, right in cells).rstrip()


def _print_grid(console: Console, rows: list[list[str]], numeric: list[bool]) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    last = len(numeric) - 1
    for i, (name, right) in enumerate(zip(rows[0], numeric, strict=True)):
        side: JustifyMethod = "right" if right else "left"
        style = "cyan" if i == 0 else ""
        grid.add_column(Text(name), style=style, justify=side, no_wrap=i < last, overflow="fold")
    for row in rows[1:]:
        grid.add_row(*map(Text, row))
    console.print(grid)


def _print_blocks(console: Console, rows: list[list[str]]) -> None:
    """Print each row's name and, indented below it, the short cells and then the last one."""
    from rich.padding import Padding
    from rich.text import Text

    names, *body = rows
    prose = max(len(row[-1]) for row in rows) > LEAST_PROSE  # text needs no label
    labelled = len(names) - 1 if prose else len(names)
    for row in body:
        console.print(Text(row[0], "cyan", overflow="fold"))
        pairs = zip(names[1:labelled], row[1:labelled], strict=True)
        facts = [f"{name} {cell}" for name, cell in pairs if cell]
        for line in (", ".join(facts), *row[labelled:]):
            if line:
                console.print(Padding(Text(line, overflow="fold"), (0, 0, 0, GAP), expand=False))
