"""Sentences about environments that fail. Does not import torch."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import gymnasium as gym

from voidrl.errors import ConfigError, EnvironmentFailedError, VoidrlError, shown

OURS = tuple(f"{Path(file).resolve().parent}/" for file in (Path(__file__).parent, gym.__file__))
SITE_PACKAGES = tuple(f"{Path(sysconfig.get_path(kind)).resolve()}/" for kind in ("purelib", "platlib"))
STANDARD = tuple(f"{Path(sysconfig.get_path(kind)).resolve()}/" for kind in ("stdlib", "platstdlib"))


def raised(error: BaseException) -> str:
    """Phrase with the error that was raised, and the line of the user's code."""
    place = place_of(error)
    return f"raised {shown(error)}{f' in {place}' if place else ''}"


def place_of(error: BaseException) -> str:
    """`file:line` of the innermost frame of the user's code, else of a package other than Gymnasium.

    Empty if there is none.
    """
    own, packages = "", ""
    current = _current_folder()
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        file = str(Path(current or "/", path).resolve())
        shown_path = path.relative_to(current) if current and path.is_relative_to(current) else path
        place = f"{shown_path}:{frame.lineno}"
        if file.startswith(OURS) or frame.filename.startswith("<frozen"):
            continue
        if file.startswith(SITE_PACKAGES):  # which may lie in the standard library's folder
            packages = place
        elif not file.startswith(STANDARD):
            own = place
    return own or packages


def _current_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was deleted
        return None


def creation_failure(error: BaseException, name: str, number: int | None = None) -> VoidrlError:
    """The error for an environment that raised when it was created."""
    # A wrong option, a missing simulator or a bad version comes with a clear message.
    if isinstance(error, gym.error.Error) or "unexpected keyword" in str(error):
        return ConfigError(f"environment {name!r} cannot be made: {error}")
    who = repr(name) if number is None else f"{number} ({name!r})"
    return EnvironmentFailedError(f"environment {who} {raised(error)} when it was created")
