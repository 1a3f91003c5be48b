"""The memory of a million frames, as they are and compressed, and how long a batch takes to read.

    python benchmarks/replay_memory.py --json memory.json
    python benchmarks/replay_memory.py --device cuda --json h200-replay-memory.json

Frames are of Atari games played at random, 84×84 gray, as `atari/GAME` gives them. On CUDA a batch is read
from a replay on the GPU and in main memory, with frames as they are and compressed, in a captured graph; and
updates of the workload `discrete` are made from each (`voidrl bench update discrete` has random pixels).
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voidrl.agent import Agent
from voidrl.bench.timing import measure, measure_calls, synchronize
from voidrl.bench.workloads import find_workload
from voidrl.build import build_config
from voidrl.config import EnvConfig, ReplayConfig
from voidrl.device import pick_device
from voidrl.engine.engine import MAX_BURST, Engine
from voidrl.envs.make import make_envs
from voidrl.replay import Replay
from voidrl.replay.compression import WORD_BYTES, index_bytes
from voidrl.replay.sizes import frame_bytes, slot_bytes
from voidrl.runs.folder import environment_info
from voidrl.types import EnvSpec

GAMES = ("ms_pacman", "pong", "breakout", "freeway", "montezuma_revenge", "assault", "seaquest")
GIB = 2**30
MILLION = 1_000_000
WARMUP_UPDATES = 64  # graphs of single updates and of bursts are captured
CPU = torch.device("cpu")


def play(game: str, num_envs: int, steps: int) -> tuple[np.ndarray, EnvSpec]:
    """(steps, N, 1, 84, 84) frames of random play, and their spec."""
    random = np.random.default_rng(0)
    with closing(make_envs(EnvConfig(f"atari/{game}", num_envs=num_envs))) as envs:
        frames = [envs.reset(0)[0].copy()]
        for _ in range(steps - 1):
            action = random.integers(envs.spec.num_actions, size=num_envs)
            frames.append(envs.step(action).frames.copy())
        return np.stack(frames), envs.spec


def filled(
    frames: np.ndarray,
    spec: EnvSpec,
    storage: torch.device,
    device: torch.device,
    *,
    compressed_gib: float = 0.0,
    rounds: int = 1,
) -> tuple[Replay, float]:
    """A replay of these frames, several times over, and the seconds that recording a step takes."""
    steps, n = frames.shape[:2]
    capacity = steps * n * rounds
    config = ReplayConfig(capacity, compressed_gib=compressed_gib)
    replay = Replay(spec, n, capacity, 0, storage, device, config)
    action, reward, no = np.zeros(n, np.int64), np.zeros(n), np.zeros(n, bool)
    skill = torch.zeros(n, 0, device=device)
    replay.reset(frames[0])
    synchronize(device)
    began = time.perf_counter()
    for _ in range(rounds):
        for now in frames[1:]:
            replay.add(action, reward, no, no, now, skill)
    synchronize(device)
    return replay, (time.perf_counter() - began) / (rounds * (steps - 1))


def memory(game: str, num_envs: int, steps: int) -> dict[str, Any]:
    """Bytes of a frame: as it is, by zlib, and compressed."""
    frames, spec = play(game, num_envs, steps)
    replay, seconds = filled(frames, spec, CPU, CPU, compressed_gib=1.0)
    assert replay.compressed is not None
    slots = torch.arange(len(frames) * num_envs)
    assert np.array_equal(replay.read_frames(slots).numpy(), frames.reshape(-1, *spec.stored_shape))
    count, raw = frames.shape[0] * frames.shape[1], frame_bytes(spec)
    sample = frames.reshape(count, -1)[:: max(1, count // 500)]
    records = int(replay.compressed.state()["row_words"].sum()) * WORD_BYTES / count
    index = index_bytes(raw, num_envs, steps) / count
    return {
        "game": game,
        "frames": count,
        "raw_bytes": raw,
        "zlib_bytes": float(np.mean([len(zlib.compress(frame.tobytes())) for frame in sample])),
        "record_bytes": records,
        "index_bytes": index,
        "compressed_bytes": records + index,
        "other_bytes": slot_bytes(spec, 0) - raw,
        "ratio": raw / (records + index),
        "record_microseconds_per_frame_on_cpu": seconds / num_envs * 1e6,
    }


def sampling(
    device: torch.device, game: str, num_envs: int, steps: int, rounds: int, seconds: float
) -> list[dict[str, Any]]:
    """Microseconds for a batch of 512 stacks of 4, from replays that hold the same frames."""
    frames, spec = play(game, num_envs, steps)
    gib = 0.4 * frames.nbytes * rounds / GIB
    found = []
    places = {"device": device, "main memory": CPU} if device.type == "cuda" else {"device": device}
    for where, storage in places.items():
        for compressed_gib in (0.0, gib):
            replay, recording = filled(
                frames, spec, storage, device, compressed_gib=compressed_gib, rounds=rounds
            )

            def read(replay: Replay = replay) -> torch.Tensor:
                return replay.frames_of(replay.sample(512)).stacked()

            (timing,) = measure_calls([read], device, seconds)
            updates = update_rate(replay, device, seconds) if device.type == "cuda" else None
            found.append(
                {
                    "frames": where,
                    "compressed": bool(compressed_gib),
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
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--games", nargs="+", default=GAMES)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=768, help="of each environment")
    parser.add_argument("--rounds", type=int, default=20, help="times that the frames are stored to read")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement of reading")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = pick_device(options.device)
    print("| game | bytes per frame | zlib | compressed | ratio | GiB per million frames: raw, compressed |")
    print("|---|---:|---:|---:|---:|---|")
    rows = []
    for game in options.games:
        rows.append(row := memory(game, options.num_envs, options.steps))
        million = (
            f"{(row[name] + row['other_bytes']) * MILLION / GIB:.2f}"
            for name in ("raw_bytes", "compressed_bytes")
        )
        print(
            f"| {game} | {row['raw_bytes']} | {row['zlib_bytes']:.0f} | {row['compressed_bytes']:.0f} | "
            f"{row['ratio']:.1f} | {', '.join(million)} |",
            flush=True,
        )
    read = sampling(
        device, options.games[0], options.num_envs, options.steps, options.rounds, options.seconds
    )
    print(f"\n512 stacks of 4 frames of {options.games[0]}, networks on {device}\n")
    print("| frames | compressed | steps | µs to sample and gather | µs to record a step | updates/s |")
    print("|---|---|---:|---:|---:|---:|")
    for row in read:
        print(
            f"| {row['frames']} | {'yes' if row['compressed'] else 'no'} | {row['steps']:,} | "
            f"{row['microseconds']:.0f} | {row['record_microseconds']:.0f} | "
            f"{'–' if row['updates_per_second'] is None else round(row['updates_per_second'])} |"
        )
    if options.json is not None:
        figures = {"memory": rows, "sampling": read, "environment": environment_info()}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
