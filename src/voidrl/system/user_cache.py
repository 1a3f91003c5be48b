"""The user's cache folder, for data that can be recomputed. Importing this module does not import torch."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from voidrl.system.machine import free_disk
from voidrl.system.units import human_bytes

MIN_FREE_BYTES = 200 * 10**6  # more than one config takes
UNUSED_DAYS = 30  # after which the folder of another version or processor is deleted


def root() -> Path:
    """The folder `voidrl` in `$XDG_CACHE_HOME`, by default `~/.cache`; an OSError if there is no home."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME") or ".")
    if chosen.is_absolute():  # the standard ignores relative paths
        return chosen / "voidrl"
    try:
        return Path.home().absolute() / ".cache" / "voidrl"
    except RuntimeError as error:
        raise FileNotFoundError(errno.ENOENT, "this user has no home folder") from error


def open_folder(path: Path) -> None:
    """Make a folder below `root()` from which code may be executed, and mark it as used.

    An OSError says why it is unusable: it is read-only, other users can write to it, or the disk is full.
    """
    folders = [folder for folder in (path, *path.parents) if folder.is_relative_to(root().parent)]
    for folder in reversed(folders):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=path) as file:
        file.write(b"voidrl")
        _require_private(folders, os.fstat(file.fileno()).st_uid)
    free = free_disk(path)
    if free is not None and free < MIN_FREE_BYTES:
        raise OSError(errno.ENOSPC, f"{human_bytes(free)} are free, less than {human_bytes(MIN_FREE_BYTES)}")
    os.utime(path)


def _require_private(folders: Sequence[Path], user: int) -> None:
    """Refuse folders in which other users could replace files; the last one may be shared.

    `user` owns files of this process, which on some file systems is not its own user.
    """
    for folder in folders:
        found, is_shared = folder.stat(), folder == folders[-1]
        if found.st_uid not in ((user, 0) if is_shared else (user,)):
            raise PermissionError(errno.EPERM, f"{folder} belongs to another user")
        by_group = found.st_mode & stat.S_IWGRP and found.st_gid != found.st_uid  # not the user's own group
        by_all = found.st_mode & stat.S_IWOTH
        is_sticky = found.st_mode & stat.S_ISVTX  # others cannot rename its files
        if (by_group or by_all) and not (is_shared and is_sticky):
            raise PermissionError(errno.EPERM, f"other users can write to {folder}")


def delete_unused(path: Path) -> None:
    """Delete sibling folders that have not been used for long."""
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
