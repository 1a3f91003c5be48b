"""What is saved comes back: round trips, links, full disks, JSON."""

import errno
import os

import pytest
import torch
from tiny_checkpoints import AGENT, REPLAY, fail, flip, hidden, quick_save, value_of

from voidrl.errors import CheckpointError, ConfigError
from voidrl.runs import checkpoint
from voidrl.runs.checkpoint import (
    Group,
    latest,
    list_steps,
    load,
    read_json,
    save,
    write_json_atomic,
)

TENSORS = {
    "zero_dim": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "uint8": torch.arange(7, dtype=torch.uint8),
    "int64": torch.tensor([2**62 + 1, -1]),
    "bool": torch.tensor([True, False, True]),
    "bf16": torch.randn(3, 5).bfloat16(),
    "half": torch.randn(3).half(),
    "f64": torch.randn(2, 2, dtype=torch.float64),
    "uint16": torch.tensor([65535], dtype=torch.uint16),
    "odd bytes, ünïcode": torch.tensor([1, -2, 3], dtype=torch.int8),
    "not finite": torch.tensor([float("nan"), float("inf")]),
    "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": torch.randn(3, 4).t(),
    "expanded": torch.randn(1).expand(6),
    "parameter": torch.nn.Parameter(torch.randn(4)),
    **dict(zip(("first part", "second part"), torch.arange(10).split(4), strict=False)),  # of one buffer
}


def test_tensors_meta_and_step_round_trip(tmp_path):
    meta = {"seed": 7, "rng": [1, 2**70], "nested": {"a": None, "é": 0.1}}
    path = save(tmp_path / "new" / "root", 12345, {AGENT: Group(TENSORS, "t")}, meta, keep_last=1)
    found = load(path)
    assert (path.name, found.step, found.meta, found.path) == ("step_000000012345", 12345, meta, path)
    assert found.files[AGENT]["tag"] == "t"
    loaded = found.tensors(AGENT)
    assert loaded.keys() == TENSORS.keys()
    for name, t in TENSORS.items():
        assert loaded[name].dtype == t.dtype
        assert loaded[name].data_ptr() % t.element_size() == 0
        torch.testing.assert_close(loaded[name], t.detach(), rtol=0, atol=0, equal_nan=True)


def test_tensors_that_cannot_be_saved_are_named(tmp_path):
    t, bad = torch.randn(10), torch.ones(2, dtype=torch.complex64)
    with pytest.raises(CheckpointError, match="'first' and 'second' share memory"):
        save(tmp_path, 0, {AGENT: Group({"first": t, "second": t[1::2]})}, {}, keep_last=1)
    with pytest.raises(CheckpointError, match=r"agent.safetensors: 'bad' cannot be saved"):
        save(tmp_path, 0, {AGENT: Group({"bad": bad})}, {}, keep_last=1)
    assert list_steps(tmp_path) == []
    assert hidden(tmp_path) == []


def test_meta_is_strict_json_and_refused_before_anything_is_written(tmp_path):
    meta = {"bad": [float("inf")]}
    with pytest.raises(CheckpointError, match="the meta of a checkpoint cannot be written as JSON"):
        save(tmp_path / "root", 0, {AGENT: Group(lambda: fail("called"))}, meta, keep_last=1)
    assert not (tmp_path / "root").exists()


def test_keep_last_keeps_the_newest(tmp_path):
    for step in range(1, 7):
        quick_save(tmp_path, step, keep_last=3)
    assert list_steps(tmp_path) == [4, 5, 6]
    quick_save(tmp_path, 7, keep_last=1)
    assert list_steps(tmp_path) == [7]
    with pytest.raises(ConfigError, match="keep_last = 0"):
        quick_save(tmp_path, 8, keep_last=0)


def test_an_unchanged_file_is_linked_and_outlives_the_older_checkpoint(tmp_path):
    first = quick_save(tmp_path, 1, 5, tag="a")
    inode = (first / REPLAY).stat().st_ino
    files = {AGENT: Group({"n": torch.tensor(1)}), REPLAY: Group(lambda: fail("made again"), "a")}
    second = save(tmp_path, 2, files, {}, keep_last=1)
    assert list_steps(tmp_path) == [2]
    assert (second / REPLAY).stat().st_ino == inode
    assert (load(second).tensors(REPLAY)["frames"] == 5).all()
    third = quick_save(tmp_path, 3, 6, tag="b", keep_last=1)
    assert (third / REPLAY).stat().st_ino != inode
    assert value_of(load(third)) == 6
    again = save(tmp_path, 3, {REPLAY: Group(lambda: fail("made again"), "b")}, {}, keep_last=1)
    assert (load(again).tensors(REPLAY)["frames"] == 6).all()


