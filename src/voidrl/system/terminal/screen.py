"""Properties of an output stream. Importing this module does not import rich."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TextIO

UNKNOWN_WIDTH = 80


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
