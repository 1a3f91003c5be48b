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
    is_forbidden = sys.flags.dont_write_bytecode and not os.environ.get(NEVER)
    if is_forbidden or sys.pycache_prefix is not None or not obstacles():
        return
    try:
        folder = root() / _environment()
        user_cache.open_folder(folder)
        user_cache.delete_unused(folder)
    except (OSError, RuntimeError):  # RuntimeError: there is no home. `voidrl doctor` warns
        return
    sys.pycache_prefix = os.environ[PLACE] = str(folder)  # the latter for processes that are started
    sys.dont_write_bytecode = False
    os.environ.pop(NEVER, None)


def root() -> Path:
    """The folder of all Python environments."""
    return user_cache.root() / "bytecode"


def obstacles() -> list[str]:
    """The variables to change so that Python keeps the bytecode of torch; none if there is bytecode."""
    file = _bytecode_of_torch()
    if file is None or os.access(file, os.F_OK):
        return []
    folder = next((parent for parent in file.parents if os.access(parent, os.F_OK)), file.parent)
    return [NEVER] * sys.dont_write_bytecode + [PLACE] * (not os.access(folder, os.W_OK))


def _bytecode_of_torch() -> Path | None:
    """Where Python looks for it; None if there is no torch, or no bytecode at all."""
    try:
        torch = find_spec("torch")
        file = torch and torch.origin and cache_from_source(torch.origin)
    except (ImportError, ValueError, NotImplementedError):
        return None
    return Path(file).absolute() if file else None


def _environment() -> str:
    """A name for this Python and its packages: another environment may have the same paths."""
    digest = hashlib.sha256(sys.prefix.encode())
    with suppress(metadata.PackageNotFoundError):
        digest.update(metadata.version("torch").encode())
    return f"{sys.implementation.cache_tag}-{digest.hexdigest()[:12]}"
