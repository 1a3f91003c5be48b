"""DMControl as one of N environments: equal to dm_control's own, in this process and in others."""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from voidrl.config import DMControlConfig, EnvConfig
from voidrl.envs import dmc, gl, workers
from voidrl.envs.make import make_envs, probe_env
from voidrl.envs.suites.dmcontrol import NEED_GL, SUITE
from voidrl.errors import ConfigError, EnvironmentFailedError, MissingExtraError

suite = pytest.importorskip("dm_control.suite")
dmc_tasks = pytest.importorskip("voidrl.envs.dmc_tasks")


def make(env, num_envs=1, *, backend="sync", count_states=False, evaluation=False, frame_stack=1, **options):
    config = EnvConfig(
        id=env,
        num_envs=num_envs,
        backend=backend,
        count_states=count_states,
        frame_stack=frame_stack,
        dmc=DMControlConfig(**options),
    )
    return make_envs(config, evaluation=evaluation)


@pytest.fixture
def closing_envs():
    made = []

    def build(*args, **kwargs):
        made.append(make(*args, **kwargs))
        return made[-1]

    yield build
    for envs in made:
        envs.close()


@pytest.fixture
def cores(monkeypatch):
    """Set the number of cores, which is that of simulation processes."""
    return lambda number: monkeypatch.setattr(workers, "whole_cores", lambda: number)


def flat(observation):
    return np.concatenate([np.ravel(v) for v in observation.values()]).astype(np.float32)


def actions_of(envs, steps, seed=0):
    drawn = np.random.default_rng(seed).uniform(-1, 1, (steps, envs.num_envs, envs.spec.action_dim))
    return drawn.astype(np.float32)


# Equal to dm_control's own

LARGE = {"dog", "humanoid_CMU"}  # worlds that take seconds to build


@pytest.mark.parametrize(
    ("domain", "task"),
    [
        pytest.param(domain, task, marks=pytest.mark.slow if task != tasks[0] or domain in LARGE else ())
        for domain, tasks in SUITE.items()
        for task in tasks
        if f"{domain}_{task}" not in NEED_GL
    ],
)
def test_a_suite_task_is_dm_controls_own(domain, task, closing_envs):
    envs = closing_envs(f"dmc/{domain}_{task}")
    # The linear-quadratic systems are themselves drawn at random: ours are always the first one.
    theirs = suite.load(domain, task, task_kwargs={"random": 0 if domain == "lqr" else 7})
    theirs.task.random.seed(7)
    frames, _ = envs.reset(7)
    np.testing.assert_array_equal(frames[0], flat(theirs.reset().observation))
    low, high = theirs.action_spec().minimum, theirs.action_spec().maximum
    if domain == "lqr":  # unbounded there
        low, high = -np.ones_like(low), np.ones_like(high)
    for action in actions_of(envs, 5):
        result = envs.step(action)
        share = (action[0].astype(np.float64) + 1) / 2
        timestep = theirs.step(np.clip(low * (1 - share) + high * share, low, high))
        np.testing.assert_array_equal(result.frames[0], flat(timestep.observation))
        assert result.reward[0] == np.float32(timestep.reward)
        assert not result.ended[0]


def test_a_whole_episode_with_action_repeat_is_dm_controls_own(closing_envs):
    envs = closing_envs("dmc/cartpole_swingup", action_repeat=8)
    theirs = suite.load("cartpole", "swingup", task_kwargs={"random": 3})
    envs.reset(3)
    theirs.reset()
    for step, action in enumerate(actions_of(envs, 126)):
        result = envs.step(action)
        if step == 125:  # 1000 control steps are 125 of ours: this one began the next episode
            assert not result.ended[0]
            assert result.reward[0] == 0
            np.testing.assert_array_equal(result.frames[0], flat(theirs.reset().observation))
            return
        reward = 0.0
        for _ in range(8):
            timestep = theirs.step(action[0].astype(np.float64))
            reward += timestep.reward
        assert result.reward[0] == pytest.approx(reward, rel=1e-6)
        np.testing.assert_array_equal(result.frames[0], flat(timestep.observation))
        assert result.truncated[0] == (step == 124)
        assert not result.terminated[0]


