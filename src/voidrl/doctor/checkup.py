"""What works on this machine, what does not, and the one command that mends it. Imports no torch itself.

What may crash or hang is tried in processes of their own (`doctor_probes`), all at once.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from voidrl import __version__, machine
from voidrl.doctor.probes import (
    ESSENTIAL,
    MARK,
    PROBES,
    Finding,
    State,
    first_line,
    fits,
    install,
    wanted_version,
)
from voidrl.machine import GB
from voidrl.protocols.memory import presets_larger_than

TIMEOUT_S = 60.0  # for each process; all of them together take seconds where nothing hangs
LEAST_PYTHON = (3, 11)
LEAST_FREE = GB // 2  # below this nothing is worth starting
LEAST_MEMORY = 2 * GB
LEAST_FILES = 512
LEAST_SHARED = 16 * 10**6
CHECKPOINTS = 3  # that lie on the disk at the worst moment: two are kept while a third is written
SHARED = Path("/dev/shm")
NAMES = (
    *("Python", "voidrl", "CPU", "memory", "limits", "disk", "folder"),
    *(name for names in PROBES.values() for name in names),
)
"""All that can be found, in the order in which it is shown."""


def examine(folder: Path, timeout_s: float = TIMEOUT_S) -> Iterator[Finding]:
    """Everything in order, each finding as soon as it is there; `folder` is where runs would go."""
    checks: dict[str, Callable[[], Finding]] = {
        "Python": _python,
        "voidrl": _package,
        "CPU": _cpu,
        "memory": _memory,
        "limits": _limits,
        "disk": lambda: _disk(folder),
        "folder": lambda: _folder(folder),
    }
    with ThreadPoolExecutor(len(PROBES)) as pool:
        processes = {probe: _start(probe) for probe in PROBES}
        try:
            answers = [pool.submit(_await, probe, process, timeout_s) for probe, process in processes.items()]
            for name, check in checks.items():
                try:
                    yield check()
                except Exception as error:
                    yield Finding(name, "warn", f"could not be looked at: {first_line(error)}")
            for answer in answers:
                yield from answer.result()
        finally:  # also when nobody waits for the rest
            for process in processes.values():
                _end(process)


# In processes of their own


def _start(probe: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "voidrl.doctor.probes", probe],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # so that what it starts can be ended with it
    )


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _await(probe: str, process: subprocess.Popen[str], timeout_s: float) -> list[Finding]:
    """What a probe found, and what became of it if it did not come to its end."""
    try:
        said, complaint = process.communicate(timeout=timeout_s)
        hung = False
    except subprocess.TimeoutExpired:
        _end(process)
        said, complaint = process.communicate()
        hung = True
    findings: list[Finding] = []
    begun = PROBES[probe][0]
    for line in said.splitlines(keepends=True):
        if line.startswith(MARK) and line.endswith("\n"):  # not one that was cut off
            told = json.loads(line.removeprefix(MARK))
            if "begun" in told:
                begun = told["begun"]
            else:
                findings.append(Finding(**told))
    if begun in {finding.name for finding in findings}:  # if it crashed, then after all was said
        return findings
    worst: State = "fail" if begun in ESSENTIAL else "warn"
    if hung:
        look = f"{Path(sys.executable).name} -m voidrl.doctor.probes {probe}"
        return [*findings, Finding(begun, worst, f"no answer for {timeout_s:g} s", f"see why: {look}")]
    code = process.returncode
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
    last = complaint.strip().splitlines()[-1:] if code > 0 else []
    found = f"its process was ended {how}" + "".join(f": {line}" for line in last)
    return [*findings, Finding(begun, worst, found, install(begun))]


# In this one


def _python() -> Finding:
    found = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info >= LEAST_PYTHON:
        return Finding("Python", "ok", found)
    least = ".".join(map(str, LEAST_PYTHON))
    return Finding(
        "Python", "fail", f"{found}: expected {least} or newer", f"conda create -n voidrl python={least}"
    )


def _package() -> Finding:
    """The version of voidrl, and whether what it stands on and has no line of its own is there."""
    found = f"{__version__}, {Path(__file__).parent}"
    try:
        required = importlib.metadata.requires("voidrl") or []
    except importlib.metadata.PackageNotFoundError:
        return Finding("voidrl", "ok", f"{found}, not installed but on the path")
    own = ("torch", "gymnasium", "tensorboard")
    for line in required:
        package = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        if ";" in line or package in own:  # behind the semicolon stands an extra
            continue
        wanted = wanted_version(package)
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        if not version or not fits(version, wanted):
            why = f"{package} {version} was not tried with it" if version else f"{package} is not installed"
            return Finding("voidrl", "fail", f"{found}: {why}", f"pip install '{package}{wanted}'")
    return Finding("voidrl", "ok", found)


def _cpu() -> Finding:
    cores = machine.cores()
    given = "" if cores.usable >= cores.total else f", of which this process may use {cores.usable:g}"
    found = f"{_count(cores.total, 'core')}{given}, {platform.machine()}"
    if cores.usable >= 2:
        return Finding("CPU", "ok", found)
    return Finding(
        "CPU", "warn", f"{found}: environments and updates wait for each other", "take two or more"
    )


def _memory() -> Finding:
    memory = machine.memory()
    limit = "" if memory.limit is None else f" (the container's; the machine has {memory.total / GB:.1f})"
    total = memory.total if memory.limit is None else memory.limit
    found = f"{memory.available / GB:.1f} of {total / GB:.1f} GB free{limit}"
    large = presets_larger_than(int(0.9 * memory.available))
    if memory.available < LEAST_MEMORY:
        return Finding(
            "memory", "warn", f"{found}: very little", "end other programs, or give the container more"
        )
    if not large:
        return Finding("memory", "ok", found)
    fix = "lower it by --replay.capacity-steps, unless it fits on the GPU"
    return Finding("memory", "warn", f"{found}: less than the replay of {_sizes(large)}", fix)


def _limits() -> Finding:
    """What a shell or a container may forbid."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    address, _ = resource.getrlimit(resource.RLIMIT_AS)
    open_files = "any number of" if files == resource.RLIM_INFINITY else str(files)
    if files != resource.RLIM_INFINITY and files < LEAST_FILES:
        wanted = 4096 if most == resource.RLIM_INFINITY else min(4096, most)
        return Finding(
            "limits", "warn", f"{open_files} open files: few for many workers", f"ulimit -n {wanted}"
        )
    if address != resource.RLIM_INFINITY:
        return Finding(
            "limits", "warn", f"{address / GB:.0f} GB of addresses: CUDA takes more", "ulimit -v unlimited"
        )
    if SHARED.is_dir() and (free := shutil.disk_usage(SHARED).free) < LEAST_SHARED:
        found = f"{free / 10**6:.0f} MB free in {SHARED}: little for workers"
        return Finding("limits", "warn", found, "docker run --shm-size=1g …")
    return Finding("limits", "ok", f"{open_files} open files")


