"""Pictures of environment 0, for people to look at."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from voidrl.config import DMControlConfig, EnvConfig
from voidrl.envs import gl
from voidrl.envs.make import make_envs
from voidrl.envs.maze import PixelMazeVector
from voidrl.errors import ConfigError, EnvironmentFailedError


class Counting(gym.Env):
    """Counts its steps, which it shows as the brightness of a picture; episodes of 4."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012
    size = (6, 8, 3)

    def __init__(self, render_mode=None, pixels=False):
        self.render_mode, self.pixels, self.at = render_mode, pixels, 0
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(0, 9, (2,), np.float32)
        if pixels:
            self.observation_space = spaces.Box(0, 255, (12, 36, 36), np.uint8)

    def _obs(self):
        if self.pixels:  # four images in a row, of which the last is now
            return np.arange(4, dtype=np.uint8).repeat(3)[:, None, None] + np.full(
                (12, 36, 36), self.at, np.uint8
            )
        return np.full(2, self.at, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self._obs(), {}

    def step(self, action):
        self.at += 1
        return self._obs(), 1.0, False, self.at == 4, {}

    def render(self):
        return np.full(self.size, 10 * self.at, np.uint8) if self.render_mode == "rgb_array" else None


class Blind(Counting):
    metadata = {"render_modes": ["human"]}  # noqa: RUF012


def envs_of(factory, n=1, backend="auto"):
    return make_envs(EnvConfig(id="test", backend=backend), factory, n, evaluation=True, render_height=100)


def shades(envs, steps):
    envs.reset(0)
    seen = [envs.render()]
    for _ in range(steps):
        envs.step(np.zeros(envs.num_envs, np.int64))
        seen.append(envs.render())
    envs.close()
    assert {picture.shape for picture in seen} == {Counting.size}
    return [int(picture.mean()) for picture in seen]


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_environment_that_can_draws_itself_whoever_made_it(backend):
    by_hand = [10 * step for step in (0, 1, 2, 3, 4, 0, 1)]  # the step after an end is the reset
    assert shades(envs_of(Counting, 2, backend), 6) == by_hand  # it takes a render_mode, and is given one
    made_without = envs_of(lambda: gym.wrappers.TimeLimit(Counting(), 100), backend=backend)
    assert shades(made_without, 6) == by_hand
    assert made_without.steps_per_second == 60


def test_images_stand_in_for_what_is_not_drawn():
    envs = envs_of(lambda: Blind(pixels=True))
    envs.reset(0)
    assert (envs.render() == 3).all()
    assert envs.render().shape == (36, 36, 3)
    envs.step(np.zeros(1, np.int64))
    assert (envs.render() == 4).all()
    assert envs.steps_per_second is None
    envs.close()


def test_what_can_neither_be_drawn_nor_seen_is_a_sentence():
    with pytest.raises(
        ConfigError, match="'test' cannot be shown: it has no render mode 'rgb_array' and its"
    ):
        envs_of(Blind)


def test_a_picture_that_is_none_is_a_sentence():
    class Floats(Counting):
        def render(self):
            return np.zeros((2, 2))

    class Broken(Counting):
        def render(self):
            raise RuntimeError("the bulb is out")

    class Missing(Counting):
        def render(self):
            raise gym.error.DependencyNotInstalled("no pygame: pip install pygame")

    for factory, sentence in [
        (Floats, r"rendered float64 of shape \(2, 2\): expected a uint8 picture"),
        (Broken, r"environment 0 \('test'\) raised RuntimeError\('the bulb is out'\)"),
        (Missing, "cannot be used: no pygame: pip install pygame"),
    ]:
        envs = envs_of(factory)
        envs.reset(0)
        with pytest.raises(EnvironmentFailedError, match=sentence):
            envs.render()
        envs.close()


def test_a_registered_environment_draws_itself():
    config = EnvConfig(id="voidrl/PixelMaze-v0?size=7&image_size=35&goal=far")
    envs = make_envs(config, None, 2, evaluation=True, render_height=100)
    maze = PixelMazeVector(2, size=7, image_size=35, goal="far", render_mode="rgb_array")
    envs.reset(3), maze.reset(seed=3)
    for action in (1, 3, 1, 0):
        assert np.array_equal(envs.render(), maze.render()[0])
        envs.step(np.array([action, 0])), maze.step(np.array([action, 0]))
    assert envs.steps_per_second == 10
    envs.close()


# Atari


def shrunk(picture, size=84):
    """Gray and small, as agents see it: each pixel the mean over the area that it covers."""

    def shares(length):
        border = np.arange(size + 1) * length / size
        first, last = np.arange(length)[None], np.arange(1, length + 1)[None]
        covered = np.minimum(last, border[1:, None]) - np.maximum(first, border[:-1, None])
        return np.clip(covered, 0, None) * size / length  # (size, length)

    gray = picture @ np.array([0.299, 0.587, 0.114])
    return shares(picture.shape[0]) @ gray @ shares(picture.shape[1]).T


@pytest.mark.parametrize("name", ["ms_pacman?max_frames=160", "pong?sticky=0.25&max_frames=160"])
def test_a_game_in_color_is_the_game_that_is_played(name):
    pytest.importorskip("ale_py")
    envs = make_envs(EnvConfig(id=f"atari/{name}"), None, 2, evaluation=True, render_height=100)
    frames, _ = envs.reset(5)
    random, grays, seen = np.random.default_rng(0), [], []
    for _ in range(55):  # beyond the end of the first game, with other no-ops in the second
        picture = envs.render()
        assert picture.shape == (210, 160, 3)
        grays.append(shrunk(picture))
        seen.append(frames[0, 0])
        frames = envs.step(random.integers(envs.spec.num_actions, size=2)).frames
    envs.close()
    grays, seen = np.stack(grays), np.stack(seen)
    errors = np.abs(grays[:, None] - seen[None]).mean((2, 3))  # each picture against every frame
    same = np.diagonal(errors)
    assert same.max() < 0.5, "of 256 shades"
    assert np.ptp(picture, axis=2).max() > 50, "it has colors"
    assert (same < errors.min(axis=1) + 0.05).all(), "a frame before or after is further away, or looks alike"


# DMControl


def swing(observation, render_height, backend="auto"):
    """A few steps of a pole, with pictures if any are drawn."""
    dmc = DMControlConfig(observation=observation, image_size=32, action_repeat=200)
    config = EnvConfig(id="dmc/cartpole_swingup", backend=backend, dmc=dmc)
    envs = make_envs(config, None, 1, evaluation=True, render_height=render_height)
    frames, pictures = [envs.reset(3)[0]], []
    for i in range(7):  # an episode has 5
        if render_height:
            pictures.append(envs.render())
        frames.append(envs.step(np.array([[(-1.0) ** i]], np.float32)).frames)
    assert envs.steps_per_second == 0.5  # 100 control steps a second
    envs.close()
    return np.stack(frames)[:, 0], pictures


@pytest.mark.usefixtures("opengl")
def test_simulations_are_drawn_at_any_size_and_stay_what_they_are():
    pytest.importorskip("dm_control")
    states, none = swing("states", 0, backend="sync")
    images, _ = swing("pixels", 0)
    seen, small = swing("states", 32, backend="sync")
    assert none == []
    assert np.array_equal(seen, states)
    assert np.array_equal(images[:-1].transpose(0, 2, 3, 1), small), "the agent's own camera"
    seen, large = swing("pixels", 100)
    assert np.array_equal(seen, images), "a larger picture beside them changes no pixel of the small ones"
    assert {picture.shape for picture in large} == {(100, 100, 3)}


def test_without_opengl_a_video_of_states_does_not_propose_states(monkeypatch):
    pytest.importorskip("dm_control")
    monkeypatch.setattr(gl, "_render", lambda name: ("", "not here"))
    with pytest.raises(ConfigError, match="libosmesa6\\), or record no video"):
        make_envs(EnvConfig(id="dmc/walker"), None, 1, evaluation=True, render_height=64)