def test_a_goal_reached_in_the_last_step_of_all_terminates_too(closing_envs):
    envs = closing_envs("dmc/walker_reach_sparse", action_repeat=999)
    envs.reset(0)
    assert not envs.step(actions_of(envs, 1)[0]).ended[0]
    physics = envs.vector.envs[0].unwrapped._env.physics
    with physics.reset_context():
        physics.named.data.qpos["rootx"] = 1000.0
    result = envs.step(actions_of(envs, 1)[0])
    assert (result.terminated[0], result.truncated[0], result.reward[0]) == (True, False, 1)
    assert result.info["success"][0]


@pytest.mark.usefixtures("opengl")
def test_a_terrain_that_needs_opengl_has_one(closing_envs):
    envs = closing_envs("dmc/quadruped_escape", backend="async")
    assert envs.reset(0)[0].shape == (1, *envs.spec.frame_shape)
    with pytest.raises(ConfigError, match=r"'sync'.*'dmc/quadruped_escape'"):
        closing_envs("dmc/quadruped_escape")


@pytest.mark.parametrize("domain", ["walker", pytest.param("quadruped", marks=pytest.mark.slow)])
def test_an_agent_of_a_domain_fits_its_tasks(domain, closing_envs):
    from voidrl.envs.suites.dmcontrol import OTHER_OBSERVATIONS, TASKS

    whole = closing_envs(f"dmc/{domain}").spec
    for task in TASKS[domain]:
        name = f"{domain}_{task}"
        assert (probe_env(EnvConfig(id=f"dmc/{name}", backend="sync"))[0] == whole) == (
            name not in OTHER_OBSERVATIONS
        )


# Pixels


REFERENCE = """
import sys, numpy as np
from dm_control import suite
images = []
for domain, task, camera in [("walker", "walk", 0), ("quadruped", "walk", 2)]:
    env = suite.load(domain, task, task_kwargs={"random": 2})
    env.reset()
    images.append(env.physics.render(84, 84, camera_id=camera))
    for _ in range(3):
        env.step(env.action_spec().maximum)
    images.append(env.physics.render(84, 84, camera_id=camera))
np.save(sys.argv[1], images)
"""


def test_images_are_dm_controls_own(closing_envs, tmp_path, opengl):
    # dm_control renders them in a process of its own: an OpenGL that fails would end this one.
    variables = {**os.environ, "MUJOCO_GL": opengl.name}
    code = [sys.executable, "-c", REFERENCE, str(tmp_path / "images.npy")]
    subprocess.run(code, check=True, capture_output=True, env=variables)
    expected = np.load(tmp_path / "images.npy").reshape(2, 2, 84, 84, 3)
    names = ("walker_walk", "quadruped_walk")  # with cameras of their own
    for name, images in zip(names, expected, strict=True):
        envs = closing_envs(f"dmc/{name}", backend="async", observation="pixels", action_repeat=3)
        frames, _ = envs.reset(2)
        assert frames.shape == (1, 3, 84, 84)
        np.testing.assert_array_equal(frames[0].transpose(1, 2, 0), images[0])
        result = envs.step(np.ones((1, envs.spec.action_dim), np.float32))
        np.testing.assert_array_equal(result.frames[0].transpose(1, 2, 0), images[1])
        assert images.std() > 10
        assert (images[0] != images[1]).any()


@pytest.mark.usefixtures("opengl")
def test_each_environment_of_a_process_has_its_own_image_and_fast_ones_are_others(closing_envs, cores):
    cores(1)
    options = {"backend": "async", "observation": "pixels", "image_size": 32}
    two = closing_envs("dmc/walker", 2, **options).reset(4)[0].astype(int)
    alone = closing_envs("dmc/walker", **options).reset(5)[0].astype(int)
    assert (two[0] != two[1]).any()
    np.testing.assert_array_equal(alone[0], two[1])
    fast = closing_envs("dmc/walker", render_quality="fast", **options).reset(5)[0].astype(int)
    assert fast.shape == alone.shape == (1, 3, 32, 32)
    assert (alone != fast).any()
    assert np.abs(alone - fast).mean() < 20  # without shadows, but the same picture


def test_images_are_not_rendered_in_this_process(closing_envs):
    with pytest.raises(ConfigError, match=r"'sync'.*'dmc/walker'.*auto or async"):
        closing_envs("dmc/walker", observation="pixels")


