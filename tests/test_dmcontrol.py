"""The names of DMControl's domains and tasks."""

import pytest

from voidrl.envs.suites.dmcontrol import SUITE, TASKS, DMCTask, find_dmc_task
from voidrl.errors import ConfigError


def test_all_tasks_of_the_suite_are_known():
    suite = pytest.importorskip("dm_control.suite")
    assert {domain: set(tasks) for domain, tasks in suite.TASKS_BY_DOMAIN.items()} == {
        domain: set(tasks) for domain, tasks in SUITE.items()
    }


def test_the_tasks_beside_the_suite_are_those_that_can_be_made():
    tasks = pytest.importorskip("voidrl.envs.dmc_tasks")
    ours = {d: {t for t in TASKS[d] if t not in SUITE.get(d, ())} for d in TASKS}
    assert {d: t for d, t in ours.items() if t} == {d: set(t) for d, t in tasks.CUSTOM.items()}


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ("dmc/walker", DMCTask("walker", None)),
        ("dmc/walker_run", DMCTask("walker", "run")),
        ("dmc/Ball-in-cup_catch", DMCTask("ball_in_cup", "catch")),
        ("dmc/humanoid_cmu_run", DMCTask("humanoid_CMU", "run")),
        ("dmc/humanoid_run", DMCTask("humanoid", "run")),
        ("dmc/jaco_reach_top_left", DMCTask("jaco", "reach_top_left")),
        ("atari/pong", None),
        ("voidrl/PixelMaze-v0", None),
    ],
)
def test_names_are_found_in_any_spelling(env, place):
    assert find_dmc_task(env) == place


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("dmc/wlaker_run", ["'wlaker_run'", "'walker_run'"]),
        ("dmc/walker_rum", ["'rum'", "domain 'walker'", "'run'"]),
        ("dmc/humanoid_CMU_fly", ["'fly'", "domain 'humanoid_CMU'", "stand"]),
        ("dmc/walker_run?action_repeat=2", ["options", "env.dmc.action_repeat = 2"]),
        ("dmc/", ["''", "voidrl list tasks"]),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(env, words):
    with pytest.raises(ConfigError) as error:
        find_dmc_task(env)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)
