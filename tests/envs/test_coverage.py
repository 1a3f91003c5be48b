"""What is measured of a simulation, the bins and the entropy of it, and that a resumed run goes on alike."""

import functools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_runs import assert_same_run, rows, tiny

import voidrl
from voidrl import api
from voidrl.cli import main as cli
from voidrl.envs import coverage
from voidrl.envs.coverage import (
    POSE,
    SAMPLE_STATES,
    VELOCITY_SCALE_S,
    PhysicsCoverage,
    measure,
    rotation_vector,
    wrap,
)
from voidrl.errors import CheckpointError, EnvironmentFailedError
from voidrl.training.evaluation import Evaluation

suite = pytest.importorskip("dm_control.suite")


def fresh(domain, task):
    return suite.load(domain, task, task_kwargs={"random": 0}).physics


compiled = functools.cache(fresh)


def physics_of(domain, task):
    """As it begins."""
    physics = compiled(domain, task)
    physics.reset()  # also joints that an earlier test has put elsewhere
    return physics


def put(physics, **values):
    """Joints by name: a position, or a position and a velocity."""
    for joint, value in values.items():
        position, velocity = value if isinstance(value, tuple) else (value, None)
        physics.named.data.qpos[joint] = position
        if velocity is not None:
            physics.named.data.qvel[joint] = velocity
    physics.forward()
    return measure(physics)


def turned(axis, angle, sign=1):
    """A quaternion."""
    return sign * np.array([math.cos(angle / 2), *(math.sin(angle / 2) * np.array(axis))])


def states_of(physics_states, pose=(0.0, 0.0, 0.0)):
    rows = np.asarray(physics_states, np.float64)
    return np.hstack([np.broadcast_to(pose, (len(rows), POSE)), rows])


def covered(states, domain="walker"):
    seen = PhysicsCoverage(domain)
    seen.add(states)
    return seen


# What is measured


def test_the_pose_and_the_state_of_a_walker_are_those_that_were_set():
    physics = physics_of("walker", "walk")
    state = put(
        physics, rootz=(-0.25, 0.5), rootx=(7.0, 1.5), rooty=(0.5, 2.0), right_hip=(0.1, -3.0), left_knee=-1.0
    )
    height = physics.named.model.body_pos["torso", "z"] - 0.25
    np.testing.assert_allclose(state[:POSE], [height, 0.5, 1.5], rtol=0, atol=1e-12)
    positions = np.delete(physics.data.qpos, physics.model.name2id("rootx", "joint"))
    assert (state[POSE : POSE + 8] == positions).all()  # to the last bit
    assert (state[POSE + 8 :] == VELOCITY_SCALE_S * physics.data.qvel).all()
    assert state.dtype == np.float64
    assert state.shape == (POSE + 8 + 9,)


@pytest.mark.parametrize("angle", [1.0, math.pi, -math.pi, np.nextafter(math.pi, 4), -1.0 - 6 * math.pi])
def test_angles_are_wrapped(angle):
    state = put(physics_of("pendulum", "swingup"), hinge=angle)
    for found in (wrap(angle), state[POSE], state[1]):
        assert -math.pi < found <= math.pi
        assert math.remainder(found - angle, 2 * math.pi) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("domain", "task", "ways"),
    [
        ("walker", "walk", ["rootx"]),
        ("swimmer", "swimmer6", ["rootx", "rooty"]),
    ],
)
def test_another_place_on_an_endless_floor_is_no_new_state(domain, task, ways):
    physics = physics_of(domain, task)
    here = put(physics, **dict.fromkeys(ways, 0.0))
    for way in ways:
        np.testing.assert_allclose(put(physics, **{way: 12.5}), here, rtol=0, atol=1e-12)


def test_a_quadruped_is_the_same_for_both_signs_of_its_quaternion_and_anywhere_on_the_floor():
    physics = physics_of("quadruped", "walk")
    width = POSE + 22 - 2 + 22  # a rotation has three numbers
    for angle in (0.5, 3.0, -2.0):
        here = put(physics, root=[0, 0, 1.5, *turned((0, 1, 0), angle)])
        assert here.shape == (width,)
        np.testing.assert_allclose(here[:2], [1.5, angle], atol=1e-12)  # the pitch is the angle about y
        np.testing.assert_allclose(here[POSE : POSE + 4], [1.5, 0, angle, 0], atol=1e-12)
        there = put(physics, root=[30, -4, 1.5, *turned((0, 1, 0), angle, sign=-1)])
        np.testing.assert_allclose(here, there, atol=1e-12)


