"""Locks on run folders and cells, which the kernel releases when their process ends, however it ends.

A lock belongs to an open file. The process of a cell inherits that file and keeps it through training and
evaluation; the environment workers that it forks close theirs, so that they cannot keep the lock alive.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
import warnings
from contextlib import suppress
from pathlib import Path

from voidrl.errors import RunFolderError, VoidrlWarning
from voidrl.system.files import open_regular, why_refused

RUN_LOCK = ".lock"
CELLS = ".cells"
MAX_SIGNATURE = 200  # characters
RETRIES, RETRY_SECONDS = 20, 0.01  # `is_held` takes the lock for a moment, which must not look like a run


def cell_lock_path(out: Path, folder: str) -> Path:
    """The lock of a cell, outside its run folder, which may not exist yet."""
    return out / CELLS / f"{folder}.lock"


def acquire(path: Path) -> int | None:
    """Return a file descriptor that holds the lock, or None while another process holds it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The file is never removed: two processes could then lock two different files.
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        why, remedy = why_refused(error, path.parent, "choose a folder open to writing")
        raise RunFolderError(f"cannot write to {path.parent} ({why}); {remedy}") from error
    for retries_left in reversed(range(RETRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not retries_left:
                os.close(descriptor)
                return None
            time.sleep(RETRY_SECONDS)
        except OSError as error:  # some network file systems have no locks
            message = f"cannot lock {path} ({error}); make sure that no other process works in its folder"
            warnings.warn(message, VoidrlWarning, stacklevel=2)
            break
    return descriptor


def release(descriptor: int) -> None:
    """Close this process's copy; the lock ends unless a child process has inherited it."""
    os.close(descriptor)


def unlock(descriptor: int) -> None:
    """End the lock and close it, even where forked workers still have the file open."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def adopt(descriptor: int) -> None:
    """Keep an inherited lock to the end of this process, sign it, and close it in every fork."""
    os.set_inheritable(descriptor, False)

    def close() -> None:
        with suppress(OSError):
            os.close(descriptor)

    os.register_at_fork(after_in_child=close)
    sign(descriptor)


def sign(descriptor: int) -> None:
    """Record the holder of the lock, for messages."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)


def holder(path: Path) -> str:
    """Return the last holder that signed the lock, for messages."""
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), encoding="utf-8", errors="replace") as file:
            return file.read(MAX_SIGNATURE).strip() or "unknown"
    except OSError:
        return "unknown"


def is_held(path: Path) -> bool | None:
    """Whether a process holds the lock now; None where the file system has no locks. Writes nothing."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
