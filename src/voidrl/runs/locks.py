"""One process at a time for a cell: a lock that the kernel gives back when its process ends, however it ends.

The lock belongs to an open file, which the process that does the cell inherits and keeps to its end, through
training and evaluation. Its own workers must not keep it alive: they close it as they are forked.
"""

from __future__ import annotations

import os
import socket
import warnings
from contextlib import suppress
from pathlib import Path

from voidrl.errors import RunFolderError, VoidrlWarning

FOLDER = ".cells"


def lock_path(out: Path, folder: str) -> Path:
    """Beside the runs: a folder that holds anything but a run would be refused."""
    return out / FOLDER / f"{folder}.lock"


def take(path: Path) -> int | None:
    """A descriptor that holds the lock, or None while another process holds it."""
    import fcntl

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The file stays when the lock goes: removing it would let two processes lock two different files.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise RunFolderError(
            f"cannot write to {path.parent} ({error.strerror or error}); choose another --out"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:  # some network file systems have no locks
        message = f"cannot lock {path} ({error}); make sure that no other process works in its folder"
        warnings.warn(message, VoidrlWarning, stacklevel=2)
    return descriptor


def release(descriptor: int) -> None:
    """Give it back, unless a child process has it by now."""
    os.close(descriptor)


def keep(descriptor: int) -> None:
    """In the process that does the cell: write down who it is, and let no fork of it hold the lock."""
    os.set_inheritable(descriptor, False)

    def close() -> None:
        with suppress(OSError):
            os.close(descriptor)

    os.register_at_fork(after_in_child=close)
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)


def holder(path: Path) -> str:
    """Who wrote itself down last."""
    try:
        return path.read_text(encoding="utf-8").strip() or "another process"
    except OSError:
        return "another process"


def is_held(path: Path) -> bool:
    """Whether a process holds it now; writes nothing."""
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
