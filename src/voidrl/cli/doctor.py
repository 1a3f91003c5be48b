"""doctor. Each component is tried in a process of its own, which may crash or hang (`voidrl.cli.probes`)."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from voidrl import __version__
from voidrl.cli.options import Parser
from voidrl.cli.probes import COMPONENTS, Finding, problem
from voidrl.errors import packages_of
from voidrl.system import machine
from voidrl.system.files import user_path
from voidrl.system.machine import GB
from voidrl.system.terminal.tables import is_terminal, wrap_text

SIGNS = {"ok": "✓", "warn": "!", "fail": "✗"}
TIMEOUT_S = 60.0  # for all processes; they take seconds if nothing hangs
MIN_DISK = GB // 2  # below this no run is worth starting
NAME_WIDTH = max(map(len, COMPONENTS))
EXTRAS = ("plot", "hub", "onnx", "minari", "sb3", "tune", "ray", "slurm", "wandb")


def doctor(argv: list[str]) -> int:
    """Check what works on this machine, and print the command that fixes the rest: `voidrl doctor`."""
    parser = Parser("doctor", doctor.__doc__)
    parser.add_argument("--out", default="runs", metavar="DIR", help="where runs would go (default: runs)")
    options = parser.parse_args(argv)
    findings = []
    for finding in examine(user_path(options.out)):
        findings.append(finding)
        _print(finding)
    print(wrap_text(f"\n{summary(findings)}", indent=0))
    return int(any(finding.state == "fail" for finding in findings))


def _print(finding: Finding) -> None:
    """One finding: on a terminal with its remedy below it, in a pipe on one line."""
    name, remedy = f"{finding.name:<{NAME_WIDTH}}", f"fix: {finding.fix}"
    if not is_terminal(sys.stdout):
        print(f"{finding.state:<4}  {name}  {finding.found}{finding.fix and f'; {remedy}'}", flush=True)
        return
    indent = NAME_WIDTH + 4
    print(wrap_text(f"{SIGNS[finding.state]} {name}  {finding.found}", indent=indent), flush=True)
    if finding.fix:  # not broken, so that it can be copied
        print(f"{' ' * indent}{remedy}", flush=True)


def examine(folder: Path, timeout_s: float = TIMEOUT_S) -> Iterator[Finding]:
    """Yield all findings in order, each as soon as it is known; `folder` is where runs would go."""
    deadline = time.monotonic() + timeout_s
    processes = {name: _start(name) for name in COMPONENTS}
    try:
        yield Finding("voidrl", "ok", f"{__version__}, Python {platform.python_version()}, {sys.executable}")
        yield _machine()
        yield _disk(folder)
        for name, process in processes.items():
            yield _answer(name, process, deadline)
        yield _extras()
    finally:  # also when the caller stops early
        for process in processes.values():
            _end(process)


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


def _start(name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "voidrl.cli.probes", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # so that its children can be ended with it
    )


def _end(process: subprocess.Popen[str]) -> None:
    """End a process with its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _answer(name: str, process: subprocess.Popen[str], deadline: float) -> Finding:
    """The finding that a process prints last; one that crashed or hung is a finding itself."""
    fix = f"see why: {Path(sys.executable).name} -m voidrl.cli.probes {name}"
    try:
        output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return problem(name, "did not answer in time", fix)
    if code := process.returncode:
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return problem(name, f"its process ended with {how}", fix)
    return Finding(**json.loads(output.splitlines()[-1]))


def _extras() -> Finding:
    """Optional packages, which are looked up, not tried."""
    there = [extra for extra in EXTRAS if all(_is_installed(each.name) for each in packages_of(extra))]
    missing = [extra for extra in EXTRAS if extra not in there]
    rest = f"; not installed: {', '.join(missing)}" if missing else ""
    return Finding("extras", "ok", f"{', '.join(there) or 'none'}{rest}")


def _is_installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def _machine() -> Finding:
    cores, memory = machine.cores(), machine.memory()
    found = f"{cores.usable:g} of {cores.total} cores, {memory.available / GB:.1f} GB of memory free"
    return Finding("machine", "ok", found)


def _disk(folder: Path) -> Finding:
    """Check that runs can be written to a folder."""
    parent = machine.existing(folder)
    try:
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(b"voidrl")
        space = shutil.disk_usage(parent)
    except OSError as error:
        found = f"{parent} cannot be written ({error.strerror or error})"
        return Finding("disk", "fail", found, "choose a writable folder with --out DIR")
    found = f"{space.free / GB:.1f} of {space.total / GB:.0f} GB free in {parent}"
    if space.total and space.free < MIN_DISK:  # some file systems do not say
        fix = "free some space, or choose another disk with --out DIR"
        return Finding("disk", "fail", f"{found}: too little", fix)
    return Finding("disk", "ok", found)
