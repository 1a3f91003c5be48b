"""Whole runs on DMControl: from a domain to a task, and what is refused on the way."""

import os
import signal

import pytest

import voidrl
from voidrl.api import load
from voidrl.config import EnvConfig
from voidrl.envs.make import probe_env
from voidrl.envs.parallel import ParallelVector
from voidrl.errors import ConfigError, EnvironmentFailedError, SpaceError
from voidrl.runs import checkpoint
from voidrl.runs.metrics import read_metrics
from voidrl.training.assembly import require_same_spaces

pytest.importorskip("dm_control")

TINY = {
    "env": {"num_envs": 2, "backend": "sync"},
    "warmup_steps": 20,
    "learner": {"batch_size": 16, "hidden_dim": 8, "trunk_dim": 8},
    "representation": {"hidden_dim": 8, "encoder": {"feature_dim": 4}},
    "replay.capacity_steps": 400,
    "finetune.warmup_steps": 20,
    "log": {"tensorboard": False, "log_every_steps": 20, "snapshot_steps": []},
    "device": "cpu",
}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    out = tmp_path_factory.mktemp("dmc") / "run"
    voidrl.pretrain("dmc/pendulum", steps=60, config=TINY, out=out)
    return out


def test_a_domain_is_pretrained_and_adapted_to_its_task(pretrained, tmp_path):
    config = load(pretrained).config
    assert (config.representation.name, config.learner.name) == ("icm", "ddpg")  # of urlb-states
    assert config.env.dmc.action_repeat == 1  # written down
    rows = read_metrics(pretrained)
    assert all(row["reward/extrinsic"] == 0 for row in rows if "reward/extrinsic" in row)
    assert rows[-1]["train/reward_mean"] > 0
    agent = voidrl.finetune(pretrained, "dmc/pendulum_swingup", steps=60, out=tmp_path / "task")
    assert agent.config.env.dmc == config.env.dmc
    assert voidrl.evaluate(agent, episodes=1).lengths == [1000]


def test_frames_are_counted_beside_steps(tmp_path):
    changes = {**TINY, "env": {**TINY["env"], "dmc": {"action_repeat": 4}}}
    del changes["representation"]  # APT's
    voidrl.pretrain("dmc/pendulum", "random", steps=40, config=changes, out=tmp_path / "run")
    assert [row["frames"] for row in read_metrics(tmp_path / "run")] == [80, 160]


def test_a_domain_has_nothing_to_be_trained_on_or_evaluated_on(pretrained, tmp_path):
    sentence = r"'dmc/pendulum' is a domain without a reward.*dmc/pendulum_swingup"
    with pytest.raises(ConfigError, match=sentence):
        voidrl.train("dmc/pendulum", config=TINY, out=tmp_path / "run")
    with pytest.raises(ConfigError, match=sentence):
        voidrl.finetune(pretrained, "dmc/pendulum", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="expected dmc/pendulum_swingup"):
        voidrl.evaluate(pretrained)


@pytest.mark.parametrize("call", [voidrl.finetune, voidrl.evaluate])
def test_an_agent_of_another_domain_is_refused_with_both_sides(call, pretrained):
    with pytest.raises(SpaceError) as error:
        call(pretrained, "dmc/cartpole_balance")
    for word in ("'dmc/pendulum'", "vector 3, 1-d", "'dmc/cartpole_balance'", "vector 5, 1-d", "'pendulum'"):
        assert word in str(error.value)


def test_equal_spaces_do_not_make_another_domain_the_same(pretrained):
    spec = load(pretrained).spec
    with pytest.raises(SpaceError, match=r"'dmc/acrobot_swingup' .*: expected a task of domain 'pendulum': "):
        require_same_spaces(spec, "dmc/pendulum", spec, "dmc/acrobot_swingup")


def test_a_task_that_shows_more_is_refused_with_those_that_do_not():
    names = ("dmc/swimmer", "dmc/swimmer_swimmer15")
    mine, other = (probe_env(EnvConfig(id=name, backend="sync"))[0] for name in names)
    with pytest.raises(SpaceError, match=r"expected a task of domain 'swimmer': .*swimmer6$"):
        require_same_spaces(mine, names[0], other, names[1])


def test_pixels_have_presets_of_their_own(tmp_path):
    changes = {**TINY, "env": {"dmc": {"observation": "pixels"}}}
    with pytest.raises(ConfigError, match=r"'mlp' cannot be used with pixels.*urlb-pixels"):
        voidrl.pretrain("dmc/walker", config=changes, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_worker_that_dies_leaves_the_runs_checkpoint(tmp_path, monkeypatch):
    changes = {**TINY, "env": {"num_envs": 2, "backend": "async"}}
    changes["log"] = {**TINY["log"], "checkpoint_every_steps": 40}
    receive, calls = ParallelVector.recv, []

    def dies_in_its_30th_step(self):
        calls.append(self)
        if len(calls) == 30:
            os.kill(self._workers[0].process.pid, signal.SIGKILL)
            self._workers[0].process.wait()
        return receive(self)

    monkeypatch.setattr(ParallelVector, "recv", dies_in_its_30th_step)
    with pytest.raises(EnvironmentFailedError, match=r"SIGKILL.*environments? 0 .*step 40 is kept"):
        voidrl.pretrain("dmc/pendulum", steps=80, config=changes, out=tmp_path / "run")
    agent = voidrl.resume(tmp_path / "run")
    assert agent.steps == 80
    assert checkpoint.list_steps(tmp_path / "run" / "checkpoints")[-1] == 80


def test_a_run_in_processes_goes_on_as_if_it_had_not_stopped(tmp_path):
    changes = {**TINY, "env": {"num_envs": 2, "backend": "async"}}
    changes["log"] = {**TINY["log"], "checkpoint_every_steps": 40}
    straight = voidrl.pretrain("dmc/pendulum", steps=80, config=changes, out=tmp_path / "straight")
    voidrl.pretrain("dmc/pendulum", steps=40, config=changes, out=tmp_path / "resumed")
    resumed = voidrl.resume(tmp_path / "resumed", steps=80)
    for name, value in straight.tensors().items():
        assert value.equal(resumed.tensors()[name]), name
