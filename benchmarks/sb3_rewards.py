"""APT's reward in Stable-Baselines3: how much of the demo's maze PPO and DQN see, with it and without.

    python benchmarks/sb3_rewards.py --out runs/sb3 --jobs 14
    python benchmarks/sb3_rewards.py --out runs/sb3 --variants ppo-k50-fast ppo-zero-fast --seeds 1 2

Each run is a process with one thread. Its line goes to `<out>/results.jsonl` when it is done: variant, seed,
coverage (fraction of the open cells) at eighths of the run, seconds, and a few numbers on the training. Runs
that the file already has are not repeated. The table has the mean over the seeds with its standard error.

`ppo-k50-fast` and `dqn-n5-standard` have the defaults of `APTReward` and `APTReplayBuffer`; other variants
change one thing. The names are those of results/sb3, which also has variants that can no longer be chosen.
`DQN_SETTINGS` are those of the demo's own learner, as far as Stable-Baselines3 has them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

MAZE = {"size": 13, "loops": 0.1, "layout_seed": 3, "image_size": 39}  # the demo's
ENVS = 16
STEPS = 16_000

PPO_SETTINGS: dict[str, Any] = {
    "n_steps": 16,
    "batch_size": 128,
    "n_epochs": 6,
    "gamma": 0.96,
    "gae_lambda": 0.95,
    "learning_rate": 1e-3,
    "ent_coef": 0.01,
}
DQN_SETTINGS: dict[str, Any] = {
    "batch_size": 64,
    "gamma": 0.96,
    "learning_rate": 5e-4,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "train_freq": 1,
    "gradient_steps": 4,  # every 16 steps
    "target_update_interval": ENVS,
    "tau": 0.185,  # 1 − 0.95⁴, once per four updates
    "exploration_fraction": 0.125,  # 2000 steps
    "exploration_final_eps": 0.2,
}
NO_REWARD = {"intrinsic_scale": 0.0}
# Arguments of APTReward, of APTReplayBuffer, or of neither
VARIANTS: dict[str, dict[str, Any]] = {
    "random": {},
    "dqn-zero": NO_REWARD | {"n_steps": 1},
    "dqn-n5-zero": NO_REWARD,
    "dqn-standard": {"n_steps": 1},
    "dqn-n5-standard": {},
    "dqn-n5-place": {"encoder": "place"},
    "ppo-zero-fast": NO_REWARD,
    "ppo-k20-fast": {"k": 20},
    "ppo-k50-fast": {},
    "ppo-k200-fast": {"k": 200},
    "ppo-k50-place-fast": {"encoder": "place"},
}


# One run


def run(name: str, seed: int, steps: int, layout_seed: int) -> dict[str, Any]:
    """Train one variant and measure its coverage."""
    import torch
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.utils import set_random_seed
    from stable_baselines3.common.vec_env import VecEnvWrapper

    import voidrl  # noqa: F401  registers the maze
    from voidrl.envs import maze
    from voidrl.playing.sb3 import APTReplayBuffer, APTReward

    torch.set_num_threads(1)
    algorithm = name.partition("-")[0]
    seen: set[int] = set()
    curve: list[float] = []
    layout = MAZE | {"layout_seed": layout_seed}
    open_cells = maze.PixelMaze(**layout).num_open_cells
    first = maze.PixelMaze(**layout)
    seen.add(first.start_cell[0] * MAZE["size"] + first.start_cell[1])

    class Count(VecEnvWrapper):
        taken = 0

        def reset(self) -> Any:
            return self.venv.reset()

        def step_wait(self) -> Any:
            out = self.venv.step_wait()
            seen.update(int(info["cell"]) for info in out[3])
            Count.taken += self.num_envs
            if Count.taken >= (len(curve) + 1) * steps // 8:
                curve.append(round(len(seen) / open_cells, 4))
            return out

    venv: Any = Count(make_vec_env("voidrl/PixelMaze-v0", ENVS, seed=seed, env_kwargs=layout))
    began, cpu = time.perf_counter(), time.process_time()
    extra: dict[str, Any] = {}
    options = VARIANTS[name] | {"extrinsic_scale": 0.0, "seed": seed}
    if options.get("encoder") == "place":
        options["encoder"] = place
    if algorithm == "random":
        set_random_seed(seed)
        rng = np.random.default_rng(seed)
        venv.reset()
        while Count.taken < steps:
            venv.step(rng.integers(0, 4, ENVS))
    elif algorithm == "ppo":
        venv = APTReward(venv, **options)
        model: Any = PPO("CnnPolicy", venv, device="cpu", seed=seed, **PPO_SETTINGS)
        model.learn(steps, log_interval=10**9)
        extra = training_numbers(model)
    else:
        model = DQN(
            "CnnPolicy",
            venv,
            device="cpu",
            seed=seed,
            replay_buffer_class=APTReplayBuffer,
            replay_buffer_kwargs=options | {"gamma": DQN_SETTINGS["gamma"]},
            policy_kwargs={"net_arch": [256]},
            **DQN_SETTINGS,
        )
        model.learn(steps, log_interval=10**9)
        rewards = model.replay_buffer.sample(256).rewards
        extra = {"reward_mean": float(rewards.mean()), "reward_std": float(rewards.std())}
    return {
        "variant": name,
        "seed": seed,
        "layout_seed": layout_seed,
        "steps": steps,
        "coverage": round(len(seen) / open_cells, 4),
        "curve": curve,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        **{key: round(value, 4) for key, value in extra.items()},
    }


def training_numbers(model: Any) -> dict[str, float]:
    """Entropy, explained variance and rewards of PPO's last rollout."""
    logged = model.logger.name_to_value
    names = {
        "entropy": "train/entropy_loss",
        "explained_variance": "train/explained_variance",
        "value_loss": "train/value_loss",
    }
    found = {name: float(logged[key]) for name, key in names.items() if key in logged}
    rewards = model.rollout_buffer.rewards
    return found | {"reward_mean": float(rewards.mean()), "reward_std": float(rewards.std())}


