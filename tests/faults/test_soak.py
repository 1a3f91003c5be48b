"""Nothing grows while one process trains run after run: memory, descriptors, threads, processes."""

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fault_lab import environ
from tiny_runs import tiny

import voidrl
from voidrl.config import merge

SECONDS = float(os.environ.get("VOIDRL_SOAK_SECONDS", "180"))
# Allocators keep some pages; a leak of one replay, agent or connection per run is far more over the rounds.
GROWTH_KB = 8 << 10
LOG = {"log__log_every_steps": 5, "log__checkpoint_every_steps": 20, "log__eval_every_steps": 20}
CONFIG = tiny(env__num_envs=2, env__backend="async", replay__capacity_steps=40, **LOG)


@pytest.mark.faults
def test_nothing_grows(tmp_path):
    command = [sys.executable, __file__, tmp_path]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=10 * SECONDS + 600)
    assert done.returncode == 0, done.stderr[-3000:]
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    settled = rounds[len(rounds) // 3 :]  # imports, caches and thread pools come first
    print(f"{len(rounds)} rounds, first {rounds[0]}, settled {settled[0]}, last {rounds[-1]}")
    for name in ("descriptors", "threads", "children", "zombies", "shared"):
        assert max(r[name] for r in settled[-3:]) <= max(r[name] for r in settled[:3]), (name, rounds)
    assert rounds[-1]["zombies"] == 0
    third = max(1, len(settled) // 3)
    first = statistics.median(r["rss_kb"] for r in settled[:third])
    last = statistics.median(r["rss_kb"] for r in settled[-third:])
    assert last - first < GROWTH_KB, f"resident memory grew from {first} to {last} KB: {len(settled)} rounds"


# The process that trains


def one_round(number, folder):
    """A run with workers, a resume of it, fine-tuning, and an evaluation."""
    run = folder / "run"
    config = merge(CONFIG, {"log": {"tensorboard": number % 2 == 0}})
    voidrl.pretrain("fault_worlds:Slow", steps=60, seed=number, out=run, overwrite=True, config=config)
    agent = voidrl.resume(run, steps=100)
    voidrl.finetune(agent, "fault_worlds:Slow", steps=40, out=folder / "tuned", overwrite=True)
    voidrl.evaluate(run, episodes=2, device="cpu")


def measure():
    """What this process holds."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    tasks = Path("/proc/self/task").iterdir()
    children = [pid for task in tasks for pid in (task / "children").read_text().split()]
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in children]
    maps = Path("/proc/self/maps").read_text()
    return {
        "rss_kb": int(status["VmRSS"].split()[0]),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "threads": int(status["Threads"]),
        "children": len(children),
        "zombies": states.count("Z"),
        "shared": maps.count("memfd:voidrl") + maps.count("/dev/shm/"),
    }


def main():
    torch.set_num_threads(1)
    end, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < end or number < 9:
        number += 1
        one_round(number, Path(sys.argv[1]))
        gc.collect()
        print(json.dumps(measure()), flush=True)


if __name__ == "__main__":
    main()
