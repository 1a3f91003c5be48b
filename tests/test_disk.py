"""The disk space of checkpoints is known before a run begins, and compared with what is free."""

import pytest
from tiny_runs import MAZE, Walk, tiny

import voidrl
from voidrl.errors import RunFolderError
from voidrl.runs import checkpoint
from voidrl.training import disk


def long_walk():
    return Walk(length=500)


RUN = {
    "warmup_steps": 10_000,
    "learner__hidden_dim": 8,
    "log__checkpoint_every_steps": 300,
    "finetune__warmup_steps": 10_000,
}


@pytest.mark.parametrize(
    ("env", "chunk_bytes", "tolerance", "capacity"),
    [(MAZE.replace("steps=9", "steps=300"), 400_000, 0.05, 800), (long_walk, 12_000, 0.1, 3000)],
    ids=["pixels, full", "vectors, half full"],
)
def test_the_estimate_is_what_a_run_writes(tmp_path, monkeypatch, env, chunk_bytes, tolerance, capacity):
    """The replay has several chunks, some of which consecutive checkpoints share."""
    monkeypatch.setattr("voidrl.replay.sizes.CHUNK_BYTES", chunk_bytes)
    changes = tiny(**RUN, replay__capacity_steps=capacity, log__keep_last=3, env__num_envs=2)
    agent = voidrl.train(env, steps=1500, out=tmp_path / "run", config=changes)
    written = checkpoint.bytes_on_disk(tmp_path / "run" / "checkpoints")
    size = disk.saved_bytes(agent.tensors().values(), [])  # without updates, Adam has no moments yet
    needed = disk.checkpoint_bytes(agent.config, agent.spec, 0, size, count=3)
    assert needed == pytest.approx(written, rel=tolerance)


@pytest.mark.parametrize("keep_last", [1, 2])
def test_the_estimate_follows_what_a_complete_run_keeps_of_its_replay(tmp_path, keep_last):
    kept = {"log__keep_replay": False, "log__keep_last": keep_last, "replay__capacity_steps": 3000}
    agent = voidrl.train(long_walk, steps=1000, out=tmp_path / "run", config=tiny(**RUN, **kept))
    written = checkpoint.bytes_on_disk(tmp_path / "run" / "checkpoints")
    size = disk.saved_bytes(agent.tensors().values(), [])
    needed = disk.checkpoint_bytes(agent.config, agent.spec, 0, size, count=keep_last)
    assert needed == pytest.approx(written, rel=0.1, abs=disk.OVERHEAD_BYTES)
    assert (needed > 40_000) == (keep_last == 2)  # 900 steps of 8 + 8 + 25 bytes in the one before


def test_before_its_end_a_run_needs_room_for_a_replay_that_it_will_not_keep(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "free_disk", lambda folder: 60_000)
    changes = tiny(**RUN, log__keep_replay=False, log__keep_last=1, replay__capacity_steps=3000)
    with pytest.raises(RunFolderError, match="60 kB free, and by its end"):
        voidrl.train(long_walk, steps=2000, out=tmp_path / "run", config=changes)
    voidrl.train(long_walk, steps=200, out=tmp_path / "run", config=changes)


def test_the_moments_of_adam_are_counted(tmp_path):
    agent = voidrl.train(Walk, steps=20, out=tmp_path / "run", config=tiny(learner__hidden_dim=512))
    size = disk.saved_bytes(agent.tensors().values(), agent.optimizers.all_parameters())
    files = checkpoint.latest(tmp_path / "run" / "checkpoints", pytest.fail).files
    assert size == pytest.approx(
        sum(files[name]["bytes"] for name in ("agent.safetensors", "optimizers.safetensors")), rel=0.05
    )


def test_a_run_whose_checkpoints_cannot_fit_is_refused_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "free_disk", lambda folder: 20_000)
    with pytest.raises(RunFolderError, match=r"has 20 kB free, and by its end .*another out, or lower"):
        voidrl.train(Walk, steps=20, out=tmp_path / "run", config=tiny())
    assert not (tmp_path / "run").exists()


def test_a_disk_that_may_become_full_is_a_warning_and_a_resumed_run_counts_what_it_has(
    tmp_path, monkeypatch, capsys
):
    voidrl.train(Walk, steps=20, out=tmp_path / "run", config=tiny(log__keep_last=9))
    one = checkpoint.bytes_on_disk(tmp_path / "run" / "checkpoints")
    monkeypatch.setattr(disk, "free_disk", lambda folder: 2 * one)
    capsys.readouterr()
    voidrl.resume(tmp_path / "run", steps=40)
    assert "may become full" not in capsys.readouterr().err
    voidrl.resume(tmp_path / "run", steps=100)
    assert "may become full" in capsys.readouterr().err
    assert "may become full" in (tmp_path / "run" / "log.txt").read_text()
