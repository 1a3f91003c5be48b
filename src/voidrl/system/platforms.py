"""What not every operating system has: file locks, signals, forks. Linux is tested, others are not.

Does not import torch.
"""

from __future__ import annotations

import os
import signal
import sys

from voidrl.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCKED_BYTE = 2**30  # of a file that stays short: where Windows locks a byte, nobody else may read it
CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
SIGHUP: int | None = getattr(signal, "SIGHUP", None)
"""A closed terminal; None where there is no such signal."""
STOP_SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, *(() if SIGHUP is None else (SIGHUP,)))
SIGPIPE: int = getattr(signal, "SIGPIPE", 13)


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file; BlockingIOError while another process has it, OSError where there are no locks."""
    if fcntl is not None:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        return
    import msvcrt

    os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except OSError as error:
        raise BlockingIOError(error.errno, "another process has the lock") from error


def unlock(descriptor: int) -> None:
    """End the lock of this open file."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return
    import msvcrt

    os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
    msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined,unused-ignore]


def overwrite(descriptor: int, content: bytes) -> None:
    """Make this the content of an open file."""
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, content)


def can_fork() -> bool:
    """Whether processes can be forked, and so inherit pipes and locks."""
    return hasattr(os, "fork") and hasattr(signal, "pthread_sigmask")


def require_workers(what: str, remedy: str) -> None:
    """Refuse what needs worker processes where there are none."""
    if not can_fork():
        raise ConfigError(f"{what} cannot be used on {sys.platform}, which has no fork(): {remedy}")
