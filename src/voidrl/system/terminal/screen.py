"""Properties of an output stream: terminal, width, color, notebook, log file."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

UNKNOWN_WIDTH = 80


def is_log(stream: TextIO) -> bool:
    """Whether it is a file, a pipe or the log of a CI job (some of which have a terminal)."""
    return not stream.isatty() or os.environ.get("CI", "").lower() not in ("", "0", "false")


def is_terminal(stream: TextIO) -> bool:
    """Whether lines can be redrawn.

    Unlike rich's test, this ignores FORCE_COLOR, which CI sets: it would put escape codes into a log file.
    """
    return not is_log(stream) and os.environ.get("TERM") != "dumb"


def has_color(stream: TextIO) -> bool:
    """Whether to use colors (no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def width_of(stream: TextIO) -> int:
    """The current number of columns: COLUMNS if it is set, else the terminal's; some report 0 for unknown."""
    given, own = os.environ.get("COLUMNS", ""), 0
    if given.isdigit() and int(given):
        return int(given)
    with suppress(OSError, ValueError):  # not a file, or not a terminal
        own = os.get_terminal_size(stream.fileno()).columns
    return own or UNKNOWN_WIDTH


def in_notebook(stream: TextIO) -> bool:
    """Whether it is shown in a Jupyter notebook, where a carriage return overwrites the line."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    kinds = [kind.__name__ for kind in type(shell).__mro__]  # Colab's shell derives from Jupyter's
    return "ZMQInteractiveShell" in kinds and stream in (sys.stdout, sys.stderr)


def has_unicode(stream: TextIO) -> bool:
    """Whether non-ASCII characters can be written."""
    encoding = getattr(stream, "encoding", None)  # None for text streams in memory
    return encoding is None or encoding.lower().replace("-", "").startswith("utf")
