"""Keeps developer messages of libraries off the user's screen.

Deprecations inside torch, a renamed switch for TF32 or a missing variable of a graphics driver are nothing
that a user of voidrl can change. Warnings of the user's own code, of the environment's package and
`VoidrlWarning` are shown as ever, and so is everything with `python -W` or PYTHONWARNINGS.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Packages whose warnings are about their own insides. Of others, such as Gymnasium, only deprecations are.
QUIET = "torch|triton|pygame|pkg_resources|ale_py|glfw|OpenGL|mujoco|dm_control"
# Libraries point to their caller, and so does an environment with stacklevel=2.
OURS = r"voidrl\.(?!envs\.single$)"


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide the warnings of libraries inside. It may be nested."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # A driver that looks for a window system complains without this folder, which it does not need to render.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.filterwarnings("ignore", module=rf"({QUIET})\b")
            for category in (UserWarning, RuntimeWarning, FutureWarning):
                warnings.filterwarnings("ignore", category=category, module=OURS)
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(gymnasium|voidrl)\b")
        yield
