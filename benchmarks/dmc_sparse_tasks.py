"""How often uniform random actions solve the sparse tasks of DMControl, and how far they get.

    python benchmarks/dmc_sparse_tasks.py --episodes 1000                       # a table, in 13 minutes
    python benchmarks/dmc_sparse_tasks.py --episodes 0 --pictures docs/images   # each task at its goal

Actions are repeated as in the paper. Episodes continue past the goal for all 1000 control steps, which shows
the best of a whole episode, not only whether it reached the goal.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
from pathlib import Path

import numpy as np
from dm_control import mujoco

from voidrl.envs.dmc_tasks import load
from voidrl.envs.suites.dmcontrol import PIXELS_REPEAT, REPEATS, SPARSE

PROOFS = Path(__file__).parents[1] / "tests" / "envs" / "dmc_proofs.json"
SIZE = (240, 320)
RED = (255, 40, 40)


def play(domain: str, task: str, episodes: int, seed: int) -> np.ndarray:
    """The maximum measure of each episode, (episodes,)."""
    env = load(domain, task, seed)
    env.task.threshold = math.inf  # never ends early
    rng, spec = np.random.default_rng(seed), env.action_spec()
    best = np.full(episodes, -math.inf)
    for episode in range(episodes):
        step, steps = env.reset(), 0
        while not step.last():
            if steps % REPEATS.get(domain, PIXELS_REPEAT) == 0:
                action = rng.uniform(spec.minimum, spec.maximum)
            step, steps = env.step(action), steps + 1
            best[episode] = max(best[episode], env.task.measure(env.physics))
        assert steps == 1000
    return best


def table(episodes: int, seed: int) -> None:
    """Print thresholds, success rates with the upper end of Wilson's 95 % interval, and quantiles (m)."""
    print("| task | threshold | random successes | 95 % below | median | 99 % | 99.9 % | most |")
    print("|---|---|---|---|---|---|---|---|")
    for domain, task in ((domain, task) for domain, tasks in SPARSE.items() for task in tasks):
        name = f"{domain}_{task}"
        threshold, best = load(domain, task, 0).task.threshold, play(domain, task, episodes, seed)
        count = int((best >= threshold).sum())
        tail = " | ".join(f"{value:.2f}" for value in np.quantile(best, [0.5, 0.99, 0.999, 1]))
        rate = f"{count} of {episodes} ({count / episodes:.1%}) | {wilson(count, episodes):.1%}"
        print(f"| {name} | {threshold} m | {rate} | {tail} |", flush=True)


def wilson(count: int, n: int, z: float = 1.96) -> float:
    """The upper end of Wilson's interval for a proportion."""
    p = count / n
    return (p + z * z / (2 * n) + z * math.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)) / (1 + z * z / n)


def pictures(folder: Path) -> None:
    """Draw each task where its stored actions reach the goal, with the threshold as a red line."""
    from PIL import Image, ImageDraw

    for name, proof in json.loads(PROOFS.read_text()).items():
        domain, task = name.split("_", 1)
        env = load(domain, task, proof["seed"])
        shape = env.action_spec().shape
        actions = np.frombuffer(base64.b64decode(proof["actions"]), np.int8).reshape(-1, *shape) / 127
        step = env.reset()
        for action in np.repeat(actions, proof["repeat"], axis=0):
            step = env.step(action)
            if step.last():
                break
        env.physics.model.cam_fovy[0] = 55  # degrees; with the suite's 45 feet are cut off
        image = Image.fromarray(env.physics.render(*SIZE, camera_id=0))
        matrix = mujoco.Camera(env.physics, *SIZE, camera_id=0).matrix  # (3, 4)
        x, _, z = torso = env.physics.named.data.xpos["torso"]
        at = env.task.threshold
        ends = [(at, 0), (at, 2)] if "reach" in task else [(x - 4, at), (x + 4, at)]
        pen = ImageDraw.Draw(image)
        pen.line([project(matrix, [a, 0, b]) for a, b in ends], fill=RED, width=2)
        u, v = project(matrix, torso)
        pen.ellipse([u - 3, v - 3, u + 3, v + 3], fill=RED)
        seconds = env.physics.time()
        pen.text(
            (6, 4),
            f"{name}: {x if 'reach' in task else z:.2f} m of {at} m after {seconds:.1f} s",
            fill="white",
        )
        image.quantize(128, Image.Quantize.MAXCOVERAGE).save(folder / f"dmc_{name}.png")
        print(f"{name}: {env.task.measure(env.physics):.3f} m after {seconds:.2f} s, reward {step.reward}")


def project(matrix: np.ndarray, point: object) -> tuple[float, float]:
    """The pixel of a point in space."""
    u, v, w = matrix @ np.append(point, 1.0)
    return u / w, v / w


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=Path, help="folder for them")
    arguments = parser.parse_args()
    if arguments.episodes:
        table(arguments.episodes, arguments.seed)
    if arguments.pictures:
        pictures(arguments.pictures)