def test_without_opengl_all_that_was_tried_is_told(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(gl, "_render", lambda name: ("", f"no {name} here"))
    with pytest.raises(ConfigError) as error:
        make("dmc/walker", backend="async", observation="pixels")
    text = str(error.value)
    for word in ("'dmc/walker'", "egl: no egl here", "osmesa: no osmesa here", "apt-get install", "'states'"):
        assert word in text
    monkeypatch.setenv("MUJOCO_GL", "nonsense")  # the only one tried
    with pytest.raises(ConfigError, match=r"works here \(nonsense: no nonsense here\): unset MUJOCO_GL"):
        make("dmc/walker", backend="async", observation="pixels")


def test_states_need_no_opengl(tmp_path):
    code = (
        "from voidrl.config import EnvConfig\nfrom voidrl.envs.make import probe_env, make_envs\n"
        "config = EnvConfig(id='dmc/pendulum')\nprint(probe_env(config)[0].frame_shape)\n"
        "make_envs(config).close()\n"
    )
    variables = {**os.environ, "MUJOCO_GL": "nonsense"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=False
    )
    assert (done.stdout, done.stderr) == ("(3,)\n", "")


# Processes


def test_processes_step_as_one_does(closing_envs, cores):
    cores(2)
    here = closing_envs("dmc/pendulum_swingup", 5)
    there = closing_envs("dmc/pendulum_swingup", 5, backend="async")
    assert len(there.vector._workers) == 2
    np.testing.assert_array_equal(here.reset(9)[0], there.reset(9)[0])
    for action in actions_of(here, 20):
        there.send(action)
        ours, theirs = here.step(action), there.recv()
        np.testing.assert_array_equal(ours.frames, theirs.frames)
        np.testing.assert_array_equal(ours.reward, theirs.reward)
    assert len({frame.tobytes() for frame in ours.frames}) == 5  # each with a seed of its own


def test_a_process_that_dies_is_named(closing_envs, cores):
    cores(2)
    envs = closing_envs("dmc/pendulum_swingup", 4, backend="async")
    envs.reset(0)
    os.kill(envs.vector._workers[1].process.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFailedError, match=r"SIGKILL, .* environments 2 to 3 \('dmc/pendulum"):
        envs.step(actions_of(envs, 1)[0])
    assert all(worker.process.poll() is not None for worker in envs.vector._workers)


# Options


def test_what_is_left_to_the_domain_is_written_down():
    def repeat(env, **options):
        return dmc.resolve(EnvConfig(id=env, dmc=DMControlConfig(**options))).dmc.action_repeat

    assert repeat("dmc/walker") == 1
    assert repeat("dmc/cheetah", observation="pixels") == 4
    assert repeat("dmc/hopper", observation="pixels") == 2
    assert repeat("dmc/walker", observation="pixels", action_repeat=3) == 3


def test_a_name_without_its_prefix_is_understood():
    with pytest.raises(ConfigError, match=r"'walker_run'.*DMControl's is 'dmc/walker_run'"):
        make("walker_run")


def test_states_of_a_domain_are_counted_in_an_evaluation(closing_envs):
    assert closing_envs("dmc/pendulum", evaluation=True, count_states=True).counter is not None


@pytest.mark.parametrize(
    ("package", "version", "wanted"),
    [
        ("mujoco", "3.9.0", "mujoco>=3.17,<4"),
        ("dm-control", "1.0.49", "dm-control>=1.0.50,<2"),
    ],
)
def test_another_version_is_refused_with_the_pin(package, version, wanted, monkeypatch):
    found = {"mujoco": "3.17.0", "dm-control": "1.0.50", package: version}
    monkeypatch.setattr(dmc.importlib.metadata, "version", found.get)
    with pytest.raises(ConfigError, match=re.escape(f"{package} {version}")) as error:
        make("dmc/walker")
    assert f"pip install '{wanted}'" in str(error.value)


def test_without_the_extra_the_command_is_named(monkeypatch):
    def not_installed(package):
        raise dmc.importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(dmc.importlib.metadata, "version", not_installed)
    with pytest.raises(MissingExtraError, match=r"'dmc/walker' needs dm-control.*pip install 'dm-control"):
        make("dmc/walker")