def _disk(folder: Path) -> Finding:
    there = machine.existing(folder)
    usage = shutil.disk_usage(there)
    found = f"{usage.free / GB:.1f} of {usage.total / GB:.0f} GB free in {there}"
    elsewhere = "free some, or give runs another disk by --out DIR"
    stat = os.statvfs(there)
    if usage.free < LEAST_FREE or (stat.f_files > 0 and stat.f_favail == 0):
        why = "too little" if usage.free < LEAST_FREE else "but not one file more can be made"
        return Finding("disk", "fail", f"{found}: {why}", elsewhere)
    large = presets_larger_than(usage.free, CHECKPOINTS)
    if not large:
        return Finding("disk", "ok", found)
    fix = f"{elsewhere}, or lower --replay.capacity-steps"
    return Finding("disk", "warn", f"{found}: less than the checkpoints of {_sizes(large)}", fix)


def _folder(folder: Path) -> Finding:
    """Whether runs can be written, and locked, where they would go."""
    there = machine.existing(folder)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"voidrl")
            file.flush()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                found = f"{folder.absolute()} can be written but not locked"
                return Finding("folder", "warn", found, "never start two runs in one folder")
    except OSError as error:
        found = f"{there} cannot be written ({error.strerror or error})"
        return Finding("folder", "fail", found, "go to a folder of your own, or give runs one by --out DIR")
    return Finding("folder", "ok", f"{folder.absolute()} can be written")


def _sizes(large: dict[str, int]) -> str:
    return ", ".join(f"{name} ({size / GB:.1f} GB)" for name, size in large.items())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# What it comes to


def is_ready(findings: Iterable[Finding]) -> bool:
    """Whether all that everything stands on works."""
    return all(finding.state != "fail" for finding in findings)


def summary(findings: Sequence[Finding]) -> str:
    """What one can do here, now, in a sentence."""
    failed = [finding for finding in findings if finding.state == "fail"]
    if failed:
        names = " and ".join(finding.name for finding in failed)
        return f"Not ready, because of {names}. Begin with: {failed[0].fix}"
    works = {finding.name for finding in findings if finding.state == "ok"}
    can = ["Gymnasium"]
    cannot: list[str] = []
    (can if "Atari" in works else cannot).append("Atari")
    if {"DMControl", "OpenGL"} <= works:
        can.append("DMControl from states and pixels")
    elif "DMControl" in works:
        can.append("DMControl from states")
        cannot.append("DMControl from pixels")
    else:
        cannot.append("DMControl")
    cannot += [
        purpose
        for name, purpose in {
            "video": "videos",
            "Matplotlib": "figures",
            "Hugging Face Hub": "publishing agents",
            "Stable-Baselines3": "Stable-Baselines3",
            "Weights & Biases": "Weights & Biases",
        }.items()
        if name not in works
    ]
    where = "on the GPU" if "CUDA" in works else "on the CPU"
    rest = f"; not here: {', '.join(cannot)}" if cannot else ""
    return f"Ready: {', '.join(can)}, {where}{rest}."
