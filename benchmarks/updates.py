"""Updates without environments: an agent with an engine, on a replay of random transitions.

For example `python benchmarks/updates.py urlb-states discrete --engine compile --seconds 2`.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from voidrl.agent import Agent
from voidrl.cli.speed import random_actions
from voidrl.config import Config, ReplayConfig
from voidrl.engine.engine import Engine
from voidrl.replay import Replay, make_replay
from voidrl.system.device import placed
from voidrl.training.build import build_config
from voidrl.types import EnvSpec

REPEATS = 5
WARMUP = {"cuda": 64, "cpu": 4}  # updates; on CUDA enough to capture every graph
MULTIPLE = {"cuda": 16, "cpu": 2}  # updates per graph; the period of target updates divides it
REPLAY_ENVS = 16
REPLAY_STEPS = {"cuda": 4096, "cpu": 512}  # per environment; on CUDA more frames than the caches hold
ENTRIES = {"cuda": 2**20, "cpu": 2**14}  # of a prioritized replay, of which each batch reads all priorities
EPISODE_STEPS = 250
DISTINCT_FRAMES = 64  # drawing all frames would dominate the set-up

Say = Callable[[str], None]


def main() -> None:
    """Print the updates per second of each workload: the median, the slowest and the fastest repeat."""
    from workloads import WORKLOADS

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("workloads", nargs="+", choices=WORKLOADS)
    parser.add_argument("--engine", default="auto", choices=("auto", "eager", "graph", "compile"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    for name in options.workloads:
        work = WORKLOADS[name]
        config = build_config(work.spec, [*work.layers, {"engine": options.engine}])
        with placed(options.device, 0) as device:
            rates = Updates(work.spec, config, device, print).rates(options.seconds)
        print(f"{name:16}{statistics.median(rates):10.1f}  ({min(rates):.1f} to {max(rates):.1f}) updates/s")


class Updates:
    """An agent with an engine and a replay of random transitions, warmed up."""

    def __init__(self, spec: EnvSpec, config: Config, device: torch.device, say: Say) -> None:
        counts_memory = device.type == "cuda"
        self.agent, self.device = Agent(spec, config, device), device
        self.replay = random_replay(
            spec, device, self.agent.method.skill_dim, say, config.replay, self.agent.note_dim
        )
        synchronize(device)
        if counts_memory:
            torch.cuda.reset_peak_memory_stats(device)
        before, start = torch.cuda.memory_allocated(device) if counts_memory else 0, time.perf_counter()
        self.engine = Engine(self.agent, self.replay, say)
        self.updates = 0
        self.run(WARMUP[device.type])
        synchronize(device)
        self.start_seconds = time.perf_counter() - start
        peak = torch.cuda.max_memory_allocated(device) - before if counts_memory else None
        self.peak_mib = None if peak is None else peak / 2**20

    def run(self, count: int) -> None:
        """Run the next `count` updates."""
        self.engine.update(self.updates, count)
        self.updates += count

    def rates(self, seconds: float) -> list[float]:
        """Updates per second in each repeat; `seconds` are for all of them."""
        multiple = MULTIPLE[self.device.type]
        self.run(multiple)
        count = multiple
        while (elapsed := time_run(self.run, count, self.device)) < seconds / REPEATS / 8:
            count *= 4
        count = max(1, math.ceil(count * seconds / REPEATS / elapsed / multiple)) * multiple
        return [count / time_run(self.run, count, self.device) for _ in range(REPEATS)]


def random_replay(
    spec: EnvSpec, device: torch.device, skill_dim: int, say: Say, config: ReplayConfig, note_dim: int = 0
) -> Replay:
    """A replay with episodes of about `EPISODE_STEPS`, half of them terminated."""
    rng, steps = np.random.default_rng(0), REPLAY_STEPS[device.type]
    capacity = (steps + 1) * REPLAY_ENVS
    if config.priority_exponent:
        capacity = max(capacity, ENTRIES[device.type])
    config = dataclasses.replace(config, capacity_steps=capacity, device="auto")
    replay = make_replay(config, spec, REPLAY_ENVS, skill_dim, device, say, note_dim)
    shape = (DISTINCT_FRAMES, REPLAY_ENVS, *spec.stored_shape)
    frames: np.ndarray
    if spec.pixels:
        frames = rng.integers(0, 256, shape, dtype=np.uint8)
    else:
        frames = rng.standard_normal(shape, dtype=np.float32)
    action = random_actions(spec, rng, (steps, REPLAY_ENVS))
    reward = rng.standard_normal((steps, REPLAY_ENVS), dtype=np.float32)
    ended = rng.random((steps, REPLAY_ENVS)) < 1 / EPISODE_STEPS
    terminated = ended & (rng.random((steps, REPLAY_ENVS)) < 0.5)
    skill = torch.randn(REPLAY_ENVS, skill_dim, device=device)
    replay.reset(frames[0])
    for t in range(steps):
        after = frames[(t + 1) % len(frames)]
        replay.add(action[t], reward[t], terminated[t], ended[t] & ~terminated[t], after, skill)
    return replay


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_run(run: Callable[[int], object], count: int, device: torch.device) -> float:
    """Seconds that `run(count)` takes."""
    synchronize(device)
    start = time.perf_counter()
    run(count)
    synchronize(device)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
