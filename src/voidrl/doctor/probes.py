"""What `voidrl doctor` tries in processes of their own: `python -m voidrl.doctor.probes atari`.

A library that crashes or hangs takes only its own process with it. Each finding is printed as soon as it is
there, as one line of JSON behind a mark, so that those before a crash are kept, and so is what is begun.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

MARK = "voidrl-finding "
GL_TIMEOUT_S = 20.0  # for each OpenGL that is tried
State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's."""

    name: str
    state: State
    """`fail` where nothing works without it; `warn` where something does not, or not as it could."""
    found: str
    fix: str = ""
    """The one command, or the one thing to do."""


PROBES = {
    "gymnasium": ("Gymnasium",),
    "torch": ("PyTorch", "CUDA", "Triton kernels", "CUDA graphs", "TensorBoard", "Stable-Baselines3"),
    "atari": ("Atari",),
    "dmc": ("DMControl",),
    "gl": ("OpenGL",),
    "tools": ("Matplotlib", "video", "Hugging Face Hub", "Weights & Biases"),
}
"""What each probe looks at, in this order; it may leave out what does not concern this machine."""

ESSENTIAL = {"Python", "voidrl", "folder", "disk", "Gymnasium", "PyTorch", "TensorBoard"}
EXTRAS = {
    "Atari": "atari",
    "DMControl": "dmc",
    "OpenGL": "dmc",
    "Matplotlib": "plot",
    "video": "video",
    "Hugging Face Hub": "hub",
    "Stable-Baselines3": "sb3",
    "Weights & Biases": "wandb",
}


def install(name: str) -> str:
    """The command that installs what a finding of this name is about, again if it is there."""
    if name in EXTRAS:
        return f"pip install 'voidrl[{EXTRAS[name]}]'"
    return "pip install --upgrade --force-reinstall voidrl"


def say(name: str, found: str, fix: str = "", state: State | None = None) -> None:
    """Hand over a finding; by default it is well if there is nothing to fix."""
    worst: State = "fail" if name in ESSENTIAL else "warn"
    finding = Finding(name, state or (worst if fix else "ok"), found, fix)
    print(MARK + json.dumps(asdict(finding)), flush=True)


@contextmanager
def trying(name: str, fix: str = "") -> Iterator[None]:
    """Whatever goes wrong inside is a finding."""
    print(MARK + json.dumps({"begun": name}), flush=True)
    try:
        yield
    except Exception as error:
        say(name, f"does not work: {first_line(error)}", fix or install(name))


def first_line(error: BaseException | str) -> str:
    """The first line of a message, or the kind of error where it has none."""
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".:") if text else repr(error)


def version_of(name: str, package: str, module: str) -> str | None:
    """The version installed, if voidrl can use it; else that is said, and there is nothing more to try."""
    if importlib.util.find_spec(module) is None:
        say(name, f"{package} is not installed", install(name))
        return None
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # laid there by hand
        return "of unknown version"
    wanted = wanted_version(package)
    if wanted and not fits(version, wanted):
        say(name, f"{package} {version} was not tried with voidrl", f"pip install '{package}{wanted}'")
        return None
    return version


def wanted_version(package: str) -> str:
    """Such as `>=0.11,<1`: what voidrl's own metadata ask for; nothing where they are not installed."""
    try:
        required = importlib.metadata.requires("voidrl") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    for line in required:
        found = re.match(r"([\w.-]+)\s*\(?([<>=,\s\d.]+)", line.partition(";")[0])
        if found and found[1].lower().replace("_", "-") == package.lower().replace("_", "-"):
            return ",".join(sorted(found[2].replace(" ", "").rstrip(",").split(","), reverse=True))
    return ""


def fits(version: str, wanted: str) -> bool:
    """Whether `version` lies in bounds such as `>=0.11,<1`."""
    have = numbers(version)
    for bound in wanted.split(","):
        limit = numbers(bound)
        if (bound.startswith(">=") and have < limit) or (bound.startswith("<") and have >= limit):
            return False
    return True


def numbers(version: str) -> tuple[int, ...]:
    """2.13.0+cpu → (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def system_install(apt: str, dnf: str, conda: str) -> str:
    """How the package manager that is there installs something."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    for program, command in {
        "apt-get": f"{sudo}apt-get install -y {apt}",
        "dnf": f"{sudo}dnf install -y {dnf}",
        "conda": f"conda install -y -c conda-forge {conda}",
    }.items():
        if shutil.which(program):
            return command
    return f"install {apt} (as Debian calls it) with the system's package manager"


