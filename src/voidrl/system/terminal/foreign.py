"""Keeps developer messages of libraries off the user's screen: they go into the log of the run.

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
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from voidrl.errors import VoidrlWarning

# Packages whose warnings are about their own insides. Of others, such as Gymnasium, only deprecations are.
QUIET = ("torch", "triton", "pygame", "pkg_resources", "ale_py", "glfw", "OpenGL", "mujoco", "dm_control")
ABOUT_CODE = (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning, ResourceWarning)
OWN_FOLDER = Path(__file__).parents[2]
ENV_CALLER = OWN_FOLDER / "envs" / "guarded.py"  # where a warning of an environment points with stacklevel=2
MOST_KEPT = 100  # warnings until there is a log
# A driver that looks for a window system complains without this folder, which it does not need to render.
VARIABLES = {"PYGAME_HIDE_SUPPORT_PROMPT": "1"} | (
    {"XDG_RUNTIME_DIR": tempfile.gettempdir()} if sys.platform == "linux" else {}
)

Log = Callable[[str], None]


class _Listener:
    """Hears the warnings that are hidden, until it has a log to write them to."""

    def __init__(self) -> None:
        self.log: Log | None = None
        self.kept: deque[str] = deque(maxlen=MOST_KEPT)
        self.owner = os.getpid()

    def hear(self, text: str) -> None:
        if os.getpid() != self.owner:  # a forked worker
            return
        if self.log is None:
            self.kept.append(text)
        else:
            self.log(text)


_listeners: list[_Listener] = []


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide the warnings of libraries inside. It may be nested, and is used by several threads at once."""
    listener = _Listener()
    _listeners.append(listener)
    added = {name: value for name, value in VARIABLES.items() if name not in os.environ}
    os.environ.update(added)
    before = warnings.showwarning
    hook = None if before is _hook else _hook
    if hook is not None:
        _shown_by.append(before)
        warnings.showwarning = hook
    try:
        yield
    finally:
        _listeners.remove(listener)
        if _listeners and listener.kept:
            _listeners[-1].kept.extend(listener.kept)
        if hook is not None:
            if warnings.showwarning is hook:  # else it has been replaced meanwhile
                warnings.showwarning = before
            _shown_by.remove(before)
        for name in added:
            os.environ.pop(name, None)


_shown_by: list[Callable[..., Any]] = []  # the previous handler of warnings


def log_hidden_warnings(log: Log) -> None:
    """Write messages hidden so far to a log, and further ones until the current `quiet_libraries` ends."""
    for listener in _listeners:
        while listener.kept:
            log(listener.kept.popleft())
    if _listeners:
        _listeners[-1].log = log


def _hook(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any, **options: Any
) -> None:
    if is_hidden(category, filename):
        text = " ".join(str(message).split())
        _listeners[-1].hear(f"{category.__name__} in {filename}, line {lineno}: {text}")
    elif _shown_by:
        _shown_by[-1](message, category, filename, lineno, *rest, **options)


def is_hidden(category: type[Warning], filename: str) -> bool:
    """Whether a warning that was raised in a file does not concern the user."""
    if sys.warnoptions or not _listeners or issubclass(category, VoidrlWarning):
        return False
    path = Path(filename)
    if path.is_relative_to(OWN_FOLDER):
        return path != ENV_CALLER or issubclass(category, ABOUT_CODE)
    package = _package(path)
    return package in QUIET or (package is not None and issubclass(category, ABOUT_CODE))


def _package(path: Path) -> str | None:
    """The installed package, or `python` for its standard library; None for the user's own files."""
    for folder in _installed():
        if path.is_relative_to(folder):
            return path.relative_to(folder).parts[0].removesuffix(".py")
    parts = path.parts
    for name in ("site-packages", "dist-packages"):
        if name in parts[:-1]:
            return parts[parts.index(name) + 1].removesuffix(".py")
    return "python" if path.is_relative_to(sysconfig.get_path("stdlib")) else None


@cache
def _installed() -> list[Path]:
    return [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
