"""Kills and damage: a checkpoint is whole or does not count."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from tiny_checkpoints import AGENT, REPLAY, fail, flip, hidden, quick_save, truncate, value_of

from voidrl.errors import CheckpointError
from voidrl.runs import checkpoint
from voidrl.runs.checkpoint import latest, list_steps, load


def die_at(call):
    """In a child: SIGKILL at the given call that touches the file system, counted from 0."""
    calls = [0]

    def count():
        if calls[0] == call:
            os.kill(os.getpid(), signal.SIGKILL)
        calls[0] += 1

    def on_event(event, args):
        if event in ("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir"):
            count()

    os.fsync = lambda descriptor: count()  # what survives a kill does not depend on the disk
    sys.addaudithook(on_event)


def killed(call, action):
    """Whether a child process that did `action` was killed at this call, or had ended before it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            die_at(call)
            action()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize(
    ("step", "keep_last"), [(30, 1), pytest.param(30, 2, marks=pytest.mark.slow), (20, 2)]
)
def test_a_kill_at_any_call_leaves_a_valid_checkpoint(tmp_path, monkeypatch, step, keep_last):
    """Step 20 exists already, so saving it replaces it; older ones are deleted as keep_last says."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    start = tmp_path / "start"
    quick_save(start, 10, tag="same", value=10)
    quick_save(start, 20, tag="other", value=20)
    seen = []
    for call in range(1000):
        root = tmp_path / "root"
        shutil.copytree(start, root)
        died = killed(call, lambda root=root: quick_save(root, step, 99, tag="new", keep_last=keep_last))
        seen.append(value_of(latest(root, fail)))
        for path in root.glob("step_*"):  # nothing half-deleted goes by the name of a checkpoint
            value_of(load(path))
        # The next save clears away what the dead one left, and keeps what it should.
        quick_save(root, 40, tag="after", keep_last=keep_last)
        assert value_of(latest(root, fail)) == 40
        assert hidden(root) == []
        assert len(list_steps(root)) == keep_last
        shutil.rmtree(root)
        if not died:
            break
    assert not died
    assert seen == sorted(seen)  # the old one up to some call, the new one from there on
    assert {seen[0], seen[-1]} == {20, 99}
    assert len(seen) > 15


DAMAGE = [
    (AGENT, flip, "damaged: its sha256"),
    (REPLAY, truncate, "truncated: .* expected, .* found"),
    (REPLAY, Path.unlink, "missing"),
    (AGENT, lambda path: path.write_bytes(path.read_bytes() + b"\0"), "too long"),
    ("manifest.json", flip, "damaged"),
    ("manifest.json", truncate, "damaged"),
    ("manifest.json", Path.unlink, "missing"),
]


@pytest.mark.parametrize(("name", "damage", "says"), DAMAGE)
def test_damage_is_named_and_an_older_checkpoint_used(tmp_path, name, damage, says):
    quick_save(tmp_path, 10, padding=list(range(50)))
    path = quick_save(tmp_path, 20, padding=list(range(50)))
    damage(path / name)
    warnings = []
    assert value_of(latest(tmp_path, warnings.append)) == 10
    (warning,) = warnings
    assert path.name in warning
    assert name in warning
    assert "\n" not in warning
    with pytest.raises(CheckpointError, match=says):
        load(path)


def test_a_newer_format_is_skipped_and_asks_for_an_upgrade(tmp_path):
    quick_save(tmp_path, 1)
    newer = quick_save(tmp_path, 2) / "manifest.json"
    newer.write_text(json.dumps({"format": checkpoint.FORMAT + 1, "voidrl": "9.1", "anything": "else"}))
    warnings = []
    assert latest(tmp_path, warnings.append).step == 1
    assert f"was written by voidrl 9.1 in format {checkpoint.FORMAT + 1}" in warnings[0]
    assert warnings[0].endswith("upgrade voidrl")


def test_a_sealed_manifest_that_names_a_file_elsewhere_is_one_sentence(tmp_path):
    path = quick_save(tmp_path, 1) / "manifest.json"
    fields = json.loads(path.read_text())
    del fields["sha256"]
    fields["files"]["../other"] = fields["files"][AGENT]
    path.write_text(json.dumps({**fields, "sha256": checkpoint.seal(fields)}))
    with pytest.raises(CheckpointError, match="expected one next to it"):
        load(path.parent)


def test_none_valid_lists_what_was_found(tmp_path):
    with pytest.raises(CheckpointError, match=r"no valid checkpoint in .*absent; found none at all"):
        latest(tmp_path / "absent", fail)
    truncate(quick_save(tmp_path, 1) / AGENT)
    (quick_save(tmp_path, 2) / REPLAY).unlink()
    (tmp_path / "step_000000000003").mkdir()
    with pytest.raises(
        CheckpointError, match=r"000003 .*missing.*, step_0+2 .*missing.*, step_0+1 .*truncated"
    ):
        latest(tmp_path, lambda message: None)
    assert list_steps(tmp_path) == [1, 2, 3]


def test_a_link_to_nothing_hides_no_valid_checkpoint(tmp_path):
    quick_save(tmp_path, 1)
    (tmp_path / "step_000000000002").symlink_to(tmp_path / "gone")
    warnings = []
    assert latest(tmp_path, warnings.append).step == 1
    assert "skipped step_000000000002" in warnings[0]


@pytest.mark.parametrize("place", ["step_000000000002", "step_000000000002.0"])
@pytest.mark.parametrize("kind", ["link to nothing", "link", "file"])
def test_what_stands_in_the_place_of_a_checkpoint_is_replaced(tmp_path, place, kind):
    quick_save(root := tmp_path / "root", 1)
    (elsewhere := tmp_path / "mine").mkdir()
    (elsewhere / "file").write_text("mine")
    if kind == "file":
        (root / place).write_text("")
    else:
        (root / place).symlink_to(elsewhere if kind == "link" else "gone")
    quick_save(root, 2, 5)
    assert value_of(load(quick_save(root, 2, 6))) == 6
    assert sorted(path.name for path in root.iterdir()) == ["step_000000000001", "step_000000000002"]
    assert (elsewhere / "file").read_text() == "mine"


def test_a_damaged_file_is_never_linked(tmp_path):
    """A run that goes on from an older checkpoint replaces the damaged one, and links nothing of it."""
    quick_save(tmp_path, 10, 5, tag="a")
    newest = quick_save(tmp_path, 20, 5, tag="b")
    flip(newest / REPLAY)
    assert latest(tmp_path, lambda message: None).step == 10
    assert value_of(load(quick_save(tmp_path, 20, 5, tag="b"))) == 5
    assert latest(tmp_path, fail).step == 20
