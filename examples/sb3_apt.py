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
SEEDS = (1, 2)


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


def ppo(apt, steps, seed):
    visited = set()
    venv = make_vec_env(lambda: Corridor(visited), n_envs=4, seed=seed)
    venv = APTReward(venv, intrinsic_scale=float(apt), extrinsic_scale=0.0)
    # Short rollouts: the reward changes with every state seen, and PPO sees it change once per rollout.
    PPO("MlpPolicy", venv, n_steps=32, n_epochs=5, gamma=0.95, learning_rate=1e-3, ent_coef=0.01, seed=seed,
        device="cpu").learn(steps)  # fmt: skip
    return len(visited)


def dqn(apt, steps, seed):
    visited = set()
    venv = make_vec_env(lambda: Corridor(visited), n_envs=4, seed=seed)
    rewards = {"intrinsic_scale": float(apt), "extrinsic_scale": 0.0, "gamma": 0.95}
    DQN("MlpPolicy", venv, replay_buffer_class=APTReplayBuffer, replay_buffer_kwargs=rewards, batch_size=128,
        buffer_size=10_000, learning_starts=200, train_freq=1, target_update_interval=4, tau=0.05, gamma=0.95,
        learning_rate=1e-3, exploration_fraction=0.2, seed=seed, device="cpu").learn(steps)  # fmt: skip
    return len(visited)


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 4000
    for train in (ppo, dqn):
        mine, none = ([train(apt, steps, seed) for seed in SEEDS] for apt in (True, False))
        print(
            f"{train.__name__}: cells of {LENGTH * WIDTH} visited, by seed: {mine} with APT, {none} without"
        )
