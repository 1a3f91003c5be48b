"""The user's cache folder, for what can be made again. Importing this module does not import torch."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from voidrl.machine import free_disk
from voidrl.units import human_bytes

MIN_FREE_BYTES = 200 * 10**6  # more than one config or environment takes
UNUSED_DAYS = 30  # after which the folder of another version or processor is deleted


def root() -> Path:
    """The folder `voidrl` in `$XDG_CACHE_HOME`, by default `~/.cache`."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME") or ".")
    home = chosen if chosen.is_absolute() else Path.home() / ".cache"  # the standard ignores relative paths
    return home.absolute() / "voidrl"


def open_folder(path: Path) -> None:
    """Make a folder from which code may be executed, and mark it as used.

    An OSError says why it cannot be used: it is read-only, other users can write to it, or the disk is full.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = path.stat()
    with tempfile.TemporaryFile(dir=path) as file:
        file.write(b"voidrl")
        # A file system may show another owner for all that this user writes.
        ours = os.name == "nt" or os.fstat(file.fileno()).st_uid == found.st_uid
    if not ours or (os.name != "nt" and found.st_mode & 0o022):
        raise PermissionError(errno.EPERM, f"other users can write to {path}")
    free = free_disk(path)
    if free is not None and free < MIN_FREE_BYTES:
        raise OSError(errno.ENOSPC, f"{human_bytes(free)} are free, less than {human_bytes(MIN_FREE_BYTES)}")
    os.utime(path)


def delete_unused(path: Path) -> None:
    """Delete the folders next to this one that have not been used for long."""
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for other in path.parent.iterdir():
        with suppress(OSError):
            if other != path and other.stat().st_mtime < oldest:
                shutil.rmtree(other)


def stored_bytes(folder: Path) -> int:
    """The size of all files in a folder; 0 if there is none."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                total += (Path(parent) / name).lstat().st_size
    return total
