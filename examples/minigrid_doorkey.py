"""MiniGrid's DoorKey-8x8 without its reward: how many states APT finds, and how many a random agent.

A key opens the door between two rooms. The counted states are the agent's position, whether it carries the
key, and whether the door is locked, closed or open. Each episode has the same layout, so that a state means
the same in all of them.

    python examples/minigrid_doorkey.py [steps]
"""

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np

import voidrl
from voidrl.runs.metrics import read_metrics

SIZE, DOORS, SEEDS = 8, 3, (1, 2, 3)
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
    return int(np.ravel_multi_index((int(carries_key), door, y, x), (2, DOORS, SIZE, SIZE)))


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 16_000
    for method in ("random", "apt"):
        found = []
        for seed in SEEDS:
            out, how = Path(f"runs/doorkey/{method}_{seed}"), {"preset": "maze-demo", "config": CONFIG}
            voidrl.pretrain("MiniGrid-DoorKey-8x8-v0", method, steps=steps, seed=seed, out=out, **how)
            found.append(read_metrics(out)[-1]["coverage/cells"])
        print(f"{method}: {found} states after {steps} steps, by seed")
