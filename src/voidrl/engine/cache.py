"""The folder in which torch.compile keeps its results, so that the same config starts quickly again.

torch's own place is a temporary folder, which a reboot empties. Here it is the user's cache folder, with one
folder for each kind of processor and each version of torch, Triton and our operators. In there torch finds
compiled code by a hash of what it was compiled from, and writes files atomically: runs can share it.

Importing this module does not import torch.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from voidrl.system import user_cache
from voidrl.system.machine import whole_cores

if TYPE_CHECKING:
    import torch

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # torch reads it whenever it compiles; Triton's cache is inside
COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
PACKAGE = Path(__file__).parents[1]


def open_cache(device: torch.device, say: Callable[[str], None]) -> Path | None:
    """Let torch compile into the cache folder of this version and processor, which is returned.

    None if the user has chosen another folder by `TORCHINDUCTOR_CACHE_DIR`, or
    if ours cannot be written: then torch takes its temporary one, and `say` is given the reason.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    try:
        path = root() / _version(device)
        # torch sets the variable to its default when it compiles something before us.
        chosen = os.environ.get(VARIABLE, default_cache_dir())
        if path.parent not in Path(chosen).parents and chosen != default_cache_dir():
            return None
        user_cache.open_folder(path)
    except OSError as error:
        os.environ.pop(VARIABLE, None)
        reason = error.strerror or str(error)
        say(
            f"compiled code is not kept for the next start: the cache folder cannot be used ({reason}); "
            f"set XDG_CACHE_HOME or {VARIABLE} to a folder that can be written"
        )
        return None
    user_cache.delete_unused(path)
    os.environ[VARIABLE] = str(path)
    return path


def start_workers() -> None:
    """Start the processes that compile kernels, without waiting for them.

    torch starts them when it first compiles, and compiles one kernel after the other until they are ready,
    which takes seconds. Here they start while the environments play the first steps.
    """
    from torch._inductor import config
    from torch._inductor.async_compile import maybe_warm_pool

    if COMPILE_THREADS not in os.environ:  # torch starts one for each core of the machine
        config.compile_threads = min(32, whole_cores())
    maybe_warm_pool()


def root() -> Path:
    """The folder of all versions."""
    return user_cache.root() / "compiled"


def _version(device: torch.device) -> str:
    """A name for everything on which compiled code depends and of which torch's own hashes do not know."""
    import torch

    on_gpu = device.type == "cuda"
    processor = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    digest = hashlib.sha256(b"" if on_gpu else _cpu_features())  # code for CPUs uses all that this one has
    with suppress(metadata.PackageNotFoundError):
        digest.update(metadata.version("triton").encode())
    # The gradient and the shapes of an operator of ours are compiled in, but its source is not hashed.
    for file in sorted(PACKAGE.rglob("*.py")):
        source = file.read_bytes()
        if re.search(rb"^@torch\.library", source, re.MULTILINE):
            digest.update(source)
    name = f"torch-{torch.__version__}-{processor}-{digest.hexdigest()[:12]}"
    return re.sub(r"[^\w.+-]+", "-", name)


def _cpu_features() -> bytes:
    try:
        found = re.search(rb"^(flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_bytes(), re.MULTILINE)
    except OSError:
        return b""
    return b"" if found is None else found[2]
