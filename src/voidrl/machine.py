"""What a machine, or a container on it, gives to a run, and what presets take of it. Imports no torch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from voidrl.config import ReplayConfig
from voidrl.protocols.presets import PRESETS

GB = 10**9
ROOT = Path("/")

# One frame as it is stored, and what stands beside it. Of states: the widest of URLB's, a quadruped's.
SLOT_BYTES = {
    "maze": 3 * 39 * 39,
    "atari": 84 * 84 + 25,
    "dmc": 3 * 84 * 84 + 65,
    "urlb-pixels": 3 * 84 * 84 + 65,
    "urlb-states": 4 * 78 + 65,
}


@dataclass(frozen=True)
class Memory:
    """In bytes."""

    total: int
    available: int
    """What can still be taken, of the machine and of the container."""
    limit: int | None
    """The container's, where it is less than the machine's."""


@dataclass(frozen=True)
class Cores:
    """Of the CPU."""

    total: int
    usable: float
    """By this process: a container may be given two and a half of them."""


def memory(root: Path = ROOT) -> Memory:
    """Of this machine; `root` is where its files lie."""
    total, available = _physical(root)
    limit, left = total, available
    for folder in _groups("memory", root):
        allowed = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        if allowed is not None and allowed < total:
            limit = min(limit, allowed)
            left = min(left, allowed - used + _reclaimable(folder))
    return Memory(total, max(0, min(left, limit)), limit if limit < total else None)


def cores(root: Path = ROOT) -> Cores:
    """Of this machine; `root` is where its files lie."""
    total = os.cpu_count() or 1
    usable = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total)
    for folder in _groups("cpu", root):
        words = (_text(folder / "cpu.max") or "").split()
        quota = int(words[0]) if words and words[0].isdigit() else _number(folder / "cpu.cfs_quota_us")
        period = int(words[1]) if len(words) > 1 else _number(folder / "cpu.cfs_period_us")
        if quota and period:
            usable = min(usable, quota / period)
    return Cores(total, usable)


def whole_cores() -> int:
    """CPU cores that this process may use, one at least."""
    return max(1, int(cores().usable))


def replay_bytes(preset: str) -> int:
    """Memory that the replay of a preset takes once it is full, roughly."""
    values = PRESETS[preset].values
    slot = SLOT_BYTES[max((name for name in SLOT_BYTES if preset.startswith(name)), key=len, default="dmc")]
    capacity: int = values.get("replay", {}).get("capacity_steps", ReplayConfig().capacity_steps)
    return capacity * slot


def too_large(room: int, copies: int = 1) -> dict[str, int]:
    """The presets of which so many replays do not fit, and the bytes that they would take, smallest first."""
    needed = {name: copies * replay_bytes(name) for name in PRESETS}
    return {name: size for name, size in sorted(needed.items(), key=lambda item: item[1]) if size > room}


def existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _physical(root: Path) -> tuple[int, int]:
    """Total and available."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB", _text(root / "proc/meminfo") or "", re.MULTILINE))
    kilobytes = [int(found[name]) for name in ("MemTotal", "MemAvailable") if name in found]
    return (kilobytes[0] * 1024, kilobytes[1] * 1024) if len(kilobytes) == 2 else (total, total)


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The control groups that this process is in, each with those around it, of either version."""
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if names else "")
        group = mount / path.strip("/")
        yield from (group, *(folder for folder in group.parents if folder.is_relative_to(mount)))


def _reclaimable(folder: Path) -> int:
    """Pages of files, which the system gives back when memory gets short."""
    found = re.search(r"^(?:total_)?inactive_file (\d+)", _text(folder / "memory.stat") or "", re.MULTILINE)
    return int(found[1]) if found else 0


def _number(path: Path) -> int | None:
    text = (_text(path) or "").strip()
    return int(text) if text.isdigit() else None  # "max" and −1 say that there is no limit


def _text(path: Path) -> str | None:
    with suppress(OSError):
        return path.read_text()
    return None
