"""Keeps developer messages of libraries off the user's screen.

Deprecations inside torch, a renamed switch for TF32 or a missing variable of a graphics driver are nothing
that a user of voidrl can change. Warnings of the user's own code, of the environment's package and
`VoidrlWarning` are shown as ever, and so is everything with `python -W` or PYTHONWARNINGS.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from voidrl.errors import VoidrlWarning

# Packages whose warnings are about their own insides. Of others, such as Gymnasium, only deprecations are.
QUIET = ("torch", "triton", "pygame", "pkg_resources", "ale_py", "glfw", "OpenGL", "mujoco", "dm_control")
ABOUT_CODE = (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning, ResourceWarning)
OWN_FOLDER = Path(__file__).parents[2]
ENV_CALLER = OWN_FOLDER / "envs" / "single.py"  # where a warning of an environment points with stacklevel=2


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide the warnings of libraries inside. It may be nested."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # A driver that looks for a window system complains without this folder, which it does not need to render.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    before = warnings.showwarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, *rest: Any, **options: Any
    ) -> None:
        if not is_hidden(category, filename):
            before(message, category, filename, *rest, **options)

    warnings.showwarning = show
    try:
        yield
    finally:
        if warnings.showwarning is show:  # else it has been replaced meanwhile
            warnings.showwarning = before


def is_hidden(category: type[Warning], filename: str) -> bool:
    """Whether a warning that was raised in a file does not concern the user."""
    if sys.warnoptions or issubclass(category, VoidrlWarning):
        return False
    path = Path(filename)
    if path.is_relative_to(OWN_FOLDER):
        return path != ENV_CALLER or issubclass(category, ABOUT_CODE)
    for name in ("purelib", "platlib", "stdlib"):
        folder = sysconfig.get_path(name)
        if path.is_relative_to(folder):
            package = path.relative_to(folder).parts[0].removesuffix(".py")
            return package in QUIET or issubclass(category, ABOUT_CODE)
    return False
