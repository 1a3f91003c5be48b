"""Train for a while in one process, with workers, evaluations, checkpoints and resumes, and count what grows.

Prints a JSON object per round: resident memory, descriptors, threads, children, zombies and shared memory.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path

import torch

import voidrl
from voidrl.config import merge

CONFIG = {
    "device": "cpu",
    "warmup_steps": 8,
    "updates_per_step": 1,
    "env": {"num_envs": 2, "backend": "async"},
    "learner": {"batch_size": 16, "hidden_dim": 8, "encoder": {"feature_dim": 4}},
    "representation": {"batch_size": 8, "encoder": {"feature_dim": 3}},
    "replay": {"capacity_steps": 40},
    "finetune": {"warmup_steps": 8},
    "log": {"log_every_steps": 5, "checkpoint_every_steps": 20, "eval_every_steps": 20, "eval_episodes": 2},
}


def one_round(number, folder):
    """A run with workers, a resume of it, fine-tuning, and an evaluation."""
    run = folder / "run"
    tensorboard = {"log": {"tensorboard": number % 2 == 0}}
    config = merge(CONFIG, tensorboard)
    voidrl.pretrain("fault_worlds:Slow", steps=60, seed=number, out=run, overwrite=True, config=config)
    agent = voidrl.resume(run, steps=100)
    voidrl.finetune(agent, "fault_worlds:Slow", steps=40, out=folder / "tuned", overwrite=True)
    voidrl.evaluate(run, episodes=2, device="cpu")


def measure():
    """What this process holds."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    children = [
        pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    ]
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
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end or number < 9:
        number += 1
        one_round(number, folder)
        gc.collect()
        print(json.dumps(measure()), flush=True)


if __name__ == "__main__":
    main()
