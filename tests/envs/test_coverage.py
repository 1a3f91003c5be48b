"""The measured pose of a simulation, its bins, and that a resumed run counts alike."""

import math

import numpy as np
import pytest

from voidrl.envs.coverage import StateCounter, measure_pose, pose_bins
from voidrl.errors import CheckpointError, EnvironmentFailedError

suite = pytest.importorskip("dm_control.suite")


def physics_of(domain, task):
    return suite.load(domain, task, task_kwargs={"random": 0}).physics


def counted(poses, domain="walker"):
    counter = StateCounter(["bins"])
    counter.add("bins", pose_bins(np.asarray(poses, np.float64), domain))
    return counter


def test_the_pose_of_a_walker_is_the_one_that_was_set():
    physics = physics_of("walker", "walk")
    for joint, position, velocity in (("rootz", -0.25, 0.5), ("rootx", 7.0, 1.5), ("rooty", 0.5, 2.0)):
        physics.named.data.qpos[joint], physics.named.data.qvel[joint] = position, velocity
    physics.forward()
    height = physics.named.model.body_pos["torso", "z"] - 0.25
    np.testing.assert_allclose(measure_pose(physics), [height, 0.5, 1.5], rtol=0, atol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_pitch_of_a_quadruped_is_its_angle_about_y(sign):
    physics = physics_of("quadruped", "walk")
    for angle in (0.5, 3.0, -2.0):
        quaternion = [math.cos(angle / 2), 0, math.sin(angle / 2), 0]
        physics.named.data.qpos["root"] = [30, -4, 1.5, *(sign * np.array(quaternion))]
        physics.forward()
        np.testing.assert_allclose(measure_pose(physics)[:2], [1.5, angle], atol=1e-12)


@pytest.mark.parametrize(
    ("domain", "task", "name"),
    [
        ("acrobot", "swingup", "lower_arm"),  # of arms, the last link
        ("reacher", "easy", "hand"),
        ("quadruped", "walk", "torso"),
        ("hopper", "hop", "torso"),
    ],
)
def test_velocity_is_how_the_body_moves_along_x(domain, task, name):
    physics, dt = physics_of(domain, task), 1e-6
    random = np.random.default_rng(3)
    physics.data.qpos[:] += random.normal(0, 0.3, len(physics.data.qpos))
    physics.data.qvel[:] = random.normal(0, 1, len(physics.data.qvel))
    physics.model.opt.timestep, physics.model.opt.gravity = dt, 0  # a step is hardly more than a derivative
    physics.forward()
    before, pose = physics.named.data.xpos[name].copy(), measure_pose(physics)
    assert pose[0] == before[2]
    physics.step()
    assert pose[2] == pytest.approx((physics.named.data.xpos[name, "x"] - before[0]) / dt, abs=1e-3)
    assert abs(pose[2]) > 0.01


@pytest.mark.parametrize(
    ("pose", "other", "distinct"),
    [
        ((1.30, 0.0, 0.0), (1.32, 0.0, 0.0), 1),
        ((1.30, 0.0, 0.0), (1.33, 0.0, 0.0), 2),
        ((0.0, 0.01, 0.0), (-0.02, -0.01, -0.05), 1),  # what trembles about 0 stays in one bin
        ((0.0, math.radians(4.9), 0.0), (0.0, math.radians(5.1), 0.0), 2),
        ((0.0, math.radians(179), 0.0), (0.0, math.radians(-179), 0.0), 1),
        ((0.0, math.radians(174), 0.0), (0.0, math.radians(-176), 0.0), 2),
        ((0.0, 0.0, 0.12), (0.0, 0.0, 0.13), 2),
        ((50.0, 0.0, 0.0), (60.0, 0.0, 0.0), 1),  # beyond the range
        ((0.0, 0.0, -1e6), (0.0, 0.0, 1e6), 2),
    ],
)
def test_two_poses_share_a_bin_or_do_not(pose, other, distinct):
    assert counted([pose, other, pose]).counts() == {"bins": distinct}


def test_states_of_another_kind_are_refused():
    with pytest.raises(CheckpointError, match=r"expected bins, got ram; .* in another environment"):
        StateCounter(["bins"]).load({"ram": np.zeros(5, np.int64)})


def test_a_state_that_is_not_finite_is_refused():
    with pytest.raises(EnvironmentFailedError, match="'walker' has become NaN or infinite"):
        counted([[0, 0, np.nan]])
