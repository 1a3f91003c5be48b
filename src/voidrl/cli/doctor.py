"""doctor. Components that may crash or hang are tried in separate processes (`voidrl.cli.probes`)."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from voidrl import __version__
from voidrl.cli.options import make_parser
from voidrl.cli.probes import COMPONENTS, GROUPS, MARK, Finding, problem
from voidrl.errors import install_command
from voidrl.system import machine
from voidrl.system.files import user_path
from voidrl.system.machine import GB
from voidrl.system.terminal.screen import is_terminal
from voidrl.system.terminal.tables import wrap_text

SIGNS = {"ok": "✓", "warn": "!", "fail": "✗"}
TIMEOUT_S = 60.0  # for all processes; they take seconds if nothing hangs
MIN_DISK = GB // 2  # below this no run is worth starting
NAME_WIDTH = max(map(len, COMPONENTS))
EXTRAS = {
    "plot": "matplotlib", "hub": "huggingface_hub", "onnx": "onnxruntime", "minari": "minari",
    "sb3": "stable_baselines3", "tune": "optuna", "ray": "ray", "slurm": "submitit", "wandb": "wandb",
}  # fmt: skip


def doctor(argv: list[str]) -> int:
    """Check what works on this machine, and print the command that fixes the rest: `voidrl doctor`."""
    parser = make_parser("doctor", doctor.__doc__)
    parser.add_argument("--out", default="runs", metavar="DIR", help="where runs would go (default: runs)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(argv)
    findings = []
    for finding in examine(user_path(options.out)):
        findings.append(finding)
        if not options.json:
            _print(finding)
    ready = all(finding.state != "fail" for finding in findings)
    if options.json:
        found = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"ready": ready, "summary": summary(findings), "findings": found}, indent=2))
    else:
        print(wrap_text(f"\n{summary(findings)}", indent=0))
    return 0 if ready else 1


def _print(finding: Finding) -> None:
    """One finding: on a terminal with its remedy below it, in a pipe on one line."""
    found, remedy = finding.found, finding.fix
    if not is_terminal(sys.stdout):
        fix = f"; fix: {remedy}" if remedy else ""
        print(f"{finding.state:<4}  {finding.name:<{NAME_WIDTH}}  {found}{fix}", flush=True)
        return
    sign = SIGNS[finding.state]
    indent = len(sign) + NAME_WIDTH + 3
    print(wrap_text(f"{sign} {finding.name:<{NAME_WIDTH}}  {found}", indent=indent), flush=True)
    if remedy:  # not broken, so that it can be copied
        print(f"{' ' * indent}fix: {remedy}", flush=True)


def examine(folder: Path, timeout_s: float = TIMEOUT_S) -> Iterator[Finding]:
    """Yield all findings in order, each as soon as it is known; `folder` is where runs would go."""
    deadline = time.monotonic() + timeout_s
    processes = {group: _start(group) for group in GROUPS}
    try:
        yield Finding("voidrl", "ok", f"{__version__}, Python {platform.python_version()}, {sys.executable}")
        yield _machine()
        yield _disk(folder)
        for group, process in processes.items():
            yield from _collect(group, process, deadline)
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


def _start(group: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "voidrl.cli.probes", group],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # so that its children can be ended with it
    )


def _end(process: subprocess.Popen[str]) -> str:
    """End a process with its children; returns what it has printed since."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]


def _collect(group: str, process: subprocess.Popen[str], deadline: float) -> list[Finding]:
    """Return the findings of a process; one that crashed or hung adds a finding about its last attempt."""
    hung = False
    try:
        output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        hung, output = True, _end(process)
    marked = (line.partition(MARK)[2] for line in output.splitlines())
    findings = [Finding(**json.loads(found)) for found in marked if found.endswith("}")]
    missing = [name for name in GROUPS[group] if name not in {finding.name for finding in findings}]
    code = process.returncode
    if code == 0 or not missing:
        return findings
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    found = "did not answer in time" if hung else f"its process ended with {how}"
    fix = f"see why: {Path(sys.executable).name} -m voidrl.cli.probes {group}"
    return [*findings, problem(missing[0], found, fix)]


def _extras() -> Finding:
    """Optional packages, which are looked up, not tried."""
    there = [extra for extra, module in EXTRAS.items() if find_spec(module)]
    missing = ",".join(extra for extra in EXTRAS if extra not in there)
    more = f"; {install_command(missing)} adds others" if missing else ""
    return Finding("extras", "ok", f"{', '.join(there) or 'none'}{more}")


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
    except OSError as error:
        found = f"{parent} cannot be written ({error.strerror or error})"
        return Finding("disk", "fail", found, "choose a writable folder with --out DIR")
    space = machine.disk(folder)
    if space is None:
        return Finding("disk", "ok", f"unknown space in {parent}")
    found = f"{space.free / GB:.1f} of {space.total / GB:.0f} GB free in {parent}"
    if space.free < MIN_DISK:
        fix = "free some space, or choose another disk with --out DIR"
        return Finding("disk", "fail", f"{found}: too little", fix)
    return Finding("disk", "ok", found)
