"""The disk space of checkpoints is estimated before a run begins, and compared with what is free."""

import pytest
from tiny_runs import MAZE, Walk, tiny

import voidrl
from voidrl.errors import RunFolderError
from voidrl.runs import checkpoint
from voidrl.training import starting


def long_walk():
    return Walk(length=500)


RUN = {"warmup_steps": 10_000, "learner__hidden_dim": 8, "log__checkpoint_every_steps": 300}


def test_the_estimate_is_near_what_a_run_writes(tmp_path, monkeypatch):
    """The replay has many chunks, some of which consecutive checkpoints share."""
    monkeypatch.setattr("voidrl.replay.sizes.CHUNK_BYTES", 40_000)
    monkeypatch.setattr(starting, "ADAM_MOMENTS", 0)  # without updates there are none
    changes = tiny(**RUN, replay__capacity_steps=800, log__keep_last=2, env__num_envs=2)
    env = MAZE.replace("steps=9", "steps=300")
    agent = voidrl.train(env, steps=1500, out=tmp_path / "run", config=changes)
    written = checkpoint.bytes_on_disk(tmp_path / "run" / "checkpoints")
    assert starting.two_checkpoints_bytes(agent) == pytest.approx(written, rel=0.1)


def test_the_moments_of_adam_are_counted(tmp_path):
    config = tiny(learner__hidden_dim=512, log__keep_last=2, log__checkpoint_every_steps=10)
    agent = voidrl.train(Walk, steps=20, out=tmp_path / "run", config=config)
    written = checkpoint.bytes_on_disk(tmp_path / "run" / "checkpoints")
    assert starting.two_checkpoints_bytes(agent) == pytest.approx(written, rel=0.1)


def test_before_its_end_a_run_needs_room_for_a_replay_that_it_will_not_keep(tmp_path, monkeypatch):
    monkeypatch.setattr(starting, "free_disk", lambda folder: 75_000)
    changes = tiny(**RUN, log__keep_replay=False, log__keep_last=1, replay__capacity_steps=3000)
    with pytest.raises(RunFolderError, match=r"75 kB free, and by its end .*another out, or lower"):
        voidrl.train(long_walk, steps=2000, out=tmp_path / "run", config=changes)
    assert not (tmp_path / "run").exists()
    voidrl.train(long_walk, steps=200, out=tmp_path / "run", config=changes)


def test_a_folder_that_is_taken_is_named_before_the_disk(tmp_path, monkeypatch):
    voidrl.train(Walk, steps=12, out=tmp_path / "run", config=tiny())
    monkeypatch.setattr(starting, "free_disk", lambda folder: 0)
    with pytest.raises(RunFolderError, match="already holds a run"):
        voidrl.train(Walk, steps=100, out=tmp_path / "run", config=tiny())


def test_a_resumed_run_counts_what_it_has(tmp_path, monkeypatch):
    voidrl.train(Walk, steps=20, out=tmp_path / "run", config=tiny())
    one = checkpoint.bytes_on_disk(tmp_path / "run" / "checkpoints")
    monkeypatch.setattr(starting, "free_disk", lambda folder: 1.5 * one)
    voidrl.resume(tmp_path / "run", steps=40)
    monkeypatch.setattr(starting, "free_disk", lambda folder: one // 2)
    with pytest.raises(RunFolderError, match="for a checkpoint and its successor"):
        voidrl.train(Walk, steps=40, out=tmp_path / "other", config=tiny())