def test_without_links_the_file_is_copied(tmp_path, monkeypatch):
    def no_links(*args, **kwargs):
        raise OSError(errno.EPERM, "Operation not permitted")

    first = quick_save(tmp_path, 1, 5, tag="a")
    monkeypatch.setattr(os, "link", no_links)
    second = save(tmp_path, 2, {REPLAY: Group(lambda: fail("made again"), "a")}, {}, keep_last=9)
    assert (second / REPLAY).stat().st_ino != (first / REPLAY).stat().st_ino
    assert (load(second).tensors(REPLAY)["frames"] == 5).all()


def test_a_step_saved_again_replaces_the_first(tmp_path):
    quick_save(tmp_path, 1, 5)
    path = quick_save(tmp_path, 1, 6)
    assert path.name == "step_000000000001"
    assert value_of(load(path)) == 6
    flip(path / AGENT)
    assert value_of(load(quick_save(tmp_path, 1, 7))) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000000001"]


@pytest.mark.parametrize("call", [0, 3])
def test_a_full_disk_leaves_the_earlier_checkpoints(tmp_path, monkeypatch, call):
    """The disk is full at the sync of the first file, or of the folder."""
    quick_save(tmp_path, 1)
    calls = []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) == call + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(
        CheckpointError,
        match=r"cannot save step 2 in .*No space left.* whole checkpoint needs \S+ kB and .*B were free",
    ):
        quick_save(tmp_path, 2)
    assert list_steps(tmp_path) == [1]
    assert hidden(tmp_path) == []
    assert value_of(latest(tmp_path, fail)) == 1


def test_a_checkpoint_larger_than_the_disk_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    linked = {REPLAY: Group({"frames": torch.zeros(10**6)}, "same")}
    save(tmp_path, 1, linked, {}, keep_last=1)
    files = {AGENT: Group({"a": torch.zeros(10**5)}), "b": Group(lambda: {"b": torch.zeros(10**5)}), **linked}
    needed = 2 * 4 * 10**5  # a file that is linked needs nothing
    monkeypatch.setattr(checkpoint, "free_disk", lambda folder: needed - 1)
    monkeypatch.setattr(checkpoint, "write_synced", lambda *args: fail("written"))
    with pytest.raises(
        CheckpointError, match=r"needs 82\d kB and 800 kB were free: free at least 2\d\.\d kB"
    ):
        save(tmp_path, 2, files, {}, keep_last=1)
    assert list_steps(tmp_path) == [1]
    monkeypatch.undo()
    monkeypatch.setattr(checkpoint, "free_disk", lambda folder: needed + 10**5)
    save(tmp_path, 2, files, {}, keep_last=1)


def test_a_checkpoint_deleted_while_it_is_read_is_replaced_by_the_newest(tmp_path):
    """As a run does that trains while another process reads its checkpoints."""
    quick_save(tmp_path, 1)
    read = []

    def rotate_and_read(found):
        read.append(found.step)
        if len(read) < 3:
            quick_save(tmp_path, found.step + 1, keep_last=1)
        return value_of(found)

    assert latest(tmp_path, fail, read=rotate_and_read) == 3
    assert read == [1, 2, 3]
    with pytest.raises(CheckpointError, match="found none at all"):
        latest(tmp_path, fail, read=lambda found: (checkpoint.discard(tmp_path, 3), found.tensors(AGENT)))


def test_a_whole_checkpoint_that_does_not_fit_is_not_passed_over(tmp_path):
    quick_save(tmp_path, 1)
    quick_save(tmp_path, 2)
    with pytest.raises(CheckpointError, match="has no 'critic"):
        latest(tmp_path, fail, read=lambda found: found.tensors("critic"))


def test_json_round_trips_and_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "config.json"
    write_json_atomic(path, {"a": 1})
    write_json_atomic(path, {"a": 2})
    assert read_json(path, "the config") == {"a": 2}
    with pytest.raises(CheckpointError, match=r"config.json cannot be written as JSON"):
        write_json_atomic(path, {"a": float("nan")})
    assert read_json(path, "the config") == {"a": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]
    with pytest.raises(
        CheckpointError, match=r"cannot write .*absent/config.json: No such file or directory"
    ):
        write_json_atomic(tmp_path / "absent" / "config.json", {})


@pytest.mark.parametrize("text", ["{", '{"a": NaN}', "\xff"])
def test_damaged_json_is_one_sentence(tmp_path, text):
    path = tmp_path / "config.json"
    with pytest.raises(CheckpointError, match=r"the config is missing: there is no .*config.json"):
        read_json(path, "the config")
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"the config .*config.json is damaged") as caught:
        read_json(path, "the config")
    assert "\n" not in str(caught.value)
