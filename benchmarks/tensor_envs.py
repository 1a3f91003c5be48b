"""PixelMaze in NumPy and in torch: environment steps per second, alone and in pre-training.

    python benchmarks/tensor_envs.py --num-envs 64 1024 4096

Alone, random actions are chosen where the environments are, and nothing is stored. In pre-training (APT) each
step of all environments has one update of the default batch size, and frames go into the replay: from NumPy
through the host, from torch on the device itself.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch

import voidrl
from voidrl.config import EnvConfig
from voidrl.envs.make import make_envs
from voidrl.runs.metrics import read_metrics
from voidrl.system.device import pick_device

ENV = "voidrl/PixelMaze-v0"
BACKENDS = {"NumPy": "native", "torch": "tensor"}


def alone(num_envs: int, backend: str, device: torch.device, seconds: float) -> float:
    """Environment steps per second without an agent."""
    config = EnvConfig(ENV, num_envs=num_envs, backend=BACKENDS[backend])  # type: ignore[arg-type]
    with closing(make_envs(config, device=str(device))) as envs:
        envs.reset(0)
        place = device if envs.takes_tensors else torch.device("cpu")

        def step() -> None:
            action = torch.randint(4, (num_envs,), device=place)
            envs.step(action if envs.takes_tensors else action.numpy())

        return num_envs * rate(step, seconds, device)


def rate(step: Callable[[], None], seconds: float, device: torch.device) -> float:
    """Calls per second, after some to warm up."""
    for _ in range(3):
        step()
    wait(device)
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step()
        calls += 1
    wait(device)
    return calls / (time.perf_counter() - began)


def wait(device: torch.device) -> None:
    """Until the device has done everything that was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def trained(num_envs: int, backend: str, device: torch.device, vector_steps: int) -> float:
    """Environment steps per second in the second half of a short pre-training run."""
    half = vector_steps // 2
    config = {
        "env": {"num_envs": num_envs, "backend": BACKENDS[backend]},
        "warmup_steps": 2 * num_envs,
        "updates_per_step": 1 / num_envs,
        "replay.capacity_steps": 32 * num_envs,
        "log": {"tensorboard": False, "log_every_steps": half * num_envs, "keep_replay": False},
    }
    config["log"]["checkpoint_every_steps"] = 10 * vector_steps * num_envs  # type: ignore[index]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        voidrl.pretrain(ENV, steps=2 * half * num_envs, out=out, config=config, device=str(device))
        rows = [row for row in read_metrics(out) if "time/steps_per_second" in row]
    return float(rows[1]["time/steps_per_second"])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 1024, 4096])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement of stepping alone")
    parser.add_argument("--vector-steps", type=int, default=200, help="steps of all environments in a run")
    options = parser.parse_args()
    device = pick_device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    results = []
    for n in options.num_envs:
        for backend in BACKENDS:
            found = alone(n, backend, device, options.seconds)
            results.append((n, backend, found, trained(n, backend, device, options.vector_steps)))
    print(f"{ENV} on {name}, torch {torch.__version__}: environment steps per second\n")
    print("| environments | in | alone | pre-training |")
    print("|---:|---|---:|---:|")
    for n, backend, stepped, run in results:
        print(f"| {n:,} | {backend} | {stepped:,.0f} | {run:,.0f} |")


if __name__ == "__main__":
    main()
