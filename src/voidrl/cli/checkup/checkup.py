"""Findings about this machine, and the commands that fix problems. Does not import torch.

Components that may crash or hang are tried in separate processes (`voidrl.cli.checkup.probes`), all at once.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from voidrl import __version__
from voidrl.cli.checkup import probes
from voidrl.cli.checkup.probes import COMPONENTS, Finding, first_line, problem
from voidrl.engine import cache
from voidrl.presets.presets import PROTOCOLS, replay_bytes
from voidrl.system import machine, user_cache
from voidrl.system.machine import GB
from voidrl.system.units import human_bytes

TIMEOUT_S = 60.0  # for all processes; they take seconds if nothing hangs
MIN_DISK = GB // 2  # below this no run is worth starting
MIN_MEMORY = 2 * GB
CHECKPOINTS = 3  # on the disk at the worst moment: two are kept while a third is written
NAMES = (
    "Python",
    "voidrl",
    "CPU",
    "memory",
    "disk",
    "compile cache",
    *COMPONENTS,
)  # in the order of the report


def examine(folder: Path, timeout_s: float = TIMEOUT_S) -> Iterator[Finding]:
    """Yield all findings in order, each as soon as it is known; `folder` is where runs would go."""
    checks: dict[str, Callable[[], Finding]] = {
        "Python": _python,
        "voidrl": _package,
        "CPU": _cpu,
        "memory": _memory,
        "disk": lambda: _disk(folder),
        "compile cache": _compile_cache,
    }
    deadline = time.monotonic() + timeout_s
    processes = {group: _start(group) for group in probes.GROUPS}
    try:
        for name, check in checks.items():
            try:
                yield check()
            except Exception as error:
                yield Finding(name, "warn", f"could not be checked: {first_line(error)}")
        for group, (process, output) in processes.items():
            yield from _collect(group, process, output, deadline)
    finally:  # also when the caller stops early
        for process, output in processes.values():
            _end(process)
            output.close()


def _start(group: str) -> tuple[subprocess.Popen[bytes], IO[str]]:
    output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - a file never blocks the process
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "voidrl.cli.checkup.probes", group],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # so that its children can be ended with it
    )
    return process, output


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
        process.wait()


def _collect(group: str, process: subprocess.Popen[bytes], output: IO[str], deadline: float) -> list[Finding]:
    """Return the findings of a process; one that crashed or hung adds a finding about its last attempt."""
    hung = False
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        hung = True
        _end(process)
    output.seek(0)
    marked = (line.partition(probes.MARK)[2] for line in output)
    findings = [Finding(**json.loads(found)) for found in marked if found.endswith("}\n")]
    missing = [name for name in probes.GROUPS[group] if name not in {finding.name for finding in findings}]
    code = process.returncode
    if code == 0 or not missing:
        return findings
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    found = "did not answer in time" if hung else f"its process ended with {how}"
    fix = f"see why: {Path(sys.executable).name} -m voidrl.cli.checkup.probes {group}"
    return [*findings, problem(missing[0], found, fix)]


# In this process


def _python() -> Finding:
    return Finding("Python", "ok", f"{platform.python_version()}, {sys.executable}")


def _package() -> Finding:
    found = f"{__version__}, {Path(__file__).parents[2]}"
    try:
        for requirement in probes.requirements():
            if requirement.marker is None:  # markers select extras
                probes.installed(requirement.name)
    except probes.UnusableError as error:
        return problem("voidrl", f"{found}: {error.args[0]}", error.args[1])
    return Finding("voidrl", "ok", found)


def _cpu() -> Finding:
    cores = machine.cores()
    limit = "" if cores.usable >= cores.total else f", of which this process may use {cores.usable:g}"
    found = f"{cores.total} core{'s' * (cores.total > 1)}{limit}, {platform.machine()}"
    if cores.usable >= 2:
        return Finding("CPU", "ok", found)
    return Finding("CPU", "warn", f"{found}: environments and updates take turns", "use two or more")


def _memory() -> Finding:
    memory = machine.memory()
    total = memory.total if memory.limit is None else memory.limit
    limit = "" if memory.limit is None else f" (container limit; the machine has {memory.total / GB:.1f})"
    found = f"{memory.available / GB:.1f} of {total / GB:.1f} GB free{limit}"
    if memory.available < MIN_MEMORY:
        fix = "end other programs, or give the container more"
        return Finding("memory", "warn", f"{found}: very little", fix)
    large = _too_large(int(0.9 * memory.available))
    if not large:
        return Finding("memory", "ok", found)
    fix = "lower --replay.capacity-steps, unless the replay fits on the GPU"
    return Finding("memory", "warn", f"{found}: less than the replay of {large}", fix)


def _disk(folder: Path) -> Finding:
    """Check that runs can be written to a folder, and that their checkpoints fit."""
    parent = machine.existing(folder)
    space = machine.disk(folder)
    found = f"unknown space in {parent}, whose file system does not say"
    if space is not None:
        found = f"{space.free / GB:.1f} of {space.total / GB:.0f} GB free in {parent}"
    elsewhere = "free some space, or choose another disk with --out DIR"
    try:
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(b"voidrl")
    except OSError as error:
        found = f"{parent} cannot be written ({error.strerror or error})"
        return Finding("disk", "fail", found, "choose a writable folder with --out DIR")
    if space is not None and space.free < MIN_DISK:
        return Finding("disk", "fail", f"{found}: too little", elsewhere)
    large = _too_large(space.free, CHECKPOINTS) if space is not None else ""
    if not large:
        return Finding("disk", "ok", found)
    fix = f"{elsewhere}, or lower --replay.capacity-steps"
    return Finding("disk", "warn", f"{found}: less than the checkpoints of {large}", fix)


def _compile_cache() -> Finding:
    """Say where compiled code is kept, how much there is, and how to delete it."""
    if chosen := os.environ.get(cache.VARIABLE):
        return Finding("compile cache", "ok", f"{chosen}, set by {cache.VARIABLE}")
    try:
        folder = cache.root()
        user_cache.open_folder(folder)
    except OSError as error:
        why = f"{error.filename}: " if error.filename else ""
        why += error.strerror or str(error)
        found = f"{why}: every start with --engine compile takes about a minute"
        fix = "set XDG_CACHE_HOME to a folder that only you can write"
        return Finding("compile cache", "warn", found, fix)
    size = user_cache.stored_bytes(folder)
    remove = f"; to empty it: rm -r {shlex.quote(str(folder))}" if size else ""
    return Finding("compile cache", "ok", f"{human_bytes(size)} in {folder}{remove}")


def _too_large(free: int, copies: int = 1) -> str:
    """List the protocols whose replay does not fit, `copies` at a time, smallest first."""
    sizes = sorted((copies * replay_bytes(name), name) for name in PROTOCOLS)
    return ", ".join(f"{name} ({size / GB:.1f} GB)" for size, name in sizes if size > free)


# The conclusion


def is_ready(findings: Iterable[Finding]) -> bool:
    """Whether everything essential works."""
    return all(finding.state != "fail" for finding in findings)


def summary(findings: Sequence[Finding]) -> str:
    """Summarize in a sentence what this machine can do now."""
    failed = [finding for finding in findings if finding.state == "fail"]
    if failed:
        names = " and ".join(finding.name for finding in failed)
        return f"Not ready, because of {names}. First: {failed[0].fix}"
    works = {finding.name for finding in findings if finding.state == "ok"}
    missing = [finding.name for finding in findings if finding.name in COMPONENTS and finding.state != "ok"]
    rest = f"; not available: {', '.join(missing)}" if missing else ""
    return f"Ready to train on the {'GPU' if 'CUDA' in works else 'CPU'}{rest}."
