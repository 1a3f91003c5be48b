"""DMControl in MuJoCo Warp: the starts, observations, rewards and ends of episodes are those of C MuJoCo."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import tiny

import voidrl
from voidrl.config import DMControlConfig, EnvConfig
from voidrl.envs import dmc, dmc_warp
from voidrl.envs.make import make_envs, probe_env
from voidrl.errors import ConfigError, EnvironmentFailedError, MissingExtraError
from voidrl.protocols.presets import default_preset, family
from voidrl.suites.dmcontrol import TASKS, WARP_TASKS, find_dmc_task, require_task

pytest.importorskip("dm_control.suite")


def config_of(env, num_envs=1, backend="auto", **options):
    return EnvConfig(id=env, num_envs=num_envs, backend=backend, dmc=DMControlConfig(**options))


# Without the package


def test_a_task_has_one_name_in_both_simulators():
    assert find_dmc_task("dmc-warp/Walker-Run") == find_dmc_task("dmc/walker_run")
    assert dmc.resolve(config_of("dmc-warp/Walker-Run")).id == "dmc-warp/walker_run"
    assert all(set(tasks) <= set(TASKS[domain]) for domain, tasks in WARP_TASKS.items())
    assert family("dmc-warp/walker") == "dmc"
    assert default_preset("dmc-warp/walker") == default_preset("dmc/walker")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": "dmc-warp/jaco"}, "expected one of cheetah, hopper, quadruped, walker, or dmc/jaco"),
        ({"id": "dmc-warp/quadruped_escape"}, "a task of 'quadruped': walk, run, stand, jump, or dmc/quadr"),
        ({"backend": "async"}, "env.backend = 'async' .*expected auto or tensor, or dmc/walker_run"),
        ({"count_states": True}, "env.count_states = True .*expected dmc/walker_run"),
        ({"wrappers": ("gymnasium.wrappers:TimeLimit",)}, r"env\.wrappers"),
    ],
)
def test_what_it_cannot_do_is_refused(changes, message):
    config = dataclasses.replace(config_of("dmc-warp/walker_run"), **changes)
    with pytest.raises(ConfigError, match=message):
        make_envs(config, device="cpu")


def test_c_mujoco_has_no_tensors_and_names_what_has():
    with pytest.raises(ConfigError, match=r"'dmc/walker', which C MuJoCo simulates: expected dmc-warp/…"):
        make_envs(config_of("dmc/walker", backend="tensor"))


def test_an_evaluation_names_the_tasks_of_the_simulator():
    with pytest.raises(ConfigError, match=r"expected dmc-warp/quadruped_walk, .*dmc-warp/quadruped_jump$"):
        require_task("dmc-warp/quadruped", "an evaluation needs one")


def test_without_the_extra_the_command_is_named(monkeypatch):
    def not_installed(package):
        raise dmc.importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(dmc.importlib.metadata, "version", not_installed)
    with pytest.raises(MissingExtraError, match=r"'dmc-warp/walker' needs mujoco-warp.*voidrl\[warp\]"):
        make_envs(config_of("dmc-warp/walker"), device="cpu")


def test_the_pins_are_those_of_the_extra():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'warp = ["voidrl[dmc]", "mujoco-warp>=3.17,<4", "warp-lang>=1.15,<2"]' in text
    assert dmc_warp.PACKAGES == {"mujoco-warp": ((3, 17), (4,)), "warp-lang": ((1, 15), (2,))}


# With it


@pytest.fixture
def warp():
    """MuJoCo Warp, whose kernels for the CPU are compiled in the first run and kept."""
    return pytest.importorskip("mujoco_warp", reason="needs the extra `warp`")


@pytest.fixture
def made(warp):
    envs = []

    def build(env, num_envs=2, *, true_state=False, render_height=0, **options):
        backend = "auto" if env.startswith("dmc-warp/") else "sync"
        config = config_of(env, num_envs, backend, **options)
        envs.append(make_envs(config, device="cpu", true_state=true_state, render_height=render_height))
        return envs[-1]

    yield build
    for each in envs:
        each.close()


def actions_of(envs, steps, seed=0):
    drawn = np.random.default_rng(seed).uniform(-1, 1, (steps, envs.num_envs, envs.spec.action_dim))
    return drawn.astype(np.float32)


def warp_step(envs, action):
    result = envs.step(torch.from_numpy(action))
    return result._replace(frames=result.frames.numpy().copy())


def flat(observation):
    return np.concatenate([np.ravel(value) for value in observation.values()])


@pytest.mark.parametrize("sigmoid", ["gaussian", "linear", "quadratic"])
@pytest.mark.parametrize("margin", [0, 1.5])
def test_tolerance_is_dm_controls(warp, sigmoid, margin):
    from dm_control.utils import rewards

    from voidrl.envs.warp_tasks import tolerance

    value = torch.linspace(-3, 4, 57)
    options = {"margin": margin, "value_at_margin": 0.3, "sigmoid": sigmoid}
    expected = rewards.tolerance(value.double().numpy(), bounds=(0.5, 1.0), **options)
    np.testing.assert_allclose(tolerance(value, 0.5, 1.0, **options).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("domain", WARP_TASKS)
def test_tasks_are_those_of_c_mujoco(warp, domain):
    """Each task from its own start: the same seeds, and after three control steps the same actions."""
    from voidrl.envs import dmc_tasks
    from voidrl.envs.warp_physics import WarpPhysics
    from voidrl.envs.warp_tasks import DOMAINS

    theirs = dmc_tasks.load(domain, WARP_TASKS[domain][0], seed=0)
    substeps = round(theirs.control_timestep() / theirs.physics.timestep())
    physics = WarpPhysics(theirs.physics.model.ptr, 2, torch.device("cpu"), substeps)
    assert theirs._step_limit == dmc_warp.EPISODE_STEPS
    for name in WARP_TASKS[domain]:
        theirs, ours = dmc_tasks.load(domain, name, seed=3), DOMAINS[domain](physics, name)
        drawn = ours.draw(np.random.RandomState(3))
        ours.begin(torch.tensor([1]), torch.from_numpy(drawn[None]).float())
        start = theirs.reset()
        np.testing.assert_allclose(ours.observe()[1], flat(start.observation), atol=2e-5)
        sharp = name in ("jump_sparse", "turnover_sparse")  # it just touches the floor, or just does not
        random = np.random.default_rng(0)
        for _ in range(0 if sharp else 3):
            action = random.uniform(-1, 1, theirs.action_spec().shape)
            physics.ctrl[1] = torch.from_numpy(action)
            physics.advance()
            step = theirs.step(action)
            np.testing.assert_allclose(ours.observe()[1], flat(step.observation), atol=2e-3)
            np.testing.assert_allclose(float(ours.reward()[1]), step.reward, atol=1e-4)


def test_environments_equal_those_of_c_mujoco(made):
    """Seeds, action repeats, resets, the true state and the spec, from one episode into the next."""
    ours = made("dmc-warp/walker_walk", action_repeat=4, true_state=True)
    theirs = made("dmc/walker_walk", action_repeat=4, true_state=True)
    assert ours.spec == theirs.spec == probe_env(config_of("dmc-warp/walker_walk"))[0]
    assert (ours.steps_per_second, ours.frames_per_step) == (theirs.steps_per_second, 4)
    for env in theirs.vector._own.envs:  # an end in the middle of an action repeat
        env._step_limit = 6
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dmc_warp, "EPISODE_STEPS", 6)
        ours.vector._ends_within_step = True
        first, again = ours.reset(seed=11)[0], theirs.reset(seed=11)[0]
        assert ours.variables == theirs.variables
        np.testing.assert_allclose(first, again, atol=1e-5)
        np.testing.assert_allclose(ours.true_state(), theirs.true_state(), atol=1e-5)
        for number, action in enumerate(actions_of(ours, 6)):
            mine, other = warp_step(ours, action), theirs.step(action)
            np.testing.assert_allclose(mine.frames, other.frames, atol=2e-2)
            np.testing.assert_allclose(mine.reward, other.reward, atol=1e-3)
            np.testing.assert_allclose(ours.true_state(), theirs.true_state(), atol=2e-2)
            assert (mine.truncated == other.truncated).all()
            assert mine.truncated.all() == (number % 3 == 1)  # steps of 4 and 2, then the reset
            assert not mine.terminated.any()


def test_a_goal_ends_its_episode_and_no_other(made, monkeypatch):
    from voidrl.envs import dmc_tasks

    goal = dmc_tasks.TASKS["walker"]["reach_sparse"]
    envs = made("dmc-warp/walker_reach_sparse", action_repeat=3)
    physics = envs.vector._physics
    envs.reset(seed=0)
    physics.qpos[1, physics.joint("rootx")] = goal.threshold + 1
    physics.forward()
    actions = actions_of(envs, 3)
    end = warp_step(envs, actions[0])
    assert end.terminated.tolist() == end.info["success"].tolist() == [False, True]
    assert end.reward.tolist() == [0.0, 1.0]  # once, though the action is repeated
    held = physics.qpos.clone()
    begun = warp_step(envs, actions[1])
    assert not begun.terminated.any()
    assert begun.reward.tolist() == [0.0, 0.0]
    assert physics.qpos[1, physics.joint("rootx")] == 0.0
    assert not torch.equal(physics.qpos[0], held[0])


def test_other_simulations_do_not_notice_a_reset(made):
    """Of the cheetah, which settles for 200 steps before an episode."""
    seen = []
    for ends in (False, True):
        envs = made("dmc-warp/cheetah_run")
        envs.reset(seed=5)
        if ends:
            envs.vector._steps[0] = dmc_warp.EPISODE_STEPS - 2
        results = [warp_step(envs, action) for action in actions_of(envs, 6)]
        seen.append(np.stack([result.frames for result in results]))
        assert [result.truncated[0] for result in results] == [ends and i == 1 for i in range(6)]
    assert np.array_equal(seen[0][:, 1], seen[1][:, 1])
    assert np.array_equal(seen[0][:2, 0], seen[1][:2, 0])
    assert not np.allclose(seen[0][2, 0], seen[1][2, 0])


def test_the_same_seed_gives_the_same_episodes(made):
    envs = made("dmc-warp/hopper_hop")
    runs = []
    for _ in range(2):
        first = envs.reset(seed=9)[0].numpy().copy()
        envs.vector._steps[:] = dmc_warp.EPISODE_STEPS - 2
        runs.append([first, *(warp_step(envs, action).frames for action in actions_of(envs, 4))])
    assert np.array_equal(*runs)
    assert not np.array_equal(runs[0][0], runs[0][3])  # the second episode starts elsewhere


def test_a_domain_without_a_task_has_no_reward(made):
    envs = made("dmc-warp/quadruped")
    envs.reset(seed=0)
    result = warp_step(envs, actions_of(envs, 1)[0])
    assert not result.reward.any()
    assert "success" not in result.info


def test_a_simulation_that_diverges_is_reported(made):
    envs = made("dmc-warp/walker", observation="pixels", image_size=20)
    first = envs.reset(seed=0)[0].clone()
    action = actions_of(envs, 1)[0]
    warp_step(envs, action)
    envs.vector._physics.qvel[1, 0] = float("nan")
    with pytest.raises(
        EnvironmentFailedError, match=r"environment 1 \('dmc-warp/walker'\) had positions or vel.*not num"
    ):
        [warp_step(envs, action) for _ in range(2)]
    assert torch.equal(envs.reset(seed=0)[0], first)  # nothing is left of it
    warp_step(envs, action)


def test_contacts_that_are_left_out_are_reported(made, monkeypatch):
    from voidrl.envs import warp_physics

    monkeypatch.setattr(warp_physics, "MAX_CONSTRAINTS", 4)
    envs = made("dmc-warp/walker_run")
    envs.reset(seed=0)
    with pytest.raises(
        EnvironmentFailedError, match=r"overflow \(NEFC\).*; dmc/walker_run is simulated by C"
    ):
        [warp_step(envs, action) for action in actions_of(envs, 40)]


def test_images_show_each_simulation(made):
    envs = made("dmc-warp/walker_stand", observation="pixels", image_size=40, render_height=64)
    images = envs.reset(seed=1)[0].clone()
    assert images.shape == (2, 3, 40, 40)
    assert images.dtype is torch.uint8
    assert not torch.equal(images[0], images[1])  # another pose
    red, _, blue = images.float().mean((0, 2, 3))
    assert blue > red  # sky and floor are blue, the body is not
    physics = envs.vector._physics
    physics.qpos[1] = physics.qpos[0]
    physics.forward()
    same = envs.vector._frames(torch.empty(0))
    assert torch.equal(same[0], same[1])
    picture = envs.render()
    assert picture.shape == (64, 64, 3)
    small = picture.reshape(16, 4, 16, 4, 3).mean((1, 3))
    drawn = images[0].permute(1, 2, 0).numpy()[:40, :40].reshape(8, 5, 8, 5, 3).mean((1, 3))
    assert abs(small.mean() - drawn.mean()) < 5  # the same scene at another size


def test_agents_move_between_the_simulators(warp, tmp_path):
    config = tiny(env__num_envs=2, learner="ddpg", replay__capacity_steps=40, method__k=3)
    agent = voidrl.pretrain("dmc-warp/walker", steps=40, out=tmp_path / "before", config=config)
    assert agent.config.env.id == "dmc-warp/walker"
    with pytest.raises(ConfigError, match=re.escape("expected dmc-warp/walker_stand")):
        voidrl.evaluate(agent, episodes=1)
    task = voidrl.finetune(agent, "dmc-warp/walker_run", steps=24, out=tmp_path / "task")
    assert voidrl.resume(tmp_path / "task", steps=32).steps >= 32
    moved = voidrl.finetune(
        task, "dmc/walker_run", steps=24, out=tmp_path / "moved", config={"env.backend": "sync"}
    )
    assert moved.config.env.id == "dmc/walker_run"