def test_rotations():
    assert rotation_vector(1, 0, 0, 0) == rotation_vector(-1, 0, 0, 0) == (0, 0, 0)
    axis = np.array([2.0, -1.0, 2.0]) / 3
    for angle in (1e-9, 1.0, 3.1):
        for q in (turned(axis, angle), turned(axis, angle, sign=-1), 5 * turned(axis, angle)):
            np.testing.assert_allclose(rotation_vector(*q), angle * axis, rtol=1e-12)
    half = rotation_vector(0, 0, -1, 0)
    assert half == rotation_vector(0, 0, 1, 0) == pytest.approx((0, math.pi, 0))


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
    physics, dt = fresh(domain, task), 1e-6
    random = np.random.default_rng(3)
    physics.data.qpos[:] += random.normal(0, 0.3, len(physics.data.qpos))
    physics.data.qvel[:] = random.normal(0, 1, len(physics.data.qvel))
    physics.model.opt.timestep, physics.model.opt.gravity = dt, 0  # a step is hardly more than a derivative
    physics.forward()
    before, state = physics.named.data.xpos[name].copy(), measure(physics)
    assert state[0] == before[2]
    physics.step()
    assert state[2] == pytest.approx((physics.named.data.xpos[name, "x"] - before[0]) / dt, abs=1e-3)
    assert abs(state[2]) > 0.01


# Bins


@pytest.mark.parametrize(
    ("pose", "other", "distinct"),
    [
        ((1.30, 0.0, 0.0), (1.32, 0.0, 0.0), 1),
        ((1.30, 0.0, 0.0), (1.33, 0.0, 0.0), 2),
        ((0.0, 0.01, 0.0), (-0.02, -0.01, -0.05), 1),  # what trembles about 0 stays in one bin
        ((0.0, math.radians(4.9), 0.0), (0.0, math.radians(5.1), 0.0), 2),
        ((0.0, math.radians(179), 0.0), (0.0, math.radians(-179), 0.0), 1),
        ((0.0, math.radians(174), 0.0), (0.0, math.radians(-176), 0.0), 2),
        ((0.0, 0.0, 0.12), (0.0, 0.0, -0.12), 1),
        ((0.0, 0.0, 0.12), (0.0, 0.0, 0.13), 2),
        ((0.0, 0.0, 0.25), (0.0, 0.0, -0.25), 2),
        ((50.0, 0.0, 0.0), (60.0, 0.0, 0.0), 1),  # beyond the range
        ((0.0, 0.0, -1e6), (0.0, 0.0, -40.0), 1),
        ((0.0, 0.0, -1e6), (0.0, 0.0, 1e6), 2),
    ],
)
def test_two_poses_share_a_bin_or_do_not(pose, other, distinct):
    rows = np.array([pose, other, pose])
    assert covered(states_of(np.zeros((3, 1)), rows)).counts() == {"bins": distinct}


# Entropy


def entropy_of(sample):
    return covered(states_of(sample)).counts()["entropy"]


def test_entropy_of_known_distributions():
    random = np.random.default_rng(0)
    gaussian = random.normal(0, 2, (50_000, 3))
    assert entropy_of(gaussian) == pytest.approx(
        3 * (0.5 * math.log(2 * math.pi * math.e) + math.log(2)), abs=0.2
    )
    uniform = random.uniform(0, 3, (50_000, 2))
    assert entropy_of(uniform) == pytest.approx(2 * math.log(3), abs=0.15)


# The sample


@pytest.mark.parametrize("parts", [(12,), (9, 3), (2, 8, 1, 1)], ids=str)
def test_each_state_is_as_likely_to_be_in_the_sample(parts, monkeypatch):
    """Also where the samples of several ranks are merged."""
    random = np.random.default_rng(0)
    monkeypatch.setattr(coverage, "SAMPLE_STATES", 4)
    monkeypatch.setattr(coverage, "_random", lambda drawn: random)
    monkeypatch.setattr(np.random, "default_rng", lambda seed: random)
    found, repeats = np.zeros(12), 3000
    states = np.split(states_of(np.arange(12)[:, None]), np.cumsum(parts)[:-1])
    for _ in range(repeats):
        first, *others = (covered(part) for part in states)
        for other in others:
            first.merge(other.state())
        sample = first.state()["sample"]
        assert len(set(sample[:, 0])) == 4
        found[sample[:, 0].astype(int)] += 1
    # Each is there with probability 1/3, and five standard deviations off by chance once in a million.
    expected, deviation = repeats / 3, math.sqrt(repeats * (1 / 3) * (2 / 3))
    assert (np.abs(found - expected) < 5 * deviation).all()


