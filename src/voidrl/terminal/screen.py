"""What a stream leads to: a terminal and its width, a notebook, or a file that has to stay plain."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

UNKNOWN_WIDTH = 80


def is_log(stream: TextIO) -> bool:
    """Whether it is a file, a pipe or the log of a CI job, some of which are given a terminal."""
    return not stream.isatty() or os.environ.get("CI", "").lower() not in ("", "0", "false")


def is_terminal(stream: TextIO) -> bool:
    """Whether lines can be redrawn there.

    Not rich's own test: FORCE_COLOR, which CI sets, would put escapes into a log file.
    """
    return not is_log(stream) and os.environ.get("TERM") != "dumb"


def has_color(stream: TextIO) -> bool:
    """Whether styles are wanted there as well (no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def width_of(stream: TextIO) -> int:
    """The columns of a terminal, now: COLUMNS if it is set, else its own; some say 0 and mean unknown."""
    given, own = os.environ.get("COLUMNS", ""), 0
    if given.isdigit() and int(given):
        return int(given)
    with suppress(OSError, ValueError):  # no file behind it, or none that is a terminal
        own = os.get_terminal_size(stream.fileno()).columns
    return own or UNKNOWN_WIDTH


def in_notebook(stream: TextIO) -> bool:
    """Whether it is shown below a cell of a Jupyter notebook, where a carriage return begins a line anew."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    kinds = [kind.__name__ for kind in type(shell).__mro__]  # Colab's is derived from Jupyter's
    return "ZMQInteractiveShell" in kinds and stream in (sys.stdout, sys.stderr)


def has_unicode(stream: TextIO) -> bool:
    """Whether signs beyond ASCII can be written to it."""
    encoding = getattr(stream, "encoding", None)  # none where it keeps text as it is
    return encoding is None or encoding.lower().replace("-", "").startswith("utf")
