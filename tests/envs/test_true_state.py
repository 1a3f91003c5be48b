"""The true state of environments: is it the one behind the frames, and is control where the player is?"""

import gymnasium as gym
import numpy as np
import pytest

from voidrl.config import EnvConfig
from voidrl.envs import ram
from voidrl.envs.make import make_envs
from voidrl.envs.maze import AGENT
from voidrl.envs.vector import Variable
from voidrl.errors import EnvironmentFailedError


@pytest.fixture
def few_trials(monkeypatch):
    """Measure control in fewer states, for speed, and forget it afterwards."""
    monkeypatch.setattr(ram, "TRIED_STATES", 24)
    ram.ram_variables.cache_clear()
    yield
    ram.ram_variables.cache_clear()


def agent_in(frames):
    """(N, 2) x and y in cells of 2 × 2 pixels, of the agent in images (N, 3, H, W) with a margin of 4."""
    at = (frames == np.array(AGENT, np.uint8)[:, None, None]).all(1)  # (N, H, W)
    corner = [np.argwhere(picture).min(0) for picture in at]
    return (np.array(corner)[:, ::-1] - 4) / 2


@pytest.mark.parametrize("backend", ["native", "sync"])
def test_the_maze_reports_where_the_agent_is_in_the_picture(backend):
    env = EnvConfig(id="voidrl/PixelMaze-v0?max_episode_steps=9", backend=backend)
    envs, rng = make_envs(env, num_envs=3, true_state=True), np.random.default_rng(0)
    frames, _ = envs.reset(0)
    assert envs.variables == (Variable("x", True, False), Variable("y", True, False))
    assert (envs.true_state() == agent_in(frames)).all()
    for _ in range(30):  # episodes end, and the state after a reset is the new one
        frames = envs.step(rng.integers(4, size=3)).frames
        assert (envs.true_state() == agent_in(frames)).all()
    envs.close()


def test_a_vector_is_its_own_state():
    envs = make_envs(EnvConfig(id="CartPole-v1"), num_envs=2, true_state=True)
    envs.reset(0)
    frames = envs.step(np.array([0, 1])).frames
    assert [v.name for v in envs.variables] == [f"observation_{i}" for i in range(4)]
    assert (envs.true_state() == frames.astype(np.float64)).all()
    envs.close()


class Reporting(gym.Env):
    """A black picture; `reports` makes its info from the number of steps."""

    observation_space = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, reports):
        self.reports, self.steps = reports, 0

    def reset(self, *, seed=None, options=None):
        return np.zeros((8, 8, 1), np.uint8), self.reports(0)

    def step(self, action):
        self.steps += 1
        return np.zeros((8, 8, 1), np.uint8), 0.0, False, False, self.reports(self.steps)


@pytest.mark.parametrize(
    ("reports", "variables", "state", "backend"),
    [
        (
            lambda t: {"variables": {"a": 2, "b": t / 2}},
            (("a", True, False), ("b", True, False)),
            [2, 0.5],
            how,
        )
        for how in ("sync", "async")
    ]
    + [
        (lambda t: {"cell": 7 + t}, (("cell", True, True),), [8], "sync"),
        (lambda t: {"variables": 3}, (), [], "sync"),
    ],
)
def test_a_custom_environment_reports_its_state(reports, variables, state, backend):
    env = EnvConfig(id="m:f", backend=backend)
    envs = make_envs(env, lambda: Reporting(reports), num_envs=2, true_state=True)
    envs.reset(0)
    envs.step(np.array([0, 1]))
    assert envs.variables == variables
    assert envs.true_state().tolist() == [state, state]
    envs.close()


def test_variables_that_change_are_refused():
    env = EnvConfig(id="m:f")
    envs = make_envs(env, lambda: Reporting(lambda t: {"variables": {f"v{t}": 1.0}}), 2, true_state=True)
    envs.reset(0)
    with pytest.raises(
        EnvironmentFailedError, match=r"reported the variables v0 and then v1: expected the s"
    ):
        envs.step(np.array([0, 1]))
    envs.close()


def test_dmcontrol_reports_its_physics():
    pytest.importorskip("dm_control")
    env = EnvConfig(id="dmc/cartpole_swingup", backend="sync")
    envs = make_envs(env, num_envs=2, true_state=True)
    frames, _ = envs.reset(0)
    names = [v.name for v in envs.variables]
    assert names == ["slider", "hinge_1", "slider_velocity", "hinge_1_velocity"]
    for _ in range(3):
        x, angle, *velocity = envs.true_state().T
        observed = np.stack([x, np.cos(angle), np.sin(angle), *velocity], 1)
        np.testing.assert_allclose(frames, observed, atol=1e-6)
        frames = envs.step(np.array([[0.5], [-1.0]], np.float32)).frames
    envs.close()


def test_the_state_of_a_game_is_its_ram(few_trials, monkeypatch):
    pytest.importorskip("ale_py")
    monkeypatch.setattr(ram, "TRIED_STATES", 2)  # control is not looked at
    envs, rng = make_envs(EnvConfig(id="atari/pong?sticky=0.5"), true_state=True), np.random.default_rng(0)
    envs.reset(5)
    at = [[v.name for v in envs.variables].index(name) for name in ("player_y", "ball_x", "ball_y")]
    seen = []
    for _ in range(60):
        envs.step(rng.integers(6, size=1))
        assert (envs.true_state()[:, at] == envs._shadows.ram()[:, [51, 49, 54]]).all()
        seen.append(envs.true_state()[0, at])
    envs.close()
    assert all(len(np.unique(values)) > 5 for values in np.transpose(seen))


@pytest.mark.parametrize(
    ("rom", "states", "controlled"),
    [
        ("freeway", 24, {"player_y"}),
        pytest.param("ms_pacman", 64, {"player_x", "player_y", "player_direction"}, marks=pytest.mark.slow),
    ],
)
def test_control_is_measured(rom, states, controlled, few_trials, monkeypatch):
    pytest.importorskip("ale_py")
    monkeypatch.setattr(ram, "TRIED_STATES", states)
    variables = ram.ram_variables(rom)
    assert {v.name for v in variables if v.controllable} == controlled
    assert len(variables) > len(controlled)  # cars, ghosts, scores


def test_a_game_without_annotations_has_its_varying_bytes(few_trials):
    pytest.importorskip("ale_py")
    variables = ram.ram_variables("assault")
    assert all(v.name == f"ram_{address}" for v, address in variables.items())
    assert 102 not in variables.values()  # a random number generator's: it jumps from value to value
    assert any(v.controllable for v in variables)
    assert not all(v.controllable for v in variables)