def test_merged_measures_have_the_bins_of_all():
    states = np.random.default_rng(0).normal(size=(3000, 8))
    first, *others = (covered(part) for part in np.split(states, [100, 1900]))
    for other in others:
        first.merge(other.state())
    whole = covered(states)
    assert first.counts()["bins"] == whole.counts()["bins"]
    sample = {*map(bytes, first.state()["sample"])}
    assert len(sample) == SAMPLE_STATES
    assert sample < {*map(bytes, np.ascontiguousarray(states[:, POSE:]))}


# Checkpoints


@pytest.mark.parametrize("before", [10, 3000])
def test_a_resumed_measure_is_the_one_that_did_not_stop(before):
    states = np.random.default_rng(0).normal(size=(5000, 8))
    straight, resumed = covered(states[:before]), PhysicsCoverage("walker")
    resumed.add(states[-100:])  # which is forgotten
    resumed.load({name: array.copy() for name, array in straight.state().items()})
    for seen in (straight, resumed):
        for part in np.array_split(states[before:], 7):
            seen.add(part)
    for name, array in resumed.state().items():
        assert array.tobytes() == straight.state()[name].tobytes(), name
    assert resumed.counts() == straight.counts()


def test_states_of_another_world_are_refused():
    walker = covered(np.random.default_rng(0).normal(size=(100, 20))).state()
    with pytest.raises(CheckpointError, match=r"expected those of 'cheetah', got those of 'walker'"):
        PhysicsCoverage("cheetah").load(walker)
    with pytest.raises(CheckpointError, match=r"those of 'walker', got those of 'another kind"):
        PhysicsCoverage("walker").load({"ram": np.zeros(5, np.int64)})


def test_a_state_that_is_not_finite_is_refused():
    seen = PhysicsCoverage("walker")
    with pytest.raises(EnvironmentFailedError, match="'walker' has become NaN or infinite"):
        seen.add(np.array([[0, 0, np.nan, 0.0]]))
    assert seen.counts() == {"bins": 0}


# Runs


def test_a_resumed_run_logs_what_the_straight_one_does(tmp_path, monkeypatch):
    monkeypatch.setattr(coverage, "SAMPLE_STATES", 100)
    config = tiny(env__backend="sync", env__num_envs=2, env__count_states=True)
    options = {"method": "random", "seed": 3, "config": config}
    voidrl.pretrain("dmc/pendulum", steps=240, out=tmp_path / "straight", **options)
    voidrl.pretrain("dmc/pendulum", steps=120, out=tmp_path / "resumed", **options)
    voidrl.resume(tmp_path / "resumed", steps=240)
    assert_same_run(tmp_path / "straight", tmp_path / "resumed", steps=240)
    logged = [(row["coverage/bins"], row.get("coverage/entropy")) for row in rows(tmp_path / "straight")]
    assert logged[0][1] is None  # as yet
    assert 1 < logged[0][0] < logged[-1][0]
    assert math.isfinite(logged[-1][1])


def test_evaluate_prints_both(monkeypatch, capsys, tmp_path):
    counts = {"bins": 812, "entropy": -12.345}
    evaluated = Evaluation([1.0], [10_000], None, 10_000, counts)
    learner = SimpleNamespace(plays_by_sampling=False)
    loaded = SimpleNamespace(config=voidrl.Config(), steps=0, learner=learner)
    monkeypatch.setattr(api, "load", lambda run, **options: loaded)
    monkeypatch.setattr(api, "evaluate", lambda agent, **options: evaluated)
    assert cli.main(["evaluate", str(tmp_path), "--count-states"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "states   812 distinct bins of height, angle and velocity in 10000 steps",
        "entropy  -12.3 nats of the physics states in 10000 steps",
    ]
    assert cli.main(["evaluate", str(tmp_path), "--count-states", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == counts
