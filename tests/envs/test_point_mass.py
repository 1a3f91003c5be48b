"""PointMass: its dynamics, the reward of each task, and how far random actions get."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from voidrl.envs.point_mass import GOAL, PointMass
from voidrl.envs.registration import POINT_MASS_ID, register
from voidrl.errors import UnknownNameError


def placed(position=(0.0, 0.0), velocity=(0.0, 0.0), **options):
    """A point mass in a given state."""
    env = PointMass(**options)
    env.reset(seed=0)
    env._position, env._velocity = position, velocity
    return env


def rewards(env, action, steps):
    """Rewards of one action, repeated."""
    return [env.step(action)[1] for _ in range(steps)]


# --- dynamics ---------------------------------------------------------------------------------------


def test_velocity_follows_the_action_with_inertia():
    env = placed()
    first = env.step(np.array([1.0, -0.5], np.float32))[0]
    # v = 0.95 · 0 + 0.05 · a, then x = 0.07 · v
    assert first == pytest.approx([0.0035, -0.00175, 0.05, -0.025], abs=1e-7)
    second = env.step(np.array([1.0, -0.5], np.float32))[0]
    # v = 0.95 · 0.05 + 0.05 = 0.0975; x = 0.0035 + 0.07 · 0.0975
    assert second == pytest.approx([0.010325, -0.0051625, 0.0975, -0.04875], abs=1e-7)
    coasting = env.step(np.zeros(2, np.float32))[0]
    assert coasting[2:] == pytest.approx([0.95 * 0.0975, -0.95 * 0.04875], abs=1e-7)


def test_walls_stop_only_the_velocity_across_them():
    env = placed((0.99, 0.0), (1.0, 0.5))
    observation = env.step(np.array([1.0, 0.5]))[0]
    assert observation == pytest.approx([1.0, 0.07 * 0.5, 0.0, 0.5])


def test_discrete_actions_are_accelerations():
    for action, push in enumerate([(1, 0), (-1, 0), (0, 1), (0, -1), (0, 0)]):
        discrete, continuous = placed(discrete=True), placed()
        assert (discrete.step(action)[0] == continuous.step(np.array(push, np.float32))[0]).all()


def test_episodes_start_near_the_middle_at_rest():
    env = PointMass()
    starts = np.array([env.reset(seed=seed)[0] for seed in range(100)])
    assert np.abs(starts[:, :2]).max() <= 0.1
    assert np.abs(starts[:, :2]).max(0).min() > 0.09  # not always the same
    assert (starts[:, 2:] == 0).all()
    assert (env.reset(seed=3)[0] == starts[3]).all()


def test_cells_form_a_grid():
    for position, cell in [((-1, -1), 0), ((1, -1), 9), ((-1, 1), 90), ((1, 1), 99), ((0.05, -0.15), 45)]:
        assert placed(position)._info()["cell"] == cell


# --- tasks ------------------------------------------------------------------------------------------


def test_without_a_task_nothing_pays():
    env = placed(GOAL)
    _, reward, terminated, _, info = env.step(np.zeros(2))
    assert (reward, terminated) == (0.0, False)
    assert "success" not in info


@pytest.mark.parametrize(
    ("task", "reward", "ends"), [("pickup", 1.0, True), ("jackpot", 1000.0, True), ("touch", 1.0, False)]
)
def test_the_goal_pays(task, reward, ends):
    far = placed((0.5, 0.8), task=task)  # at the goal's border, which is at x = 0.5
    far._position = (0.45, 0.8)
    _, nothing, terminated, _, info = far.step(np.zeros(2))
    assert (nothing, terminated, info["success"]) == (0.0, False, False)
    near = placed((0.55, 0.8), task=task)
    _, paid, terminated, _, info = near.step(np.zeros(2))
    assert (paid, terminated, info["success"]) == (reward, ends, True)


def test_dense_pays_for_closeness():
    assert rewards(placed(GOAL, task="dense"), np.zeros(2), 1) == [1.0]
    assert rewards(placed((-1.0, -1.0), task="dense"), np.zeros(2), 1) == pytest.approx([0.0])
    assert rewards(placed((-0.1, -0.1), task="dense"), np.zeros(2), 1) == pytest.approx([0.5])  # half-way
    assert not placed(GOAL, task="dense").step(np.zeros(2))[2]


def test_hurry_costs_one_per_step_until_the_goal():
    env = placed((0.4, 0.8), (1.0, 0.0), task="hurry")  # 0.4 → 0.47 → 0.54
    first, second = env.step(np.array([1.0, 0.0])), env.step(np.array([1.0, 0.0]))
    assert (first[1], first[2], second[1], second[2]) == (-1.0, False, -1.0, True)


def test_stay_pays_only_slow_and_close_to_the_middle():
    assert rewards(placed(task="stay"), np.zeros(2), 3) == [1.0] * 3
    assert rewards(placed(velocity=(0.5, 0.0), task="stay"), np.array([0.5, 0.0]), 1) == [0.0]  # too fast
    assert rewards(placed((0.35, 0.0), task="stay"), np.zeros(2), 1) == [0.0]  # too far
    env = placed(task="stay")
    _, _, terminated, _, info = env.step(np.zeros(2))
    assert not terminated
    assert "success" not in info


def test_an_unknown_task_is_named():
    with pytest.raises(UnknownNameError, match="did you mean 'pickup'"):
        PointMass(task="pick_up")


# --- Gymnasium and voidrl -----------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "discrete"), [(None, True), ("pickup", False)])
def test_gymnasium_accepts_it(task, discrete):
    register()
    env = gym.make(POINT_MASS_ID, task=task, discrete=discrete)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped, skip_render_check=True)


def test_episodes_are_truncated_after_100_steps():
    env = gym.make(POINT_MASS_ID, task="hurry")
    env.reset(seed=0)
    ends = [env.step(np.zeros(2, np.float32))[2:4] for _ in range(100)]
    assert ends == [(False, False)] * 99 + [(False, True)]
