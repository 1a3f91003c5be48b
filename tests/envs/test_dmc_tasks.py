"""The tasks that the suite does not have: rewards at states set by hand, ends, seeds; each can be done."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("dm_control")
from dm_control import suite

from voidrl.envs import dmc_tasks
from voidrl.envs.dmc_tasks import CUSTOM, clearance, load

SPARSE = [(domain, task) for domain, tasks in CUSTOM.items() for task in tasks if task.endswith("_sparse")]
ALL = [(domain, task) for domain, tasks in CUSTOM.items() for task in tasks]
JACO = CUSTOM["jaco"]
PROOFS = json.loads((Path(__file__).parent / "dmc_proofs.json").read_text())
SUITE = {"cheetah": "run", "hopper": "stand", "quadruped": "run", "walker": "stand"}
STARTS = 30  # seeds whose first state is looked at


def generator(env):
    return env.random_state if hasattr(env, "random_state") else env.task.random


def flat(step):
    return np.concatenate([np.ravel(value) for value in step.observation.values()])


def place(env, **joints):
    """A state at rest with these values of the joints."""
    with env.physics.reset_context():
        for joint, value in joints.items():
            env.physics.named.data.qpos[joint] = value
    return env.physics


def lift(env, height, **joints):
    """The torso at this height over the floor."""
    return place(env, rootz=height - env.physics.named.model.body_pos["torso", "z"], **joints)


def random_step(env, rng):
    spec = env.action_spec()
    return env.step(rng.uniform(spec.minimum, spec.maximum))


@pytest.mark.parametrize(("domain", "task"), [names for names in ALL if names[0] != "jaco"])
def test_observations_and_times_are_those_of_the_suite(domain, task):
    env, other = load(domain, task, 0), suite.load(domain, SUITE[domain])
    assert [*env.observation_spec()] == [*other.observation_spec()]
    for key, spec in other.observation_spec().items():
        assert (env.observation_spec()[key].shape, env.observation_spec()[key].dtype) == (
            spec.shape,
            spec.dtype,
        )
    assert env.action_spec() == other.action_spec()
    assert env.control_timestep() == other.control_timestep()
    assert type(env.physics) is type(other.physics)
    assert hasattr(env.task, "succeeded") == task.endswith("_sparse")


@pytest.mark.parametrize("domain", CUSTOM)
def test_without_a_goal_an_episode_ends_by_time(domain):
    env = load(domain, CUSTOM[domain][0], 0)
    step, steps = env.reset(), 0
    while not step.last():
        step, steps = env.step(np.zeros(env.action_spec().shape)), steps + 1
    assert (steps, step.discount) == (250 if domain == "jaco" else 1000, 1.0)


@pytest.mark.parametrize(
    ("domain", "task"),
    [
        pytest.param(*names, marks=() if names[1] in (CUSTOM[names[0]][0], "stand") else pytest.mark.slow)
        for names in ALL
    ],
)
def test_a_seed_begins_anew_in_place(domain, task):
    env, rng = load(domain, task, 0), np.random.default_rng(0)
    first = env.reset()
    for _ in range(10):
        random_step(env, rng)
    other = env.reset()
    generator(env).seed(5)
    again, fresh = env.reset(), load(domain, task, 5)
    np.testing.assert_equal(again.observation, fresh.reset().observation)
    for _ in range(10):
        action = rng.uniform(-0.5, 0.5, env.action_spec().shape)
        np.testing.assert_equal(env.step(action).observation, fresh.step(action).observation)
    assert not np.array_equal(flat(first), flat(other))
    assert not np.array_equal(flat(first), flat(again))


@pytest.mark.parametrize("domain", ["cheetah", "hopper", "walker"])
def test_jump_wants_a_high_torso(domain):
    env = load(domain, "jump_sparse", 0)
    for height, reward in ((env.task.threshold - 1e-3, 0.0), (env.task.threshold + 1e-3, 1.0)):
        physics = lift(env, height)
        assert env.task.measure(physics) == pytest.approx(height)
        assert (env.task.get_reward(physics), env.task.succeeded(physics)) == (reward, bool(reward))
        assert env.task.get_termination(physics) == (0.0 if reward else None)


@pytest.mark.parametrize("domain", ["cheetah", "hopper", "walker"])
def test_a_jump_begins_on_the_floor_in_a_pose_of_the_suite(domain):
    env, other = load(domain, "jump_sparse", 3), suite.load(domain, SUITE[domain], task_kwargs={"random": 3})
    for _ in range(STARTS):
        env.reset(), other.reset()
        assert clearance(env.physics) == pytest.approx(0, abs=1e-9)
        pose, moved = env.physics.named.data.qpos, [*env.physics.named.data.qpos.axes.row.names]
        for joint in moved:
            assert joint == "rootz" or pose[joint] == other.physics.named.data.qpos[joint]


@pytest.mark.parametrize("domain", ["cheetah", "hopper", "walker"])
def test_reach_ends_where_the_torso_passes_the_place(domain):
    env = load(domain, "reach_sparse", 0)
    goal = env.task.threshold
    for x, reward in ((-goal - 1, 0.0), (goal - 1e-3, 0.0), (goal + 1e-3, 1.0)):
        assert env.task.get_reward(place(env, rootx=x)) == reward
    env.reset()
    env.physics.named.data.qpos["rootx"] = goal - 0.5
    env.physics.forward()
    zero = np.zeros(env.action_spec().shape)
    before = env.step(zero)
    assert (before.mid(), before.reward, before.discount) == (True, 0.0, 1.0)
    env.physics.named.data.qpos["rootx"] = goal + 0.5
    env.physics.forward()
    end = env.step(zero)
    assert (end.last(), end.reward, end.discount) == (True, 1.0, 0.0)
    assert env.step(zero).first()


def test_turnover_begins_upside_down_with_the_head_on_the_floor():
    env = load("walker", "turnover_sparse", 0)
    for _ in range(STARTS):
        env.reset()
        assert env.physics.torso_upright() == pytest.approx(-1)
        assert clearance(env.physics) == pytest.approx(0, abs=1e-6)  # nothing of it in the floor
        assert not env.physics.data.qvel.any()


def test_turnover_wants_a_standing_walker():
    env = load("walker", "turnover_sparse", 0)
    angle = np.arccos(dmc_tasks.UPRIGHT)
    for height, pitch, reward in (
        (1.21, 0.0, 1.0),
        (1.19, 0.0, 0.0),
        (1.21, angle - 0.01, 1.0),
        (1.21, -angle + 0.01, 1.0),
        (1.21, angle + 0.01, 0.0),
        (1.21, np.pi, 0.0),
    ):
        physics = lift(env, height, rooty=pitch)
        assert env.task.get_reward(physics) == reward
        assert env.task.get_termination(physics) == (0.0 if reward else None)


@pytest.mark.parametrize(("domain", "task"), SPARSE)
def test_each_sparse_task_can_be_done(domain, task):
    proof = PROOFS[f"{domain}_{task}"]
    env = load(domain, task, proof["seed"])
    actions = np.frombuffer(base64.b64decode(proof["actions"]), np.int8).reshape(-1, *env.action_spec().shape)
    assert not env.reset().last()
    for action in np.repeat(actions / 127, proof["repeat"], axis=0):
        step = env.step(action)
        if step.last():
            break
        assert (step.reward, step.discount, env.task.succeeded(env.physics)) == (0.0, 1.0, False)
    assert step.last()
    assert (step.reward, step.discount, env.task.succeeded(env.physics)) == (1.0, 0.0, True)


def test_flip_pays_angular_momentum():
    """A stretched walker in the air that turns as a whole: momentum is inertia times angular velocity."""
    env = load("walker", "flip", 0)
    physics = lift(env, 1.5)
    mass, at = physics.model.body_mass[1:], physics.data.xipos[1:]  # (7,), (7, 3)
    center = mass @ at / mass.sum()
    turned = physics.data.ximat[1:].reshape(-1, 3, 3)
    about_y = (turned[:, 1] ** 2 * physics.model.body_inertia[1:]).sum(1)
    inertia = about_y.sum() + mass @ ((at - center)[:, [0, 2]] ** 2).sum(1)

    def reward(momentum, height=1.5, pitch=0.0):
        physics = lift(env, height, rooty=pitch)
        physics.named.data.qvel["rooty"] = momentum / inertia
        physics.forward()
        assert physics.named.data.subtree_angmom["torso"][1] == pytest.approx(momentum, rel=1e-6, abs=1e-9)
        return env.task.get_reward(physics)

    assert reward(0) == pytest.approx(1 / 6)
    assert reward(2.5) == pytest.approx(3.5 / 6)
    assert reward(5) == pytest.approx(1)
    assert reward(9) == pytest.approx(1)
    assert reward(-5) == pytest.approx(1 / 6)
    assert reward(5, height=0.6) == pytest.approx((3 * 0.1 + 1) / 4)  # tolerance is 0.1 at its margin
    assert reward(5, pitch=np.pi) == pytest.approx(3 / 4)
    assert reward(5, height=0.6, pitch=np.pi / 2) == pytest.approx((3 * 0.1 + 0.5) / 4)


@pytest.mark.parametrize("tilt", [0.0, 1.0, np.pi / 2, np.pi])
def test_quadruped_stand_and_jump(tilt):
    stand, jump = load("quadruped", "stand", 0), load("quadruped", "jump", 0)
    root = np.array([0, 0, 3, np.cos(tilt / 2), np.sin(tilt / 2), 0, 0])
    upright = (1 + np.cos(tilt)) / 2
    assert stand.task.get_reward(place(stand, root=root)) == pytest.approx(upright)
    assert jump.task.get_reward(place(jump, root=root)) == pytest.approx(upright)
    center = place(jump, root=root).named.data.subtree_com["torso", "z"]
    for height, expected in ((0.0, 0.5), (0.5, 0.75), (0.9, 0.95), (1.0, 1.0), (1.5, 1.0)):
        root[2] = 3 + height - center
        assert jump.task.get_reward(place(jump, root=root)) == pytest.approx(upright * expected)


@pytest.mark.parametrize("task", JACO)
def test_jaco_reaches_for_a_brick_in_its_corner(task):
    env = load("jaco", task, 0)
    assert (env.control_timestep(), env.action_spec().shape) == (0.04, (9,))
    x = 0.09 if task.endswith("right") else -0.09
    y = 0.09 if "top" in task else -0.09
    for _ in range(2):
        brick = env.reset().observation["duplo2x4/position"]  # (1, 3)
        np.testing.assert_allclose(brick[0, :2], [x, y], atol=2e-3)
    hand = env.physics.bind(env.task.hand.tool_center_point).xpos
    far = np.linalg.norm(hand - brick[0])  # 1 within 5 cm, then a Gaussian that is 0.1 at 10 cm
    expected = 1.0 if far <= 0.05 else 0.1 ** (((far - 0.05) / 0.05) ** 2)
    assert env.task.get_reward(env.physics) == pytest.approx(expected)
