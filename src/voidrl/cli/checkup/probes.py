"""Probes that `voidrl doctor` runs in separate processes: `python -m voidrl.cli.checkup.probes torch`.

A library that crashes or hangs takes only its own process down. Each finding is printed as one marked line of
JSON as soon as it is known, so that findings before a crash are kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

MARK = "voidrl-finding "
GL_TIMEOUT_S = 20.0  # for each OpenGL backend
ESSENTIAL = {"voidrl", "disk", "Gymnasium", "PyTorch", "TensorBoard"}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    state: Literal["ok", "warn", "fail"]
    """`fail` if voidrl needs it; `warn` if something optional is missing, broken or slow."""
    found: str
    fix: str = ""
    """One command, or one thing to do."""


class UnusableError(Exception):
    """An unusable component; its arguments are the reason and the fix."""


class Component(NamedTuple):
    """A library or device that voidrl uses."""

    packages: tuple[str, ...]
    probe: Callable[[], str] = str  # uses it and returns a description; by default "", once it is imported
    extra: str = ""  # of voidrl, which installs it
    fix: str = ""  # if the probe fails; by default, to install it again


def examine(name: str) -> Finding:
    """Check the versions of a component, then use it."""
    component = COMPONENTS[name]
    try:
        found = [installed(package, component.extra) for package in component.packages]
        for package in component.packages[:1]:
            import_module(package.replace("-", "_"))
        return Finding(name, "ok", ", ".join(filter(None, [*found, component.probe()])))
    except UnusableError as error:
        return problem(name, *error.args)
    except Exception as error:
        fix = f"pip install --force-reinstall 'voidrl{component.extra and f'[{component.extra}]'}'"
        return problem(name, f"does not work: {first_line(error)}", component.fix or fix)


def problem(name: str, found: str, fix: str) -> Finding:
    """Return a finding about something that does not work."""
    return Finding(name, "fail" if name in ESSENTIAL else "warn", found, fix)


def first_line(error: BaseException | str) -> str:
    """Return the first line of a message, or the type of an error without one."""
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".:") if text else repr(error)


def installed(package: str, extra: str = "") -> str:
    """Return the name and version of a package; raise if voidrl cannot use it."""
    name = canonicalize_name(package)
    wanted = next((r.specifier for r in requirements() if canonicalize_name(r.name) == name), SpecifierSet())
    fix = f"pip install '{package}{wanted}'"
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        fix = f"pip install 'voidrl[{extra}]'" if extra else fix
        raise UnusableError(f"{package} is not installed", fix) from None
    if not wanted.contains(version, prereleases=True):
        raise UnusableError(f"{package} {version} is not supported: expected {wanted}", fix)
    return f"{package} {version}"


def requirements() -> list[Requirement]:
    """Return the packages that voidrl and its extras need; none if voidrl itself is not installed."""
    try:
        return [Requirement(line) for line in metadata.requires("voidrl") or []]
    except metadata.PackageNotFoundError:
        return []


# The probes


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

    gl.TIMEOUT_S = GL_TIMEOUT_S
    chosen = os.environ.get("MUJOCO_GL")
    try:
        found = gl.find_gl("dmc/walker", "take env.dmc.observation = 'states'")
        place = f" on the {'CPU' if found.on_cpu else 'GPU'}"
        return f"{found.name} renders images{place}{' (set by MUJOCO_GL)' if chosen else ''}"
    except ConfigError as error:
        fix = "unset MUJOCO_GL" if chosen else "sudo apt-get install -y libegl1 libgl1 libosmesa6"
        raise UnusableError(str(error), fix) from None


def compute_gradient() -> str:
    """Compute a gradient on the CPU."""
    import torch

    (torch.ones(4, 4, requires_grad=True) @ torch.ones(4, 4)).sum().backward()
    return f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU only"


def use_cuda() -> str:
    """Use the GPU that `--device auto` takes, or say why that fails."""
    import torch

    driver = nvidia_driver()
    if not torch.cuda.is_available():
        if driver is None:
            found = "no NVIDIA GPU or no driver; runs compute on the CPU"
            raise UnusableError(found, "choose a preset for CPUs: voidrl list presets")
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            found = f"the GPU is hidden by CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r}"
            raise UnusableError(found, "unset CUDA_VISIBLE_DEVICES")
        found = f"PyTorch, built for CUDA {torch.version.cuda}, does not see the GPU ({driver})"
        if torch.version.cuda is None:
            raise UnusableError(found, "install PyTorch with CUDA: https://pytorch.org/get-started/locally")
        raise UnusableError(found, f"update the driver to one for CUDA {torch.version.cuda}, and reboot")
    assert torch.ones(256, device="cuda").sum().item() == 256, "a sum is wrong"
    free, total = torch.cuda.mem_get_info()
    count = torch.cuda.device_count()
    name = torch.cuda.get_device_name() + (f" (1 of {count}; a run uses one)" if count > 1 else "")
    bf16 = "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "no fast bf16"
    memory = f"{free / 1e9:.0f} of {total / 1e9:.0f} GB free"
    return f"{name}, {memory}, {bf16}, driver {(driver or 'unknown').partition(',')[0]}"


def nvidia_driver() -> str | None:
    """Return the driver version and the name of the first GPU, as nvidia-smi prints them."""
    command = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return first_line(done.stdout)


def run_kernel() -> str:
    """Compile and run our smallest Triton kernel."""
    import torch

    from voidrl.kernels.images import images

    pixel = torch.zeros(1, 1, 1, 1, dtype=torch.uint8, device="cuda")
    images(pixel, None, None, None, 0.0, 1, 1, torch.float32)
    return "compiles"


def replay_graph() -> str:
    """Capture a sum in a CUDA graph and replay it."""
    import torch

    x = torch.ones(64, device="cuda")
    x.sum()  # loads its kernel before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = x.sum()
    x.fill_(2)
    graph.replay()
    assert total.item() == 128, "a captured sum is wrong"
    return "captured and replayed"


def encode_video() -> str:
    """Encode eight frames."""
    import numpy as np

    from voidrl.report.videos.mp4 import encode

    with tempfile.TemporaryDirectory() as folder:
        encode([np.zeros((32, 32, 3), np.uint8)] * 8, Path(folder) / "clip.mp4", fps=8)
    return "encodes H.264"


COMPONENTS = {
    "Gymnasium": Component(("gymnasium",), partial(step, "voidrl/PixelMaze-v0")),
    "PyTorch": Component(("torch",), compute_gradient, fix="pip install --force-reinstall torch"),
    "CUDA": Component((), use_cuda, fix="use --device cpu"),
    "Triton kernels": Component(("triton",), run_kernel, fix="sudo apt-get install -y gcc python3-dev"),
    "CUDA graphs": Component((), replay_graph, fix="use --engine eager"),
    "Atari": Component(("ale-py",), partial(step, "atari/pong"), "atari"),
    "DMControl": Component(("dm-control", "mujoco"), partial(step, "dmc/pendulum_swingup"), "dmc"),
    "OpenGL": Component(("dm-control",), render_image, "dmc"),
    "Matplotlib": Component(("matplotlib",), extra="plot"),
    "video": Component(("imageio-ffmpeg", "pillow"), encode_video, "video"),
    "Hugging Face Hub": Component(("huggingface-hub",), extra="hub"),
    "Weights & Biases": Component(("wandb",), extra="wandb"),
    "TensorBoard": Component(("tensorboard",)),
    "Stable-Baselines3": Component(("stable-baselines3",), extra="sb3"),
    "ONNX": Component(("onnx", "onnxscript", "onnxruntime"), extra="onnx"),
    "Minari": Component(("minari",), extra="minari"),
    "Ray": Component(("ray",), extra="ray"),
    "submitit": Component(("submitit",), extra="slurm"),
    "Optuna": Component(("optuna",), extra="tune"),
}  # in the order of the report
GROUPS = {
    "gymnasium": ("Gymnasium",),
    "torch": ("PyTorch", "CUDA", "Triton kernels", "CUDA graphs"),
    "atari": ("Atari",),
    "dmc": ("DMControl",),
    "gl": ("OpenGL",),
    "tools": (*COMPONENTS,)[8:-3],
    "clusters": (*COMPONENTS,)[-3:],
}  # the components that are tried in one process

if __name__ == "__main__":
    for name in GROUPS[sys.argv[1]]:
        finding = examine(name)
        print(f"\n{MARK}{json.dumps(asdict(finding))}", flush=True)
        if finding.state != "ok" and name in ("PyTorch", "CUDA"):  # the rest of the group needs it
            break
