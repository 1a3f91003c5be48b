"""What `voidrl doctor` tries in separate processes: `python -m voidrl.cli.probes Atari`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from voidrl.errors import install_command, packages_of

ESSENTIAL = {"voidrl", "Gymnasium", "PyTorch"}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    state: Literal["ok", "warn", "fail"]
    """`fail` if voidrl needs it; `warn` if something optional is missing or broken."""
    found: str
    fix: str = ""
    """One command, or one thing to do."""


class UnusableError(Exception):
    """An unusable component; its arguments are the reason and the fix."""


class Component(NamedTuple):
    """A library or device that voidrl uses."""

    probe: Callable[[], str]
    """Uses it and returns a description."""
    packages: tuple[str, ...] = ()
    extra: str = ""
    """The extra of voidrl that has the packages."""
    fix: str = ""
    """The fix if the probe fails; by default, to install the packages again."""


def examine(name: str) -> Finding:
    """Check the versions of a component, then use it."""
    component = COMPONENTS[name]
    try:
        found = [installed(package, component.extra) for package in component.packages]
        return Finding(name, "ok", ", ".join([*found, component.probe()]))
    except UnusableError as error:
        return problem(name, *error.args)
    except Exception as error:
        why = str(error).strip().partition("\n")[0].rstrip(".:") or repr(error)
        fix = component.fix or f"pip install --force-reinstall {' '.join(component.packages)}"
        return problem(name, f"does not work: {why}", fix)


def problem(name: str, found: str, fix: str) -> Finding:
    """Return a finding about something that does not work."""
    return Finding(name, "fail" if name in ESSENTIAL else "warn", found, fix)


def installed(package: str, extra: str) -> str:
    """Return the name and version of a package; raise if voidrl cannot use it."""
    wanted = next(each.specifier for each in packages_of(extra) if each.name == package)
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise UnusableError(f"{package} is not installed", install_command(extra)) from None
    if not wanted.contains(version, prereleases=True):
        raise UnusableError(
            f"{package} {version} is not supported: expected {wanted}", f"pip install '{package}{wanted}'"
        )
    return f"{package} {version}"


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
        found = f"torch {torch.__version__} sees no CUDA device; runs compute on the CPU"
        if (hidden := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            raise UnusableError(f"{found}, as CUDA_VISIBLE_DEVICES={hidden!r}", "unset CUDA_VISIBLE_DEVICES")
        if torch.version.cuda is None:
            fix = "on a machine with a GPU: https://pytorch.org/get-started/locally"
            raise UnusableError(found, fix)
        raise UnusableError(found, f"with a GPU: a driver for CUDA {torch.version.cuda}, see nvidia-smi")
    assert torch.ones(256, device="cuda").sum().item() == 256, "a sum is wrong"
    free, total = torch.cuda.mem_get_info()
    return f"{torch.cuda.get_device_name()}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free"


def run_kernel() -> str:
    """Compile and run our smallest Triton kernel."""
    import torch

    from voidrl.kernels.images import images

    if not torch.cuda.is_available():
        return "not used without a GPU"
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
    print(f"\n{json.dumps(asdict(examine(sys.argv[1])))}", flush=True)
    os._exit(0)  # without messages of libraries that close
