"""Environments whose packages have no Gymnasium ids, and wrappers, each as short as a user writes them."""

import gymnasium as gym


class FirstObjective(gym.RewardWrapper):
    """The first of several objectives as the reward."""

    def reward(self, reward):
        return float(reward[0])


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