def step_once(env: str) -> None:
    """Make an environment as a run does, and take one step."""
    import numpy as np

    from voidrl.config import EnvConfig
    from voidrl.envs.make import make_envs

    with closing(make_envs(EnvConfig(id=env), num_envs=1)) as envs:
        envs.reset(0)
        envs.send(np.stack([envs.vector.single_action_space.sample()]))
        envs.recv()


def probe_gymnasium() -> None:
    """The environment that voidrl brings along."""
    with trying("Gymnasium"):
        version = version_of("Gymnasium", "gymnasium", "gymnasium")
        if version is not None:
            step_once("voidrl/PixelMaze-v0")
            say("Gymnasium", f"{version}, PixelMaze steps")


def probe_atari() -> None:
    """One step of Pong."""
    with trying("Atari"):
        version = version_of("Atari", "ale-py", "ale_py")
        if version is None:
            return
        from ale_py import roms

        found = roms.get_all_rom_ids()
        if not found:
            say("Atari", f"ale-py {version} has no ROMs", "pip install --upgrade --force-reinstall ale-py")
            return
        step_once("atari/pong")
        say("Atari", f"ale-py {version}, {len(found)} ROMs, Pong steps")


def probe_dmc() -> None:
    """One step of a pendulum, seen by its state."""
    with trying("DMControl"):
        control = version_of("DMControl", "dm-control", "dm_control")
        if control is None:
            return
        mujoco = version_of("DMControl", "mujoco", "mujoco")
        if mujoco is not None:
            step_once("dmc/pendulum_swingup")
            say("DMControl", f"dm-control {control}, mujoco {mujoco}, steps from states")


def probe_gl() -> None:
    """A picture of a ball."""
    with trying("OpenGL"):
        if any(importlib.util.find_spec(module) is None for module in ("dm_control", "mujoco")):
            say("OpenGL", "not tried: it is for DMControl, which is not installed", install("DMControl"))
            return
        from voidrl.envs import gl
        from voidrl.errors import ConfigError

        gl.TIMEOUT_S = GL_TIMEOUT_S
        chosen = os.environ.get("MUJOCO_GL")
        try:
            kind = gl.find_gl("dmc/walker")
        except ConfigError as error:
            why = re.search(r"no OpenGL works \((.*)\): ", str(error))
            libraries = system_install("libegl1 libgl1 libosmesa6", "mesa-libEGL mesa-libOSMesa", "mesalib")
            fix = "unset MUJOCO_GL" if chosen else libraries
            say("OpenGL", f"renders nothing ({why[1] if why else error})", fix)
        else:
            named = f"MUJOCO_GL={chosen} is set" if chosen else "found by trying"
            say("OpenGL", f"{kind} renders images ({named})")


def probe_torch() -> None:
    """PyTorch, CUDA and what stands on them."""
    works = False
    with trying("PyTorch", f"pip install --force-reinstall 'torch{wanted_version('torch')}'"):
        version = version_of("PyTorch", "torch", "torch")
        if version is not None:
            import torch

            weight = torch.ones(4, 4, requires_grad=True)
            (weight @ weight).sum().backward()
            assert weight.grad is not None
            assert weight.grad.eq(8).all(), "a gradient is wrong"
            build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPUs alone"
            say("PyTorch", f"{version}, {build}")
            works = True
    if not works:
        return
    with trying("CUDA", "take --device cpu"):
        try_cuda(torch)
    with trying("TensorBoard", "pip install --force-reinstall tensorboard"):
        version = version_of("TensorBoard", "tensorboard", "tensorboard")
        if version is not None:
            importlib.import_module("torch.utils.tensorboard")
            say("TensorBoard", version)
    with trying("Stable-Baselines3"):
        version = version_of("Stable-Baselines3", "stable-baselines3", "stable_baselines3")
        if version is not None:
            importlib.import_module("stable_baselines3")
            say("Stable-Baselines3", version)


