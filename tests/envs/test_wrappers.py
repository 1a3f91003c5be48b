"""Wrappers named in the config."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from voidrl.cli.options import read_as, read_changes, split_list
from voidrl.config import Config, EnvConfig, update
from voidrl.envs.ids import names_code
from voidrl.envs.make import make_envs, probe_env
from voidrl.errors import ConfigError

RESIZE = "gymnasium.wrappers:ResizeObservation?shape=[9,8]"
LIMIT = "gymnasium.wrappers:TimeLimit?max_episode_steps=3"


class Flat(gym.Env):
    observation_space = spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros((16, 16, 3), np.uint8), {}

    def step(self, action):
        return np.zeros((16, 16, 3), np.uint8), 1.0, False, False, {}


class Scaled(gym.RewardWrapper):
    """Rewards times `by`."""

    def __init__(self, env, by=2.0):
        super().__init__(env)
        self.by = by

    def reward(self, reward):
        return self.by * float(reward)


def plus_one(env):
    return gym.wrappers.TransformReward(env, lambda reward: reward + 1)


def nothing(env):
    return None


def raising(env):
    raise ValueError("no such world")


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_wrappers_are_applied_in_order(backend):
    wrappers = (f"{__name__}:Scaled?by=3", f"{__name__}:plus_one", f"{__name__}:Scaled", LIMIT)
    envs = make_envs(EnvConfig("flat", backend=backend, wrappers=wrappers), Flat)
    envs.reset(0)
    results = [envs.step(np.array([0])) for _ in range(3)]
    envs.close()
    assert results[0].reward.tolist() == [8]  # (1 · 3 + 1) · 2
    assert [result.truncated[0] for result in results] == [False, False, True]


def test_options_are_a_query_and_lists_become_tuples():
    pytest.importorskip("cv2")  # of ResizeObservation
    assert probe_env(EnvConfig("flat", wrappers=(RESIZE,)), Flat)[0].frame_shape == (3, 9, 8)


def test_a_native_version_is_not_used():
    config = EnvConfig("CartPole-v1", num_envs=2, wrappers=(LIMIT,))
    envs = make_envs(config)
    assert isinstance(envs.vector, gym.vector.SyncVectorEnv)
    native = EnvConfig("CartPole-v1", num_envs=2, wrappers=(LIMIT,), backend="native")
    with pytest.raises(ConfigError, match=r"'native' cannot be used: env\.wrappers .*; use sync or"):
        make_envs(native)


@pytest.mark.parametrize(
    ("wrapper", "sentence"),
    [
        (f"{__name__}:nothing", "it returned NoneType, expected a gymnasium.Env"),
        (f"{__name__}:raising", r"it raised ValueError\('no such world'\) in .*test_wrappers.py:\d+"),
        (f"{__name__}:Scaled?of=2", "cannot be used: it raised TypeError.*of"),
        (f"{__name__}:RESIZE", "expected a class or a function that takes an environment"),
        (f"{__name__}:absent", "wrapper '.*:absent' cannot be imported"),
        (f"{__name__}:Scaled?by", r"wrapper '.*' cannot be read: expected name\?option=value"),
    ],
)
def test_wrappers_that_cannot_be_used(wrapper, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make_envs(EnvConfig("flat", wrappers=(wrapper,)), Flat)


@pytest.mark.parametrize("env", ["atari/pong", "dmc/walker_walk"])
def test_simulators_take_none(env):
    for options in ({"wrappers": (LIMIT,)}, {"keys": ("a",)}):
        with pytest.raises(ConfigError, match=r"cannot be used with environment .* expected \[\]"):
            make_envs(EnvConfig(env, **options))
    with pytest.raises(ConfigError, match="expected 'none', since it allows all actions"):
        make_envs(EnvConfig(env, action_masks="info"))


def test_on_the_command_line():
    hint = tuple[str, ...]
    assert read_as(f"{RESIZE},{LIMIT}", hint) == (RESIZE, LIMIT)
    assert read_as(f"[{LIMIT}, {RESIZE}]", hint) == (LIMIT, RESIZE)
    assert read_as(RESIZE, hint) == (RESIZE,)
    assert read_as("[]", hint) == ()
    assert split_list("a:B?x=[1,(2,3)],c") == ["a:B?x=[1,(2,3)]", "c"]
    assert read_changes([f"env.wrappers={RESIZE},{LIMIT}"]) == {"env.wrappers": (RESIZE, LIMIT)}
    (change,) = read_changes([f"env.wrappers={RESIZE}"]).items()
    assert update(Config(), dict([change])).env.wrappers == (RESIZE,)


def test_wrappers_name_code():
    assert not names_code("CartPole-v1")
    assert names_code("CartPole-v1", (LIMIT,))
