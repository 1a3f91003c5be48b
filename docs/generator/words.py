"""Tables, words and values in Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

NOTE = (
    "<!-- Written by docs/generate.py from the code: change that, then run `python docs/generate.py`. -->\n"
)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; a bar inside a cell is kept from ending it."""
    names = [*head]
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def wrapped(text: str) -> str:
    """A paragraph in lines, so that the file can be read as it is."""
    return "\n".join(textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)) + "\n"


def plain(text: str) -> str:
    """Words as Markdown: on one line, and `<game>` is no HTML."""
    return re.sub(r"`[^`]*`|<", lambda m: m[0].replace("<", "\\<", m[0] == "<"), " ".join(text.split()))


def code(value: object) -> str:
    """A value as it is typed; many zeros as M and k."""
    if isinstance(value, list | tuple):
        return f"`{','.join(count(v) for v in value)}`" if value else "none"
    return f"`{count(value)}`"


def count(value: object) -> str:
    """250M for 250000000; what is small or no round number stays as it is."""
    if type(value) is int and value >= 10_000:
        for unit, size in (("M", 1_000_000), ("k", 1000)):
            if value % size == 0:
                return f"{value // size}{unit}"
    return str(value)
