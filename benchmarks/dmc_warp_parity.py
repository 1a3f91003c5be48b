"""MuJoCo Warp against C MuJoCo in the domains of `dmc-warp/…`: positions, rewards and images.

python benchmarks/dmc_warp_parity.py --json parity.json
python benchmarks/dmc_warp_parity.py --tasks walker_run --device cuda
python benchmarks/dmc_warp_parity.py --images docs/images/dmc_warp.png    # needs an OpenGL for C MuJoCo

Both start in the same states and take the same actions, random ones or none. A table shows how far positions
(m and rad) and rewards are apart after some control steps: the median and the largest of all simulations.
Contacts make bodies chaotic, so that any rounding grows. To compare, C MuJoCo also starts from positions
rounded to float32, all else being computed in float64: `rounded start`.

Images are of the same seeds, C MuJoCo on the left and MuJoCo Warp on the right: as agents see them, 84 × 84,
and twice as large.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voidrl.config import DMControlConfig, EnvConfig
from voidrl.device import pick_device
from voidrl.envs import dmc_tasks
from voidrl.envs.ids import DMC, DMC_WARP
from voidrl.envs.make import make_envs
from voidrl.envs.warp_physics import WarpPhysics
from voidrl.envs.warp_tasks import DOMAINS
from voidrl.runs.folder import environment_info

TASKS = ("walker_run", "cheetah_run", "hopper_hop", "quadruped_walk")
AFTER_STEPS = (1, 10, 50, 200)
IMAGE_SIZE, ENLARGED = 84, 2
IMAGE_STEPS = 30  # after which most bodies lie on the floor
FAR = 16  # of 255
Trajectory = tuple[np.ndarray, np.ndarray]
"""Positions (steps, N, nq) and rewards (steps, N)."""


def load(task: str, seed: int) -> Any:
    """dm_control's environment."""
    domain, _, name = task.partition("_")
    return dmc_tasks.load(domain, name, seed)


def physics_like(env: Any, num_worlds: int, device: torch.device) -> WarpPhysics:
    """Simulations of the same model."""
    substeps = round(env.control_timestep() / env.physics.timestep())
    return WarpPhysics(env.physics.model.ptr, num_worlds, device, substeps)


def in_c(task: str, actions: np.ndarray, *, rounded: bool = False) -> Trajectory:
    """Simulate in float64, simulation i from seed i."""
    positions, rewards = [], []
    for seed, chosen in enumerate(actions.swapaxes(0, 1)):
        env = load(task, seed)
        env.reset()
        if rounded:
            env.physics.data.qpos[:] = env.physics.data.qpos.astype(np.float32)
            env.physics.data.qvel[:] = env.physics.data.qvel.astype(np.float32)
            env.physics.after_reset()
        steps = [(env.step(action).reward, env.physics.data.qpos.copy()) for action in chosen]
        rewards.append([reward for reward, _ in steps])
        positions.append([position for _, position in steps])
    return np.array(positions).swapaxes(0, 1), np.array(rewards).T


def in_warp(task: str, actions: np.ndarray, device: torch.device) -> Trajectory:
    """The same in MuJoCo Warp, from the states in which C MuJoCo starts."""
    domain, _, name = task.partition("_")
    envs = [load(task, seed) for seed in range(actions.shape[1])]
    physics = physics_like(envs[0], len(envs), device)
    ours = DOMAINS[domain](physics, name)
    for world, env in enumerate(envs):
        env.reset()
        physics.to_default(torch.tensor([world], device=device))
        physics.qpos[world] = torch.from_numpy(env.physics.data.qpos)
        physics.qvel[world] = torch.from_numpy(env.physics.data.qvel)
    physics.forward()
    positions, rewards = [], []
    for action in actions:
        physics.ctrl.copy_(torch.from_numpy(action))
        physics.advance()
        positions.append(physics.qpos.double().cpu().numpy())
        rewards.append(ours.reward().double().cpu().numpy())
    if physics.failures().any():
        raise SystemExit(f"{task}: {physics.explain(int(physics.failures().min()))}")
    return np.array(positions), np.array(rewards)


