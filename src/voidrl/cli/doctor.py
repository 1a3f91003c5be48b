"""doctor. Each component is tried in a process of its own, which may crash or hang.

`python -m voidrl.cli.doctor Atari` is such a process.
"""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from voidrl import __version__
from voidrl.cli.options import Parser
from voidrl.errors import packages_of, why_missing
from voidrl.system import machine
from voidrl.system.files import user_path
from voidrl.system.machine import GB
from voidrl.system.terminal.tables import is_terminal, wrap_text

SIGNS = {"ok": "✓", "warn": "!", "fail": "✗"}
ESSENTIAL = ("Gymnasium", "PyTorch")
TIMEOUT_S = 60.0  # for all processes; they take seconds if nothing hangs
MIN_DISK = GB // 2  # below this no run is worth starting
NAME_WIDTH = 9  # of the longest component
EXTRAS = ("plot", "hub", "onnx", "minari", "sb3", "tune", "ray", "slurm", "wandb")


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    state: Literal["ok", "warn", "fail"]
    """`fail` if voidrl needs it; `warn` if something optional is missing or broken."""
    found: str
    fix: str = ""
    """One command, or one thing to do."""


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
    text, remedy = f"{finding.name:<{NAME_WIDTH}}  {finding.found}", finding.fix and f"fix: {finding.fix}"
    if is_terminal(sys.stdout):
        indent = NAME_WIDTH + 4
        text = wrap_text(f"{SIGNS[finding.state]} {text}", indent=indent)
        print(text + (remedy and f"\n{' ' * indent}{remedy}"), flush=True)  # whole, so that it can be copied
    else:
        print(f"{finding.state:<4}  {text}{remedy and f'; {remedy}'}", flush=True)


def examine(folder: Path, timeout_s: float = TIMEOUT_S) -> Iterator[Finding]:
    """Yield all findings in order, each as soon as it is known; `folder` is where runs would go."""
    deadline = time.monotonic() + timeout_s
    processes = {name: _start(name) for name in COMPONENTS}
    try:
        yield Finding("voidrl", "ok", f"{__version__}, Python {platform.python_version()}, {sys.executable}")
        cores, memory = machine.cores(), machine.memory()
        found = f"{cores.usable:g} of {cores.total} cores, {memory.available / GB:.1f} GB of memory free"
        yield Finding("machine", "ok", found)
        yield _disk(folder)
        for name, process in processes.items():
            yield _answer(name, process, deadline)
        yield _extras()
    finally:  # also when the caller stops early
        for process in processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its children
            process.communicate()


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
        [sys.executable, "-P", "-m", "voidrl.cli.doctor", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # so that its children can be ended with it
    )


def _answer(name: str, process: subprocess.Popen[str], deadline: float) -> Finding:
    """The finding that a process prints last; one that crashed or hung is a finding itself."""
    fix = f"see why: {Path(sys.executable).name} -m voidrl.cli.doctor {name}"
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
    there = []
    for extra in EXTRAS:
        with suppress(metadata.PackageNotFoundError):
            for package in packages_of(extra):
                metadata.version(package.name)
            there.append(extra)
    missing = [extra for extra in EXTRAS if extra not in there]
    rest = f"; not installed: {', '.join(missing)}" if missing else ""
    return Finding("extras", "ok", f"{', '.join(there) or 'none'}{rest}")


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


# In a process of its own


class UnusableError(Exception):
    """An unusable component; its arguments are the reason and the fix."""


class Component(NamedTuple):
    """A library or device that voidrl uses."""

    use: Callable[[], str]
    """Tries it and returns a description."""
    packages: tuple[str, ...] = ()
    extra: str = ""
    """The extra of voidrl that has the packages."""
    fix: str = ""
    """The fix if the probe fails; by default, to install the packages again."""


def probe(name: str) -> Finding:
    """Check the versions of a component, then use it."""
    use, packages, extra, fix = COMPONENTS[name]
    found = []
    try:
        for package in packages:
            found.append(f"{package} {(version := metadata.version(package))}")
            for wanted in (each.specifier for each in packages_of(extra) if each.name == package):
                if not wanted.contains(version, prereleases=True):
                    why = f"{found[-1]} is not supported: expected {wanted}"
                    return problem(name, why, f"pip install '{package}{wanted}'")
        return Finding(name, "ok", ", ".join([*found, use()]))
    except metadata.PackageNotFoundError as error:
        why, remedy = why_missing(error.name, extra)
        return problem(name, f"{error.name} {why}", remedy)
    except UnusableError as error:
        return problem(name, *error.args)
    except Exception as error:
        why = str(error).strip().partition("\n")[0].rstrip(".:") or repr(error)
        return problem(
            name, f"does not work: {why}", fix or f"pip install --force-reinstall {' '.join(packages)}"
        )


