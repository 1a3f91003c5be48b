"""Bytecode of packages: without it imports, and with them every start, take more than twice as long.

Importing this module does not import torch.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from importlib import metadata
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from voidrl import user_cache

NEVER, PLACE = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"  # Python's own variables


def keep() -> None:
    """Keep bytecode in the user's cache if Python does not keep that of torch, as in many containers.

    There packages are read-only, or `PYTHONDONTWRITEBYTECODE` keeps bytecode out of the image. Nothing
    changes with `python -B`, or if the user has chosen a place by `PYTHONPYCACHEPREFIX`.
    """
    if is_forbidden() or sys.pycache_prefix is not None or not obstacles():
        return
    try:
        place = folder()
        user_cache.open_folder(place)
        user_cache.delete_unused(place)
    except OSError:  # `voidrl doctor` says why
        return
    sys.pycache_prefix = os.environ[PLACE] = str(place)  # the latter for processes that are started
    sys.dont_write_bytecode = False
    os.environ.pop(NEVER, None)


def is_forbidden() -> bool:
    """Whether Python was started with `-B`."""
    return bool(sys.flags.dont_write_bytecode) and not os.environ.get(NEVER)


def root() -> Path:
    """The folder of all Python environments."""
    return user_cache.root() / "bytecode"


def folder() -> Path:
    """The folder of this Python and its packages: another environment may have the same paths."""
    digest = hashlib.sha256(sys.prefix.encode())
    with suppress(metadata.PackageNotFoundError):
        digest.update(metadata.version("torch").encode())
    return root() / f"{sys.implementation.cache_tag}-{digest.hexdigest()[:12]}"


def obstacles() -> list[str]:
    """The variables to change so that Python keeps the bytecode of torch; none if there is bytecode."""
    file = _bytecode_of_torch()
    if file is None or os.access(file, os.F_OK):
        return []
    nearest = next((parent for parent in file.parents if os.access(parent, os.F_OK)), file.parent)
    return [NEVER] * sys.dont_write_bytecode + [PLACE] * (not os.access(nearest, os.W_OK))


def _bytecode_of_torch() -> Path | None:
    """Where Python looks for it; None if there is no torch, or no bytecode at all."""
    try:
        torch = find_spec("torch")
        file = torch and torch.origin and cache_from_source(torch.origin)
    except (ImportError, ValueError, NotImplementedError):
        return None
    return Path(file).absolute() if file else None
