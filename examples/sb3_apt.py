"""Stable-Baselines3 with APT's reward alone: PPO with a wrapper, DQN with a replay buffer.

Prints how many cells of a long corridor each visits, with APT's reward and without any:

    python examples/sb3_apt.py [steps]
"""

import sys

import gymnasium as gym
import numpy as np
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env

from voidrl.playing.sb3 import APTReplayBuffer, APTReward

LENGTH, WIDTH = 40, 9


class Corridor(gym.Env):
    """A walker starts at the left end and has 60 steps; there is no reward."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(4)

    def __init__(self, visited):
        self.visited = visited

    def observe(self):
        self.visited.add(tuple(self.at))
        return (2 * self.at / LENGTH - [1, WIDTH / LENGTH]).astype(np.float32)  # one scale for both

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps_left = np.array([0, WIDTH // 2]), 60
        return self.observe(), {}

    def step(self, action):
        move = [(1, 0), (-1, 0), (0, 1), (0, -1)][action]
        self.at = np.clip(self.at + move, 0, [LENGTH - 1, WIDTH - 1])
        self.steps_left -= 1
        return self.observe(), 0.0, False, self.steps_left == 0, {}


def visited(algorithm, apt, steps, seed):
    cells, rewards = set(), {"intrinsic_scale": float(apt), "extrinsic_scale": 0.0}
    venv = make_vec_env(lambda: Corridor(cells), n_envs=4, seed=seed)
    options = {"gamma": 0.95, "learning_rate": 1e-3, "seed": seed, "device": "cpu"}
    if algorithm is PPO:  # short rollouts: PPO sees the reward change once per rollout
        venv = APTReward(venv, **rewards)
        options |= {"n_steps": 32, "n_epochs": 5, "ent_coef": 0.01}
    else:
        options |= {
            "replay_buffer_class": APTReplayBuffer,
            "replay_buffer_kwargs": {**rewards, "gamma": 0.95},
        }
        options |= {"batch_size": 128, "buffer_size": 10_000, "learning_starts": 200, "train_freq": 1}
        options |= {"target_update_interval": 4, "tau": 0.05, "exploration_fraction": 0.2}
    algorithm("MlpPolicy", venv, **options).learn(steps)
    return len(cells)


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    for algorithm in (PPO, DQN):
        mine, none = ([visited(algorithm, apt, steps, seed) for seed in (1, 2)] for apt in (True, False))
        print(f"{algorithm.__name__.lower()}: cells of 360 visited, by seed: {mine} with APT, {none} without")