def problem(name: str, found: str, fix: str) -> Finding:
    """A finding about something that does not work."""
    return Finding(name, "fail" if name in ESSENTIAL else "warn", found, fix)


def step(env: str) -> str:
    """Make an environment as a run does, and take one step."""
    import numpy as np

    from voidrl.config import EnvConfig
    from voidrl.envs.make import make_envs

    with closing(make_envs(EnvConfig(id=env), num_envs=1)) as envs:
        envs.reset(0)
        envs.send(np.stack([envs.vector.single_action_space.sample()]))
        envs.recv()
    return f"{env} steps"


def render_image() -> str:
    """Render an image with MuJoCo."""
    from voidrl.envs import gl
    from voidrl.errors import ConfigError

    try:
        found = gl.find_gl("dmc/walker", "take env.dmc.observation = 'states'")
    except ConfigError as error:
        chosen = "MUJOCO_GL" in os.environ
        fix = "unset MUJOCO_GL" if chosen else "sudo apt-get install -y libegl1 libgl1 libosmesa6"
        raise UnusableError(str(error), fix) from None
    return f"{found.name} renders images on the {'CPU' if found.on_cpu else 'GPU'}"


def compute_gradient() -> str:
    """Compute a gradient on the CPU."""
    import torch

    (torch.ones(4, 4, requires_grad=True) @ torch.ones(4, 4)).sum().backward()
    return f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU only"


def use_cuda() -> str:
    """Use the GPU that `--device auto` takes."""
    import torch

    if not torch.cuda.is_available():
        fix = "on a machine with a GPU: https://pytorch.org/get-started/locally"
        if torch.version.cuda:
            fix = f"with a GPU: a driver for CUDA {torch.version.cuda}, see nvidia-smi"
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            fix = "unset CUDA_VISIBLE_DEVICES"
        raise UnusableError(f"torch {torch.__version__} sees no CUDA device; runs compute on the CPU", fix)
    assert torch.ones(256, device="cuda").sum().item() == 256, "a sum is wrong"
    free, total = torch.cuda.mem_get_info()
    return f"{torch.cuda.get_device_name()}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free"


def run_kernel() -> str:
    """Compile and run our smallest Triton kernel."""
    import torch

    if not torch.cuda.is_available():
        return "not used without a GPU"
    from voidrl.kernels.images import images  # imports triton, which a build for the CPU may not have

    pixel = torch.zeros(1, 1, 1, 1, dtype=torch.uint8, device="cuda")
    images(pixel, None, None, None, 0.0, 1, 1, torch.float32)
    return f"triton {metadata.version('triton')} compiles"


def encode_video() -> str:
    """Encode eight frames."""
    import numpy as np

    from voidrl.report.videos.mp4 import encode

    with tempfile.TemporaryDirectory() as folder:
        encode([np.zeros((32, 32, 3), np.uint8)] * 8, Path(folder) / "clip.mp4", fps=8)
    return "encodes H.264"


COMPONENTS = {  # in the order of the report
    "Gymnasium": Component(partial(step, "voidrl/PixelMaze-v0"), ("gymnasium",)),
    "PyTorch": Component(compute_gradient, ("torch",)),
    "CUDA": Component(use_cuda, fix="use --device cpu"),
    "Triton": Component(run_kernel, fix="sudo apt-get install -y gcc python3-dev"),
    "Atari": Component(partial(step, "atari/pong"), ("ale-py",), "atari"),
    "DMControl": Component(partial(step, "dmc/pendulum_swingup"), ("dm-control", "mujoco"), "dmc"),
    "OpenGL": Component(render_image, ("dm-control",), "dmc"),
    "video": Component(encode_video, ("imageio-ffmpeg", "pillow"), "video"),
}


if __name__ == "__main__":
    print(f"\n{json.dumps(asdict(probe(sys.argv[1])))}", flush=True)
    os._exit(0)  # without messages of libraries that close
