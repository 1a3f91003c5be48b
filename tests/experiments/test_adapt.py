"""The experiment `adapt`: tasks with settings of their own, and scores at shares of the steps."""

import pytest
from done_cells import plan_of

from voidrl.errors import ConfigError

POINT = "voidrl/PointMass-v0"


def own(tmp_path, tasks, more="[methods.apt]"):
    path = tmp_path / "mine.toml"
    path.write_text(f"{tasks}\n{more}")
    return path


def test_tasks_have_their_own_settings(tmp_path):
    path = own(
        tmp_path,
        f"""
        preset = "cpu"
        [pretrain]
        steps = 400
        [finetune]
        steps = 200
        [[tasks]]
        name = "plain"
        env = "{POINT}?task=pickup"
        pretrain = {{ name = "point", env = "{POINT}" }}
        [[tasks]]
        name = "own"
        env = "{POINT}?task=touch"
        pretrain = {{ name = "other", env = "{POINT}", steps = 300, config.warmup_steps = 50 }}
        finetune = {{ steps = 100, config.updates_per_step = 1 }}
        config = {{ learner = "ddpg", finetune.warmup_steps = 70 }}
        """,
        """
        [methods.apt]
        [methods.scratch]
        phases = ["train"]
        like = "apt"
        [methods.preset]
        phases = ["train"]
        """,
    )
    cells = {cell.folder: cell for cell in plan_of(path).cells}
    assert {*cells} == {
        *("point/apt/seed1", "plain/apt/seed1", "plain/scratch/seed1", "plain/preset/seed1"),
        *("other/apt/seed1", "own/apt/seed1", "own/scratch/seed1", "own/preset/seed1"),
    }
    found = {
        (folder.split("/")[0], cell.config.steps, cell.config.learner.name) for folder, cell in cells.items()
    }
    assert found == {
        *(("point", 400, "sac"), ("plain", 200, "sac"), ("other", 300, "ddpg"), ("own", 100, "ddpg")),
    }
    assert {cell.protocol_steps == cell.config.steps for cell in cells.values()} == {True}
    assert cells["other/apt/seed1"].config.warmup_steps == 50
    assert cells["own/apt/seed1"].config.finetune.warmup_steps == 70
    assert cells["own/apt/seed1"].config.updates_per_step == 1
    assert cells["plain/apt/seed1"].config.updates_per_step == 0.25


def test_the_command_line_overrules_the_settings_of_a_task(tmp_path):
    path = own(tmp_path, f"tasks = [{{ env = '{POINT}', config.learner.n_step = 5, pretrain.steps = 9 }}]")
    first, tuned = plan_of(path, changes={"learner.n_step": 2, "pretrain.steps": 20}).cells
    assert (first.config.learner.n_step, tuned.config.learner.n_step, first.config.steps) == (2, 2, 20)


@pytest.mark.parametrize("name", ["learner.n_stepp", "method.kk"])
def test_a_misspelled_field_for_all_runs_is_refused(name, tmp_path):
    path = own(tmp_path, f"tasks = ['CartPole-v1']\nseeds = [1]\n[config]\n{name} = 7")
    with pytest.raises(ConfigError, match=f"unknown config field '{name}'; did you mean '{name[:-1]}'"):
        plan_of(path)


def test_a_field_that_only_some_pieces_have_is_left_out_of_the_others(tmp_path):
    path = own(
        tmp_path,
        "tasks = ['CartPole-v1']\nseeds = [1]\n[config]\nmethod.k = 5",
        "[methods.apt]\nphases = ['pretrain']\n[methods.random]\nmethod = 'random'\nphases = ['pretrain']",
    )
    apt, random = (cell.config for cell in plan_of(path).cells)
    assert apt.method.k == 5
    assert not hasattr(random.method, "k")
