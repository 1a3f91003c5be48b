"""The memory, disk space and cores that this process may use, in a container too. Does not import torch."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

GB = 10**9
ROOT = Path("/")
CORES = "VOIDRL_CORES"
"""The variable with the CPU cores of a process, as a user or an experiment sets it."""


class Memory(NamedTuple):
    """Memory in bytes."""

    total: int
    available: int
    """Bytes that this process can still allocate, on the machine and in its container."""
    limit: int | None
    """The container's limit, if it is below the machine's total."""


class Cores(NamedTuple):
    """CPU cores."""

    total: int
    usable: float
    """Cores that this process may use; a container may have a fraction such as 2.5."""


def memory(root: Path = ROOT) -> Memory:
    """Return the memory of this machine; tests pass another `root` for its files."""
    kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if "MemAvailable" in kilobytes:
        total = int(kilobytes["MemTotal"]) * 1024
    limit, left = total, int(kilobytes.get("MemAvailable", total // 1024)) * 1024
    for folder in _groups(root):
        allowed, used = _number(folder / "memory.max"), _number(folder / "memory.current") or 0
        if allowed is not None and allowed < total:
            limit = min(limit, allowed)
            # The kernel frees cached files when memory runs short.
            found = re.search(r"^inactive_file (\d+)", _text(folder / "memory.stat"), re.MULTILINE)
            left = min(left, allowed - used + (int(found[1]) if found else 0))
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]  # `ulimit -v`
    words = _text(root / "proc/self/statm").split()
    if address_space != resource.RLIM_INFINITY and words:
        left = min(left, address_space - int(words[0]) * os.sysconf("SC_PAGE_SIZE"))
    return Memory(total, max(0, min(left, limit)), limit if limit < total else None)


def free_disk(folder: Path) -> int | None:
    """Return the free bytes of the disk of a folder, which need not exist yet; None if that is unknown."""
    try:
        usage = shutil.disk_usage(existing(folder))
    except OSError:
        return None
    return usage.free if usage.total else None


def cores(root: Path = ROOT) -> Cores:
    """Return the cores of this machine; tests pass another `root` for its files."""
    total = os.cpu_count() or 1
    usable = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total)  # macOS
    for folder in _groups(root):
        words = _text(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            usable = min(usable, int(words[0]) / int(words[1]))
    return Cores(total, usable)


def usable_cores() -> int:
    """Return the whole CPU cores that this process may use, at least one."""
    return max(1, int(cores().usable))


def whole_cores(runs: int = 1) -> int:
    """Return the share of each of so many runs of this process in the machine's CPU cores, at least one.

    `VOIDRL_CORES` or SLURM's cores per task say how many this process has. Otherwise it shares those that it
    may use with the other runs of this user on this machine.
    """
    usable = usable_cores()
    given = os.environ.get(CORES) or os.environ.get("SLURM_CPUS_PER_TASK") or ""
    if given.isdigit() and int(given) > 0:
        return max(1, min(usable, int(given)) // runs)
    return max(1, usable // (runs + _runs_of_others()))


@contextmanager
def claim_cores(runs: int = 1) -> Iterator[None]:
    """Count as so many runs in other processes that divide the cores; a process given its share does not."""
    if os.environ.get(CORES):
        yield
        return
    path = _claims() / f"{os.getpid()}-{uuid.uuid4().hex}"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        file = path.open("x")
    except OSError:
        yield  # nobody will know
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # ends with this process
        file.write(str(runs))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _claims() -> Path:
    return Path(tempfile.gettempdir(), f"voidrl-cores-{os.getuid()}")


def _runs_of_others() -> int:
    """The runs that other processes claim cores for; what killed ones left is removed."""
    runs = 0
    for path in _claims().glob("*"):
        if path.name.startswith(f"{os.getpid()}-"):
            continue
        with suppress(OSError, ValueError), path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                path.unlink()
            except BlockingIOError:
                runs += int(file.read() or 1)
    return runs


def existing(path: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _groups(root: Path) -> Iterator[Path]:
    """Yield the control group (v2) of this process, followed by its parents."""
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            group = mount / line[3:].strip("/")
            yield from (group, *(folder for folder in group.parents if folder.is_relative_to(mount)))


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None  # "max" and -1 mean no limit


def _text(path: Path) -> str:
    """The text of a file, or none."""
    with suppress(OSError):
        return path.read_text()
    return ""