def compare(task: str, num_worlds: int, device: torch.device) -> list[dict[str, Any]]:
    """One row for each kind of actions."""
    shape = (AFTER_STEPS[-1], num_worlds, *load(task, 0).action_spec().shape)
    kinds = {"none": np.zeros(shape), "random": np.random.default_rng(0).uniform(-1, 1, shape)}
    rows = []
    for kind, actions in kinds.items():
        exact = in_c(task, actions)
        others = {"warp": in_warp(task, actions, device), "rounded start": in_c(task, actions, rounded=True)}
        for simulator, (positions, rewards) in others.items():
            apart = np.abs(positions - exact[0]).max(2)  # (steps, N)
            row = {"task": task, "actions": kind, "simulator": simulator}
            for step in AFTER_STEPS:
                row[f"qpos_median_{step}"] = float(np.median(apart[step - 1]))
                row[f"qpos_max_{step}"] = float(apart[step - 1].max())
            row["reward_max_50"] = float(np.abs(rewards - exact[1])[:50].max())
            row["mean_reward"], row["mean_reward_c"] = float(rewards.mean()), float(exact[1].mean())
            rows.append(row)
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print it as Markdown."""
    after = " | ".join(f"{step}" for step in AFTER_STEPS)
    print(f"| task | actions | against C MuJoCo | {after} | Δ reward, 50 steps | mean reward (C) |")
    print("|---|---|---|" + "---:|" * (len(AFTER_STEPS) + 2))
    for row in rows:
        apart = " | ".join(f"{row[f'qpos_median_{s}']:.0e}, {row[f'qpos_max_{s}']:.0e}" for s in AFTER_STEPS)
        means = f"{row['mean_reward']:.4f} ({row['mean_reward_c']:.4f})"
        names = f"{row['task']} | {row['actions']} | {row['simulator']}"
        print(f"| {names} | {apart} | {row['reward_max_50']:.0e} | {means} |")


def image(env: str, size: int, device: torch.device) -> np.ndarray:
    """What an agent sees after some steps without forces, (H, W, 3)."""
    # C MuJoCo draws in a process of its own: with Warp in the same one, the OpenGL of a CPU may crash.
    config = EnvConfig(env, dmc=DMControlConfig(observation="pixels", image_size=size, action_repeat=1))
    with closing(make_envs(config, device=str(device))) as envs:
        envs.reset(seed=1)
        for _ in range(IMAGE_STEPS):
            frames = envs.step(np.zeros((1, envs.spec.action_dim), np.float32)).frames
        return np.moveaxis(torch.as_tensor(frames[0]).cpu().numpy(), 0, -1)


def draw(tasks: Sequence[str], device: torch.device, path: Path) -> None:
    """Write images side by side and print how far their pixels are apart."""
    from PIL import Image

    rows = []
    for task in tasks:
        row = []
        for scale in (1, ENLARGED):
            size = IMAGE_SIZE * scale
            theirs, ours = (image(prefix + task, size, device) for prefix in (DMC, DMC_WARP))
            apart = np.abs(ours.astype(int) - theirs)
            far = (apart > FAR).any(2).mean()
            print(f"{task}, {size} × {size}: mean |Δ| {apart.mean():.1f}, pixels over {FAR} apart {far:.0%}")
            enlarge = np.ones((ENLARGED // scale, ENLARGED // scale, 1), np.uint8)
            row += [np.kron(picture, enlarge) for picture in (theirs, ours)]
        rows.append(np.concatenate(row, 1))
    Image.fromarray(np.concatenate(rows)).save(path, optimize=True)


def main() -> None:
    """Compare, and print or draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--worlds", type=int, default=16)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--images", type=Path, metavar="FILE", help="draw instead of comparing states")
    options = parser.parse_args()
    device = pick_device(options.device)
    if options.images:
        draw(options.tasks, device, options.images)
        return
    rows = [row for task in options.tasks for row in compare(task, options.worlds, device)]
    print_table(rows)
    if options.json:
        record = {
            "device": str(device),
            "worlds": options.worlds,
            "environment": environment_info(),
            "rows": rows,
        }
        options.json.write_text(json.dumps(record, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
