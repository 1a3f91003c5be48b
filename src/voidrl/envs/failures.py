"""Sentences about environments that fail. Does not import torch."""

from __future__ import annotations

import sysconfig
import traceback
from contextlib import suppress
from pathlib import Path

import gymnasium as gym

from voidrl.errors import ConfigError, EnvironmentFailedError, VoidrlError, shown

KINDS = ("purelib", "platlib", "stdlib", "platstdlib")
LIBRARIES = (
    f"{Path(__file__).parents[1]}/",
    f"{Path(gym.__file__).parent}/",
    *(f"{sysconfig.get_path(kind)}/" for kind in KINDS),
    "<frozen",
)
"""How the file names of code begin that is not the user's."""


def raised(error: BaseException) -> str:
    """Phrase with the error that was raised, and the innermost line of the user's code."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(LIBRARIES):
            file = frame.filename
            with suppress(FileNotFoundError):  # the current folder was deleted
                file = file.removeprefix(f"{Path.cwd()}/")
            return f"raised {shown(error)} in {file}:{frame.lineno}"
    return f"raised {shown(error)}"


def creation_failure(error: BaseException, name: str, number: int | None = None) -> VoidrlError:
    """The error for an environment that raised when it was created."""
    # A wrong option, a missing simulator or a bad version comes with a clear message.
    if isinstance(error, gym.error.Error) or "unexpected keyword" in str(error):
        return ConfigError(f"environment {name!r} cannot be made: {error}")
    who = repr(name) if number is None else f"{number} ({name!r})"
    return EnvironmentFailedError(f"environment {who} {raised(error)} when it was created")
