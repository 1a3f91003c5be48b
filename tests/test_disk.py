"""The disk space of checkpoints is estimated before a run begins, and compared with what is free."""

import errno
import os
import resource
from types import SimpleNamespace

import pytest
from tiny_runs import MAZE, Walk, tiny

import voidrl
from voidrl.errors import CheckpointError, EnvironmentFailedError, RunFolderError
from voidrl.runs import checkpoint, locks
from voidrl.training import starting


def long_walk():
    return Walk(length=500)


RUN = {"warmup_steps": 10_000, "learner__hidden_dim": 8, "log__checkpoint_every_steps": 300}


def test_the_estimate_is_near_what_a_run_writes(tmp_path, monkeypatch):
    """The replay has many chunks, some of which consecutive checkpoints share."""
    monkeypatch.setattr("voidrl.replay.ring.CHUNK_BYTES", 40_000)
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


class Hoarder(Walk):
    """Opens files in its tenth step until there are too many."""

    steps, held = 0, []

    def step(self, action):
        self.steps += 1
        if self.steps == 10:
            self.hoard()
        return super().step(action)

    @classmethod
    def hoard(cls):
        while True:
            cls.held.append(os.open(os.devnull, os.O_RDONLY))


def test_too_many_open_files_are_named_with_their_remedy(tmp_path):
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before, 400), hard))
    try:
        with pytest.raises(EnvironmentFailedError, match=r"raise `ulimit -n`.*the last checkpoint is kept"):
            voidrl.train(Hoarder, steps=20, out=tmp_path / "run", config=tiny(log__checkpoint_every_steps=5))
        with pytest.raises(OSError, match="Too many open files"):
            Hoarder.hoard()
        for attempt in (checkpoint.list_steps, lambda root: checkpoint.save(root, 30, {}, {}, keep_last=1)):
            with pytest.raises(CheckpointError, match=r"too many open files; raise `ulimit -n`$"):
                attempt(tmp_path / "run" / "checkpoints")
        with pytest.raises(RunFolderError, match=r"\(too many open files\); raise `ulimit -n`$"):
            locks.acquire(tmp_path / "other" / locks.RUN_LOCK)
    finally:
        while Hoarder.held:
            os.close(Hoarder.held.pop())
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def test_a_disk_without_inodes_is_not_short_of_space(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_files=1000, f_favail=9))
    monkeypatch.setattr(checkpoint, "free_disk", lambda folder: None)
    monkeypatch.setattr(checkpoint, "write_synced", full)
    with pytest.raises(CheckpointError, match=r"no inodes left; delete files there, however small$"):
        checkpoint.save(tmp_path, 1, {}, {}, keep_last=1)
