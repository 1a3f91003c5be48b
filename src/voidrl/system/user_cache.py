"""The user's cache folder, for data that can be recomputed. Importing this module does not import torch."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

UNUSED_DAYS = 30  # after which the folder of another version or processor is deleted


def root() -> Path:
    """The folder `voidrl` in `$XDG_CACHE_HOME`, by default `~/.cache`; an OSError if there is no home."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME") or ".")
    if chosen.is_absolute():  # the standard ignores relative paths
        return chosen / "voidrl"
    try:
        return Path.home().absolute() / ".cache" / "voidrl"
    except RuntimeError as error:
        raise FileNotFoundError("this user has no home folder") from error


def open_folder(path: Path) -> None:
    """Make a folder below `root()`, and mark it as used; an OSError says why it is unusable."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=path) as file:
        file.write(b"voidrl")
    os.utime(path)


def delete_unused(path: Path) -> None:
    """Delete sibling folders that have not been used for long."""
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for other in path.parent.iterdir():
        with suppress(OSError):
            if other != path and other.stat().st_mtime < oldest:
                shutil.rmtree(other)
