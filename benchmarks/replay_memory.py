"""How long a batch takes to read from a replay on the GPU and from one in main memory, and updates from each.

    python benchmarks/replay_memory.py --device cuda --json h200-replay-memory.json

Frames are random pixels, 84×84 gray. A batch is read in a captured graph, and updates are those of the
workload `discrete`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voidrl.agent import Agent
from voidrl.cli.benchmarks.timing import measure, measure_calls, synchronize
from voidrl.cli.benchmarks.workloads import ATARI, find_workload
from voidrl.engine.engine import MAX_BURST, Engine
from voidrl.replay import Replay
from voidrl.runs.folder import environment_info
from voidrl.system.device import pick_device
from voidrl.training.build import build_config

WARMUP_UPDATES = 64  # graphs of single updates and of bursts are captured
CPU = torch.device("cpu")


def filled(storage: torch.device, device: torch.device, num_envs: int, steps: int) -> tuple[Replay, float]:
    """A full replay, and the seconds that recording a step takes."""
    frames = np.random.default_rng(0).integers(0, 256, (16, num_envs, *ATARI.stored_shape), dtype=np.uint8)
    replay = Replay(ATARI, num_envs, steps * num_envs, 0, storage, device)
    action, reward, no = np.zeros(num_envs, np.int64), np.zeros(num_envs), np.zeros(num_envs, bool)
    skill = torch.zeros(num_envs, 0, device=device)
    replay.reset(frames[0])
    synchronize(device)
    began = time.perf_counter()
    for step in range(steps):
        replay.add(action, reward, no, no, frames[step % len(frames)], skill)
    synchronize(device)
    return replay, (time.perf_counter() - began) / steps


def sampling(device: torch.device, num_envs: int, steps: int, seconds: float) -> list[dict[str, Any]]:
    """Microseconds for a batch of 512 stacks of 4, from replays that hold the same frames."""
    found = []
    places = {"device": device, "main memory": CPU} if device.type == "cuda" else {"device": device}
    for where, storage in places.items():
        replay, recording = filled(storage, device, num_envs, steps)

        def read(replay: Replay = replay) -> torch.Tensor:
            return replay.frames_of(replay.sample(512)).stacked()

        (timing,) = measure_calls([read], device, seconds)
        updates = update_rate(replay, device, seconds) if device.type == "cuda" else None
        found.append(
            {
                "frames": where,
                "steps": len(replay),
                "microseconds": timing.seconds * 1e6,
                "record_microseconds": recording * 1e6,
                "updates_per_second": updates,
                "num_envs": num_envs,
            }
        )
        del replay, read
    return found


def update_rate(replay: Replay, device: torch.device, seconds: float) -> float:
    """Captured updates per second."""
    config = build_config(replay.spec, [*find_workload("discrete").layers, {"engine": "graph"}])
    engine = Engine(Agent(replay.spec, config, device), replay, print)
    engine.update(0, WARMUP_UPDATES)
    (timing,) = measure([lambda count: engine.update(0, count)], device, seconds, MAX_BURST)
    engine.close()
    return 1 / timing.seconds


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=15_000, help="of each environment")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = pick_device(options.device)
    rows = sampling(device, options.num_envs, options.steps, options.seconds)
    print(f"512 stacks of 4 frames, networks on {device}\n")
    print("| frames | steps | µs to sample and gather | µs to record a step | updates/s |")
    print("|---|---:|---:|---:|---:|")
    for row in rows:
        print(
            f"| {row['frames']} | {row['steps']:,} | {row['microseconds']:.0f} | "
            f"{row['record_microseconds']:.0f} | "
            f"{'–' if row['updates_per_second'] is None else round(row['updates_per_second'])} |"
        )
    if options.json is not None:
        figures = {"sampling": rows, "environment": environment_info()}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
