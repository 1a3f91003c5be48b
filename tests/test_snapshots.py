"""Agents kept permanently at given steps: which, under what names, and without a trace in the run."""

import numpy as np
import pytest
import torch
from tiny_runs import Walk, make_continuous, newest, rows, tiny

import voidrl
from voidrl.cli import main as cli
from voidrl.errors import RunFolderError
from voidrl.runs import checkpoint


def kept(run):
    return checkpoint.list_steps(run / "snapshots")


def tensors_of(run, steps):
    return voidrl.load(run / "snapshots" / f"step_{steps:012d}", device="cpu").tensors()


def test_snapshots_are_kept_whatever_is_removed_and_change_nothing_in_the_run(tmp_path):
    config = tiny(env__num_envs=3, log__checkpoint_every_steps=20, log__keep_last=1)
    voidrl.pretrain(Walk, steps=60, out=tmp_path / "plain", config=config)
    snapshots = {**config, "log": {**config["log"], "snapshot_steps": [5, 20, 31, 60, 1000]}}
    run = tmp_path / "run"
    agent = voidrl.pretrain(Walk, steps=60, out=run, config=snapshots)
    # 3 environments: 5 is passed by at 6; one that resets does not step, so others are not multiples of 3.
    found = kept(run)
    assert [sum(s >= due for s in found) for due in (5, 20, 31, 60)] == [4, 3, 2, 1]
    assert all(due <= s < due + 3 for due, s in zip((5, 20, 31, 60), found, strict=True))
    assert len(checkpoint.list_steps(run / "checkpoints")) == 1
    (tensors, meta), (others, other_meta) = newest(run), newest(tmp_path / "plain")
    assert meta.pop("config") != other_meta.pop("config")
    assert meta == other_meta
    assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())
    assert rows(run) == rows(tmp_path / "plain")
    for name, tensor in tensors_of(run, found[-1]).items():  # of the last step: what the run returned
        assert torch.equal(tensor, agent.tensors()[name])
    first = voidrl.load(run / "snapshots" / f"step_{found[0]:012d}", device="cpu")
    assert (first.steps, first.config.method.name) == (found[0], "apt")
    assert not list((run / "snapshots").glob("*/replay*"))


def test_a_resumed_run_writes_them_again_and_no_others(tmp_path):
    config = tiny(log__snapshot_steps=[12, 25, 28, 38], env__num_envs=2)
    voidrl.pretrain(Walk, steps=40, out=tmp_path / "straight", config=config)
    run = tmp_path / "run"
    voidrl.pretrain(Walk, steps=20, out=run, config=config)
    straight = kept(tmp_path / "straight")
    assert kept(run) == straight[:1]
    voidrl.resume(run, steps=40)
    assert kept(run) == straight
    for steps in straight:
        expected = tensors_of(tmp_path / "straight", steps)
        assert all(torch.equal(value, expected[name]) for name, value in tensors_of(run, steps).items())
    assert not [path for path in (run / "snapshots").iterdir() if not path.name.startswith("step_")]


def test_an_agent_is_fine_tuned_from_a_snapshot_and_an_overwrite_removes_them(tmp_path, capsys):
    run, task = tmp_path / "run", tmp_path / "task"
    words = ["pretrain", "tiny_runs:make_continuous", "--steps", "30", "--out", str(run), "--device", "cpu"]
    words += ["--learner.batch-size", "8", "--learner.hidden-dim", "8", "--warmup-steps", "8"]
    assert cli.main([*words, "--log.snapshot-steps", "10,0.02k"]) == 0
    assert kept(run) == [10, 20]
    source = str(run / "snapshots" / "step_000000000010")
    more = ["--steps", "20", "--finetune.warmup-steps", "5", "--finetune.heads", "actor"]
    assert cli.main(["finetune", source, "--out", str(task), *more, "--log.snapshot-steps", "15"]) == 0
    assert kept(task) == [25]  # 10 steps of pre-training and 15 of these
    assert voidrl.load(task).config.log.snapshot_steps == (15,)
    again = voidrl.finetune(source, steps=6, out=tmp_path / "other")
    assert again.config.log.snapshot_steps == ()  # those of pre-training are not asked for again
    assert voidrl.evaluate(source, episodes=1).returns
    obs = make_continuous().reset(seed=0)[0]
    assert not np.array_equal(voidrl.load(source).act(obs), voidrl.load(run).act(obs))
    with pytest.raises(RunFolderError, match=r"holds no config\.json"):
        voidrl.resume(source)
    assert cli.main([*words, "--overwrite"]) == 0
    assert not (run / "snapshots").exists()
    capsys.readouterr()