def place(frames: Any) -> Any:
    """(n, 2): the agent's row and column in cells, read from the image: what a perfect f would see."""
    import torch

    red = (frames[:, 0] > 200) & (frames[:, 1] < 120)  # (n, H, W)
    weight = red.float() / red.sum((1, 2), keepdim=True).clamp(min=1)
    along = torch.arange(frames.shape[-1], dtype=torch.float32)
    return torch.stack([(weight.sum(2) * along).sum(1), (weight.sum(1) * along).sum(1)], 1) / 3


# All runs


def read(path: Path) -> list[dict[str, Any]]:
    """The results so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_all(todo: Sequence[tuple[str, int]], args: argparse.Namespace, results: Path) -> bool:
    """Run what is missing, `jobs` processes at a time."""
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment["CUDA_VISIBLE_DEVICES"] = ""
    waiting, running, failed = list(todo), [], False
    end = time.monotonic() + 60 * args.minutes
    while waiting or running:
        if time.monotonic() > end:
            for _, _, process in running:
                process.kill()
            print(f"time is up; {len(waiting) + len(running)} runs are missing", flush=True)
            return False
        while waiting and len(running) < args.jobs:
            name, seed = waiting.pop(0)
            command = [sys.executable, __file__, "--one", name, "--seeds", str(seed), "--out", str(args.out)]
            command += ["--steps", str(args.steps), "--layout-seed", str(args.layout_seed)]
            running.append((name, seed, subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)))
        time.sleep(0.2)
        for job in [job for job in running if job[2].poll() is not None]:
            running.remove(job)
            name, seed, process = job
            out = process.communicate()[0].decode()
            if process.returncode:
                print(f"{name} seed {seed} failed with {process.returncode}", flush=True)
                failed = True
                continue
            line = out.strip().splitlines()[-1]
            with results.open("a") as file:
                file.write(line + "\n")
            row = json.loads(line)
            print(f"{name} seed {seed}: {row['coverage']:.0%} in {row['seconds']:.0f} s", flush=True)
    return not failed


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Mean, standard error and each seed, in percent, in the order of the variants."""
    lines = [f"{'variant':<26}{'mean':>6}{'± se':>7}  seeds"]
    for name in VARIANTS:
        mine = sorted((row for row in rows if row["variant"] == name), key=lambda row: row["seed"])
        if mine:
            values = 100 * np.array([row["coverage"] for row in mine])
            error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            each = " ".join(f"{value:.0f}" for value in values)
            lines.append(f"{name:<26}{values.mean():6.1f}{error:7.1f}  {each}")
    return "\n".join(lines)


def main() -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/sb3"))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6, help="stop then; the same command resumes")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--layout-seed", type=int, default=MAZE["layout_seed"])
    parser.add_argument("--one", choices=list(VARIANTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run(args.one, args.seeds[0], args.steps, args.layout_seed)))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    results = args.out / "results.jsonl"

    def current() -> list[dict[str, Any]]:
        same = (args.steps, args.layout_seed)
        return [row for row in read(results) if (row["steps"], row["layout_seed"]) == same]

    done = {(row["variant"], row["seed"]) for row in current()}
    todo = [(name, seed) for seed in args.seeds for name in args.variants if (name, seed) not in done]
    ok = run_all(todo, args, results)
    print(table(current()))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
