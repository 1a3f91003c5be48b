"""Environments whose packages have no Gymnasium ids, and wrappers, each as short as a user writes them."""

import gymnasium as gym
import numpy as np


class FirstObjective(gym.RewardWrapper):
    """The first of several objectives as the reward."""

    def reward(self, reward):
        return float(reward[0])


class Crafter(gym.Env):
    """Crafter speaks the old Gym's language: one `done`, and a discount of 0 at death."""

    def __init__(self, **options):
        import crafter

        self.game = crafter.Env(**options)
        self.observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(len(self.game.action_names))

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.game._seed, self.game._episode = seed, 0
        return self.game.reset(), {}

    def step(self, action):
        obs, reward, done, info = self.game.step(int(action))
        dead = info["discount"] == 0
        return obs, float(reward), dead, done and not dead, {}


def bsuite_env(name):
    import bsuite
    from shimmy.bsuite_compatibility import BSuiteCompatibilityV0

    return BSuiteCompatibilityV0(bsuite.load_from_id(name))


def jumanji_env(name):
    import jumanji
    from jumanji.wrappers import JumanjiToGymWrapper

    return JumanjiToGymWrapper(jumanji.make(name))


def gymnax_env(name):
    import gymnax
    from gymnax.wrappers.gym import GymnaxToGymWrapper

    return GymnaxToGymWrapper(*gymnax.make(name))
