"""The end of a command's process: as usual, or at once where a library would hang or crash then."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

_skips_destructors = False


def skip_destructors() -> None:
    """Have the command's process end without the destructors of a library that cannot close itself."""
    global _skips_destructors
    _skips_destructors = True


def end_process(code: int) -> None:
    """End the command's process with this exit status, if that may not be left to Python."""
    if _skips_destructors:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