def try_cuda(torch: Any) -> None:
    """The device that `auto` takes, and what is fast on it."""
    driver = nvidia_driver()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        there = torch.cuda.is_available()
    if not there:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if driver is None:
            fix = "take a preset for CPUs: voidrl list presets"
            say("CUDA", "no NVIDIA GPU or no driver; runs compute on the CPU", fix)
        elif torch.version.cuda is None:
            fix = f"pip install --force-reinstall 'torch{wanted_version('torch')}'"
            say("CUDA", f"there is a GPU ({driver}), and PyTorch was built without CUDA", fix)
        elif hidden is not None:
            say("CUDA", f"the GPU is hidden by CUDA_VISIBLE_DEVICES={hidden!r}", "unset CUDA_VISIBLE_DEVICES")
        else:
            why = f": {first_line(str(told[0].message))}" if told else ""
            fix = f"update the driver to one for CUDA {torch.version.cuda} or newer, and reboot"
            say("CUDA", f"PyTorch does not see the GPU ({driver}){why}", fix)
        return
    device = torch.device("cuda", torch.cuda.current_device())
    assert torch.ones(256, device=device).sum().item() == 256
    free, total = torch.cuda.mem_get_info(device)
    major, minor = torch.cuda.get_device_capability(device)
    count = torch.cuda.device_count()
    more = f" (1 of {count}; a run takes one)" if count > 1 else ""
    bf16 = "bf16" if (major, minor) >= (8, 0) else "no fast bf16"
    memory = f"{free / 1e9:.0f} of {total / 1e9:.0f} GB free"
    name, driver = torch.cuda.get_device_name(device), (driver or "unknown").partition(",")[0]
    say("CUDA", f"{name}{more}, {memory}, capability {major}.{minor}, {bf16}, driver {driver}")
    with trying("Triton kernels", system_install("gcc python3-dev", "gcc python3-devel", "gcc")):
        try_kernels(device)
    with trying("CUDA graphs", "take --engine eager"):
        try_graphs(torch, device)


def nvidia_driver() -> str | None:
    """Its version and the first GPU, as nvidia-smi has them."""
    command = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return first_line(done.stdout)


def try_kernels(device: Any) -> None:
    """Our smallest kernel is compiled and run."""
    if importlib.util.find_spec("triton") is None:
        say("Triton kernels", "Triton is not installed; plain PyTorch is slower", "pip install triton")
        return
    from voidrl.kernels import check

    complaints: list[str] = []
    check(device, complaints.append)
    if complaints:
        raise RuntimeError(complaints[0].partition("does not work here ")[2].strip("()"))
    say("Triton kernels", f"compile (Triton {importlib.metadata.version('triton')})")


def try_graphs(torch: Any, device: Any) -> None:
    """A product and a sum, captured and launched again."""
    x = torch.ones(64, 64, device=device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what libraries make lazily must lie before a capture
        (x @ x).sum()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        total = (x @ x).sum()
    x.fill_(2)
    graph.replay()
    assert total.item() == 4 * 64**3, "a captured product is wrong"
    say("CUDA graphs", "captured and launched")


def probe_tools() -> None:
    """Pictures, videos, and services."""
    with trying("Matplotlib"):
        version = version_of("Matplotlib", "matplotlib", "matplotlib")
        if version is not None:
            importlib.import_module("matplotlib.figure")
            say("Matplotlib", version)
    with trying("video", system_install("ffmpeg", "ffmpeg-free", "ffmpeg")):
        version = version_of("video", "imageio-ffmpeg", "imageio_ffmpeg")
        if version is not None:
            say("video", f"imageio-ffmpeg {version}, {encode()}")
    for name, package, module in (
        ("Hugging Face Hub", "huggingface-hub", "huggingface_hub"),
        ("Weights & Biases", "wandb", "wandb"),
    ):
        with trying(name):
            version = version_of(name, package, module)
            if version is not None:
                importlib.import_module(module)
                say(name, version)


def encode() -> str:
    """Eight frames of H.264 into an MP4."""
    from imageio_ffmpeg import get_ffmpeg_exe

    program, size = get_ffmpeg_exe(), 32
    with tempfile.TemporaryDirectory() as folder:
        clip = Path(folder) / "clip.mp4"
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{size}x{size}", "-r", "8", "-i", "-"]
        target = ["-c:v", "libx264", "-pix_fmt", "yuv420p", str(clip)]
        command = [program, "-hide_banner", "-loglevel", "error", "-y", *source, *target]
        done = subprocess.run(command, input=bytes(8 * size * size * 3), capture_output=True, timeout=30)
        if done.returncode or not clip.stat().st_size:
            raise RuntimeError(
                f"{program} encodes nothing: {first_line(done.stderr.decode(errors='replace'))}"
            )
        return "encodes H.264"


TRIED: dict[str, Callable[[], None]] = {
    "gymnasium": probe_gymnasium,
    "torch": probe_torch,
    "atari": probe_atari,
    "dmc": probe_dmc,
    "gl": probe_gl,
    "tools": probe_tools,
}

if __name__ == "__main__":
    TRIED[sys.argv[1]]()
