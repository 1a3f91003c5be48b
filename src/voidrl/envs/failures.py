"""Sentences about environments that fail. Does not import torch."""

from __future__ import annotations

import errno
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import gymnasium as gym

from voidrl.errors import ConfigError, EnvironmentFailedError, VoidrlError, shown
from voidrl.system.files import OPEN_FILES_REMEDY

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
    too_many = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    remedy = f" (this process has too many files open: {OPEN_FILES_REMEDY})" * too_many
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(LIBRARIES):
            file = frame.filename
            with suppress(FileNotFoundError):  # the current folder was deleted
                file = file.removeprefix(f"{Path.cwd()}/")
            return f"raised {shown(error)} in {file}:{frame.lineno}{remedy}"
    return f"raised {shown(error)}{remedy}"


@contextmanager
def torch_untouched(name: str) -> Iterator[None]:
    """Restore what the code of an environment changes in torch, on which the agent's updates depend."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    inference = torch.is_inference_mode_enabled()
    try:
        yield
    finally:
        if torch.is_grad_enabled() != grad:
            torch.set_grad_enabled(grad)
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
    if torch.is_inference_mode_enabled() != inference:  # only its own object can leave it
        raise EnvironmentFailedError(
            f"environment {name!r} entered torch.inference_mode() and did not leave it: use it in a `with`"
        )


@contextmanager
def creating(name: str, number: int | None = None) -> Iterator[None]:
    """Name the environment in errors of its constructor; `number` is that of a separate one."""
    try:
        with torch_untouched(name):
            yield
    except (VoidrlError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too: it is not the environment's to end the run
        # A wrong option, a missing simulator or a bad version comes with a clear message.
        if isinstance(error, gym.error.Error) or "unexpected keyword" in str(error):
            raise ConfigError(f"environment {name!r} cannot be made: {error}") from error
        who = repr(name) if number is None else f"{number} ({name!r})"
        raise EnvironmentFailedError(f"environment {who} {raised(error)} when it was created") from error
