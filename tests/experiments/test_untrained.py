"""Agents that were pre-trained for 0 steps: a control for fine-tuning, alone and in an experiment."""

import json

import pytest
import torch
from done_cells import do_here, make_started, plan_of, printed_results
from tiny_runs import Walk, newest, rows, tiny

import voidrl
from voidrl.cli import main as cli
from voidrl.errors import ConfigError
from voidrl.experiments.format import read_experiment
from voidrl.experiments.state import state_of
from voidrl.runs import checkpoint
from voidrl.runs.status import read_status
from voidrl.system.units import parse_count
from voidrl.training.build import task_config

POINT = "voidrl/PointMass-v0"
SMALL = """
config = { warmup_steps = 8, learner.batch_size = 8, learner.hidden_dim = 8, finetune.warmup_steps = 8 }
[pretrain]
steps = 40
[finetune]
steps = 40
[evaluation]
episodes = 2
[methods.untrained]
phases = ["pretrain"]
pretrain = { steps = 0 }
evaluation = false
[methods.control]
source = "untrained"
"""


def small_plan(tmp_path, **request):
    path = tmp_path / "mine.toml"
    task = f'name = "pickup", env = "{POINT}?task=pickup", pretrain = {{ name = "point", env = "{POINT}" }}'
    path.write_text(f"tasks = [{{ {task} }}]\n{SMALL}")
    return plan_of(path, tmp_path / "out", device="cpu", **request)


def test_no_step_is_taken_and_no_weight_changes(tmp_path):
    agent = voidrl.pretrain(Walk, steps=0, seed=3, out=tmp_path / "run", config=tiny())
    assert agent.steps == 0
    _, meta = newest(tmp_path / "run")
    assert (meta["steps"], meta["agent_steps"], meta["updates"]) == (0, 0, 0)
    assert checkpoint.list_steps(tmp_path / "run" / "checkpoints") == [0]
    assert rows(tmp_path / "run") == []
    status = read_status(tmp_path / "run")
    assert (status.state, status.steps, status.checkpoint) == ("done", 0, 0)
    # The weights are those with which pre-training with this seed begins.
    warmup = tiny(warmup_steps=100)
    started = voidrl.pretrain(Walk, steps=8, seed=3, out=tmp_path / "warmup", config=warmup)
    weights = dict(agent.learner.named_parameters())
    assert weights
    for name, weight in started.learner.named_parameters():
        assert torch.equal(weight, weights[name]), name


def test_an_untrained_agent_is_fine_tuned(tmp_path):
    voidrl.pretrain(Walk, steps=0, out=tmp_path / "run", config=tiny())
    tuned = voidrl.finetune(tmp_path / "run", Walk, steps=30, out=tmp_path / "tuned")
    assert tuned.steps == 30
    assert newest(tmp_path / "tuned")[1]["updates"] > 0
    # Without a number of steps it takes the default, not the 0 of pre-training.
    assert task_config(voidrl.load(tmp_path / "run").config).steps == 100_000


def test_the_command_line_takes_0_steps(tmp_path, capsys):
    run = str(tmp_path / "run")
    assert cli.main(["pretrain", POINT, "--preset", "cpu", "--steps", "0", "--out", run]) == 0
    assert "the agent is saved untrained" in capsys.readouterr().err
    assert cli.main(["status", run]) == 0
    assert "0 of 0" in capsys.readouterr().out
    assert cli.main(["resume", run]) == 0
    assert "complete at step 0" in capsys.readouterr().err


@pytest.mark.parametrize("steps", [-1, "-5", 0.5])
def test_negative_steps_are_refused(tmp_path, steps):
    with pytest.raises(ConfigError, match=r"steps must be a positive whole number .* got"):
        voidrl.pretrain(Walk, steps=steps, out=tmp_path / "run", config=tiny())
    with pytest.raises(ConfigError, match="got"):
        parse_count(steps, zero=True)


def test_only_pretraining_may_have_0_steps(tmp_path):
    sentence = "steps = 0 cannot be used: expected a positive number .* only pre-training may have 0"
    with pytest.raises(ConfigError, match=sentence):
        voidrl.train(Walk, steps=0, out=tmp_path / "run", config=tiny())
    voidrl.pretrain(Walk, steps=0, out=tmp_path / "run", config=tiny())
    with pytest.raises(ConfigError, match=sentence):
        voidrl.finetune(tmp_path / "run", Walk, steps=0, out=tmp_path / "tuned")
    path = tmp_path / "mine.toml"
    path.write_text(f"tasks = ['{POINT}']\nfinetune = {{ steps = 0 }}\n[methods.apt]")
    with pytest.raises(ConfigError, match=r"mine.toml: finetune.steps must be a positive whole number"):
        read_experiment(path)


def test_an_experiment_with_an_untrained_arm(tmp_path):
    plan = small_plan(tmp_path)
    first, control = plan.cells
    assert (first.config.steps, control.config.steps, control.source) == (0, 40, first.folder)
    folder = make_started(plan, first)
    assert state_of(first, folder).kind == "partial"  # it died before its checkpoint of step 0
    for cell in plan.cells:
        do_here(plan, cell)
        assert state_of(cell, plan.path(cell)).kind == "done"
    evaluation = json.loads((plan.path(control) / "evaluation.json").read_text())
    assert evaluation["agent"]["steps"] == 40
    [line] = [line for line in printed_results(plan) if "control (fine-tuning)" in line]
    assert " 1 (1), one seed 0 + 40" in line
    shorter = small_plan(tmp_path, steps_scale=0.5)
    assert [cell.config.steps for cell in shorter.cells] == [0, 20]
