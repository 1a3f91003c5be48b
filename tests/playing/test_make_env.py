"""Plain environments with what voidrl's agents take."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from helpers import Chain, Point

import voidrl
from voidrl.config import DMControlConfig, EnvConfig
from voidrl.envs.make import make_envs
from voidrl.errors import ConfigError, UnknownNameError

IN_PROCESS = {"env.backend": "sync"}  # a simulator in this process, which starts faster
SMALL_MAZE = "voidrl/PixelMaze-v0?size=7&image_size=21"


OF_FAMILIES = [
    (SMALL_MAZE, None),
    pytest.param("dmc/pendulum_swingup", IN_PROCESS, marks=pytest.mark.slow),
    pytest.param("atari/pong", None, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("env", "config"), OF_FAMILIES)
def test_gymnasiums_own_check_passes(env, config):
    made = voidrl.make_env(env, config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on bounds of ±∞, and that a wrapper checks what is returned
        check_env(made, skip_render_check=True)


def test_atari_is_what_evaluations_see():
    made = voidrl.make_env("atari/pong")
    envs = make_envs(EnvConfig(id="atari/pong"), num_envs=1, evaluation=True)
    obs, info = made.reset(seed=5)
    frames, _ = envs.reset(5)
    assert np.array_equal(obs, frames[0])
    assert made.observation_space.contains(obs)
    assert np.ndim(info["lives"]) == 0
    for action in (2, 3, 2, 0):
        obs, reward, terminated, truncated, _ = made.step(action)
        result = envs.step(np.array([action]))
        assert np.array_equal(obs, result.frames[0])
        assert (reward, terminated, truncated) == (result.score[0], False, False)
    made.close()
    envs.close()


def test_dmcontrol_takes_actions_in_its_range_and_continues_with_its_own_random_numbers():
    pytest.importorskip("dm_control")
    config = EnvConfig("dmc/pendulum_swingup", backend="sync", dmc=DMControlConfig(action_repeat=1000))
    made = voidrl.make_env("dmc/pendulum_swingup", voidrl.Config(env=config))
    envs = make_envs(config, num_envs=1)
    obs, _ = made.reset(seed=1)
    frames, _ = envs.reset(1)
    for _ in range(3):  # an episode has one step of 1000 here
        assert np.array_equal(obs, frames[0])
        obs, reward, terminated, truncated, _ = made.step(np.array([0.25]))
        result = envs.step(np.array([[0.25]], np.float32))
        assert np.array_equal(obs, result.frames[0])
        assert (reward, terminated, truncated) == (result.reward[0], False, True)
        with pytest.raises(gym.error.ResetNeeded, match=r"needs a reset\(\) before this step"):
            made.step(np.array([0.0]))
        obs, _ = made.reset()
        frames = envs.step(np.zeros((1, 1), np.float32)).frames  # the reset
    with pytest.raises(ConfigError, match=r"action .* cannot be taken in .*expected one of Box"):
        made.step(np.array([3.0]))


def test_factories_and_gymnasium_ids_are_given_as_they_are():
    made = voidrl.make_env(Chain)
    assert isinstance(made.unwrapped, Chain)
    obs, _ = made.reset(seed=0)
    assert np.array_equal(obs, np.eye(6)[0])
    limited = voidrl.make_env(Chain, {"env.wrappers": ["gymnasium.wrappers:TimeLimit?max_episode_steps=2"]})
    limited.reset(seed=0)
    assert [limited.step(1)[3] for _ in range(2)] == [False, True]
    made = voidrl.make_env(f"{SMALL_MAZE}&max_episode_steps=3", render_mode="rgb_array")
    obs, _ = made.reset(seed=0)
    assert obs.shape == (21, 21, 3)
    assert made.render().shape[2] == 3
    assert [made.step(0)[3] for _ in range(3)] == [False, False, True]
    made.close()


def test_the_config_of_an_agent_is_understood():
    pytest.importorskip("dm_control")
    config = voidrl.Config(env=EnvConfig(id="dmc/walker_run", backend="sync", frame_stack=3))
    made = voidrl.make_env("dmc/walker_run", config)
    assert made.reset(seed=0)[0].shape == (24,)  # frames come one at a time
    made.close()
    assert voidrl.make_env(Point, config).action_space.high[0] == 2


WINDOW = "'human' cannot be used: expected None or 'rgb_array'; for a window, an id such as"
BAD = [
    (SMALL_MAZE, {"config": {"dmc.observation": "pixels"}}, "config field 'dmc'; .*begin with 'env"),
    (SMALL_MAZE, {"config": 3}, "config = 3 cannot be used: expected a mapping of values"),
    (SMALL_MAZE, {"config": {"env": 3}}, "env = 3 cannot be used: expected a mapping"),
    ("atari/pong", {"render_mode": "human"}, WINDOW),
    (Chain(), {}, "expected an id or a function that returns a gymnasium.Env"),
    ("voidrl/PixelMace-v0", {}, "did you mean"),
]


@pytest.mark.parametrize(("env", "options", "sentence"), BAD)
def test_bad_input_gets_one_sentence(env, options, sentence):
    with pytest.raises((ConfigError, UnknownNameError), match=sentence):
        voidrl.make_env(env, **options)
