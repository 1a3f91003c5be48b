"""Bytecode of packages: without it imports, and with them every start, take more than twice as long.

Importing this module does not import torch.
"""

from __future__ import annotations

import os
import sys
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from voidrl.files import user_cache
from voidrl.machine import existing

NEVER, PLACE = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"  # Python's own variables


def keep() -> None:
    """Let this process and those it starts keep bytecode in the user's cache, if torch's cannot be kept.

    That is so in many containers: packages are read-only, or Python was told not to write bytecode, to keep
    it out of the image. A place that the user has chosen by `PYTHONPYCACHEPREFIX` stays.
    """
    if sys.pycache_prefix is not None or not obstacles():
        return
    try:
        folder = user_cache() / "bytecode"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):  # it cannot be written, or there is no home: `voidrl doctor` says so
        return
    sys.pycache_prefix = os.environ[PLACE] = str(folder)
    sys.dont_write_bytecode = False
    os.environ.pop(NEVER, None)


def obstacles() -> list[str]:
    """What keeps Python from keeping torch's bytecode: the variables to change; none if there is bytecode."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None or (kept := Path(cache_from_source(torch.origin))).exists():
        return []
    is_writable = os.access(existing(kept.parent), os.W_OK)
    return [NEVER] * sys.dont_write_bytecode + [PLACE] * (not is_writable)
