"""MiniGrid's DoorKey-8x8 without its reward: which states APT finds, and which a random agent.

A key opens the door between two rooms. The counted states are the agent's position, whether it carries the
key, and whether the door is locked, closed or open. Each episode has the same layout, so that a state means
the same in all of them.

    python examples/minigrid_doorkey.py                          # three seeds of both, one after the other
    python examples/minigrid_doorkey.py --method apt --seed 2    # one of these runs, in a process of its own
    python examples/minigrid_doorkey.py --draw                   # the picture alone, from existing runs
"""

import argparse
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
from safetensors.numpy import load_file

import voidrl

ENV = "MiniGrid-DoorKey-8x8-v0"
SIZE = 8
DOORS = ("open", "closed", "locked")
WRAPPERS = [  # from the inside out
    "minigrid.wrappers:ReseedWrapper",  # the layout of seed 0
    "minigrid.wrappers:RGBImgObsWrapper?tile_size=5",  # the whole grid, 40 × 40 pixels
    "minigrid.wrappers:ImgObsWrapper",
    "minigrid_doorkey:CountedStates",
]
CONFIG = {"env.wrappers": WRAPPERS, "log": {"log_every_steps": 400, "tensorboard": False}}


class CountedStates(gym.Wrapper):
    """Reports the number of the state as `info["cell"]`, which voidrl counts."""

    def reset(self, **options):
        obs, info = self.env.reset(**options)
        return obs, {**info, "cell": self.number()}

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {**info, "cell": self.number()}

    def number(self):
        world = self.unwrapped
        x, y = (int(each) for each in world.agent_pos)
        door = next(thing for thing in world.grid.grid if thing is not None and thing.type == "door")
        _, _, state = door.encode()
        return state_number(x, y, state, world.carrying is not None)


def state_number(x, y, door, carries_key):
    return int(np.ravel_multi_index((int(carries_key), door, y, x), (2, len(DOORS), SIZE, SIZE)))


def run(method, seed, steps, out):
    settings = {"preset": "maze-demo", "config": CONFIG, "overwrite": True}
    voidrl.pretrain(ENV, method, steps=steps, seed=seed, out=out, **settings)


def read(folder):
    """The steps and numbers of states of a run, (rows, 2), and how often each state was entered."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    curve = [(row["step"], row["coverage/cells"]) for row in rows if "coverage/cells" in row]
    *_, newest = sorted(folder.glob("checkpoints/step_*/loop.safetensors"))
    counted = load_file(newest)["visits"]
    visits = np.zeros(2 * len(DOORS) * SIZE * SIZE)
    visits[: len(counted)] = counted
    return np.array(curve), visits.reshape(2, len(DOORS), SIZE, SIZE)


def draw(runs, picture):
    """States over time, and how often each cell was entered, over the seeds of each method."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (curves, *maps) = plt.subplots(
        1, 3, figsize=(10, 3.2), layout="constrained", gridspec_kw={"width_ratios": [1.6, 1, 1]}
    )
    for color, axis, (method, found) in zip(("#8a8f98", "#c8352b"), maps, runs.items(), strict=True):
        for curve, _ in found:
            curves.plot(*curve.T, color=color, linewidth=0.8, alpha=0.6)
        curves.plot(*np.mean([curve for curve, _ in found], 0).T, color=color, linewidth=2, label=method)
        visits = np.sum([visits for _, visits in found], 0).sum((0, 1))  # (y, x)
        axis.imshow(np.where(visits > 0, np.log1p(visits), np.nan), cmap="YlOrRd")
        axis.set(title=f"{method}: cells entered", xticks=[], yticks=[], facecolor="#333333")
    curves.set(xlabel="steps", ylabel="states found", title="position × key × door", ylim=(0, None))
    curves.legend(frameon=False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)


def main():
    parser = argparse.ArgumentParser(description="Coverage of MiniGrid's DoorKey-8x8: APT against random.")
    parser.add_argument("--method", choices=("random", "apt"), help="one run, of --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=16_000)
    parser.add_argument("--out", type=Path, default=Path("runs/doorkey"))
    parser.add_argument("--draw", action="store_true", help="only read runs and draw")
    parser.add_argument("--picture", type=Path, default=Path("runs/doorkey/doorkey.png"))
    options = parser.parse_args()
    wanted = [(method, seed) for method in ("random", "apt") for seed in options.seeds]
    if options.method:
        wanted = [(options.method, options.seed)]
    for method, seed in [] if options.draw else wanted:
        run(method, seed, options.steps, options.out / f"{method}_{seed}")
    if options.method:
        return
    runs = {m: [read(options.out / f"{m}_{seed}") for seed in options.seeds] for m in ("random", "apt")}
    for method, found in runs.items():
        print(f"{method}: {[int(curve[-1, 1]) for curve, _ in found]} states after {options.steps} steps")
        opened = [int((visits[:, :2] > 0).sum()) for _, visits in found]  # the door is open or closed
        print(f"{method}: {opened} of them with the door unlocked")
    draw(runs, options.picture)
    print(options.picture)


if __name__ == "__main__":
    main()
