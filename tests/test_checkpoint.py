"""A checkpoint is whole or does not count: round trips, kills, damage, links and full disks."""

import errno
import json
import os
import platform
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from voidrl import checkpoint
from voidrl.checkpoint import Group, latest, list_steps, load, read_json, save, write_json_atomic
from voidrl.errors import CheckpointError, ConfigError

AGENT, REPLAY = "agent.safetensors", "replay-000.safetensors"


def quick_save(root, step, value=None, tag=None, keep_last=100, **meta):
    """A checkpoint whose every part says `value`, so that a mixture of two would show."""
    value = step if value is None else value
    files = {
        AGENT: Group({"w": torch.full((5, 3), float(value)), "n": torch.tensor(value)}),
        REPLAY: Group(lambda: {"frames": torch.full((1000,), value % 256, dtype=torch.uint8)}, tag),
    }
    return save(root, step, files, {"value": value, **meta}, keep_last=keep_last)


def value_of(found):
    """What the checkpoint says, in all its parts alike."""
    value = found.meta["value"]
    agent, replay = found.tensors(AGENT), found.tensors(REPLAY)
    assert agent["n"].item() == value
    assert (agent["w"] == value).all()
    assert (replay["frames"] == value % 256).all()
    return value


def hidden(root):
    return sorted(path.name for path in root.iterdir() if path.name.startswith("."))


def fail(message):
    raise AssertionError(f"unexpected warning: {message}")


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


def test_tensors_larger_than_a_block_round_trip(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "BLOCK_BYTES", 64)
    big = torch.randn(1001)
    found = load(save(tmp_path, 0, {AGENT: Group({"big": big})}, {}, keep_last=1))
    assert torch.equal(found.tensors(AGENT)["big"], big)


def test_what_was_loaded_can_be_changed_and_saved_again_without_touching_the_file(tmp_path):
    found = load(save(tmp_path, 1, {AGENT: Group({"a": torch.ones(9), "b": torch.ones(9)})}, {}, keep_last=2))
    tensors = found.tensors(AGENT)
    tensors["a"].zero_()
    again = load(save(tmp_path, 2, {AGENT: Group(tensors)}, {}, keep_last=2))
    assert again.tensors(AGENT)["a"].sum() == 0
    assert load(found.path).tensors(AGENT)["a"].sum() == 9


@pytest.mark.parametrize(
    "view", [lambda t: t, lambda t: t[3:], lambda t: t.view(2, 5).t(), lambda t: t[1::2]]
)
def test_shared_memory_is_refused_by_both_names(tmp_path, view):
    t = torch.randn(10)
    with pytest.raises(
        CheckpointError, match=r"'first' and 'second' share memory|'second' and 'first' share"
    ):
        save(
            tmp_path, 0, {AGENT: Group({"first": t, "second": view(t), "c": torch.ones(1)})}, {}, keep_last=1
        )
    assert list_steps(tmp_path) == []
    assert hidden(tmp_path) == []


def test_disjoint_views_of_one_buffer_are_saved(tmp_path):
    t = torch.arange(10)
    found = load(save(tmp_path, 0, {AGENT: Group({"a": t[:4], "b": t[4:], "e": t[:0]})}, {}, keep_last=1))
    assert found.tensors(AGENT)["b"].tolist() == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "bad", [torch.ones(2, dtype=torch.complex64), torch.eye(2).to_sparse(), torch.ones(1, device="meta")]
)
def test_a_tensor_that_cannot_be_saved_is_named(tmp_path, bad):
    with pytest.raises(CheckpointError, match=r"agent.safetensors: 'bad' cannot be saved"):
        save(tmp_path, 0, {AGENT: Group({"bad": bad})}, {}, keep_last=1)


@pytest.mark.parametrize("bad", [float("nan"), {"a": [float("inf")]}, torch.ones(1), Path("x")])
def test_meta_is_strict_json_and_refused_before_anything_is_written(tmp_path, bad):
    with pytest.raises(CheckpointError, match="the meta of a checkpoint cannot be written as JSON"):
        save(tmp_path / "root", 0, {AGENT: Group(lambda: fail("called"))}, {"bad": bad}, keep_last=1)
    assert not (tmp_path / "root").exists()


def test_meta_is_stored_as_json_understands_it(tmp_path):
    path = save(
        tmp_path, 0, {}, {"ints": {2: "b", 10: "a"}, "twice": {1: 0, "1": 9}, "t": (1, 2)}, keep_last=1
    )
    assert load(path).meta == {"ints": {"2": "b", "10": "a"}, "twice": {"1": 9}, "t": [1, 2]}


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
    checkpoint._hashed.clear()  # else the number of calls depends on inodes that were used before
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


@pytest.mark.parametrize(("step", "keep_last"), [(30, 1), (30, 2), (20, 2)])
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


def test_kills_of_one_step_saved_again_and_again_leave_a_valid_one(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    quick_save(tmp_path, 5, 0)
    last = 0
    for i, call in enumerate(range(2, 80, 2), start=1):
        killed(call, lambda i=i: quick_save(tmp_path, 5, i))
        found = value_of(latest(tmp_path, fail))
        assert found in (last, i)
        last = found
    assert last == i
    assert quick_save(tmp_path, 5, 200).name == "step_000000000005"
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000000005"]


def flip(path, position=None):
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position is None else position] ^= 1
    path.write_bytes(data)


def truncate(path):
    os.truncate(path, path.stat().st_size - 7)


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("name", [AGENT, REPLAY, "manifest.json"])
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (flip, "is damaged"),
        (truncate, "truncated: .* expected, .* found"),
        (Path.unlink, "missing"),
        (lengthen, "too long"),
    ],
)
def test_damage_is_named_and_an_older_checkpoint_used(tmp_path, name, damage, says):
    quick_save(tmp_path, 10, padding=list(range(50)))
    path = quick_save(tmp_path, 20, padding=list(range(50)))
    damage(path / name)
    warnings = []
    assert value_of(latest(tmp_path, warnings.append)) == 10
    assert len(warnings) == 1
    assert path.name in warnings[0]
    assert name in warnings[0]
    assert "\n" not in warnings[0]
    with pytest.raises(
        CheckpointError, match="damaged" if name == "manifest.json" and damage != Path.unlink else says
    ):
        load(path)


def test_a_byte_that_rots_without_a_trace_is_noticed(tmp_path):
    path = quick_save(tmp_path, 1) / REPLAY
    stat = path.stat()
    flip(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(CheckpointError, match=r"replay-000.safetensors is damaged: its sha256"):
        load(path.parent)


def test_every_flipped_byte_of_the_manifest_is_noticed(tmp_path):
    path = quick_save(tmp_path, 3, note="hello") / "manifest.json"
    whole = path.read_bytes()
    for position in range(len(whole)):
        flip(path, position)
        try:
            found = load(path.parent)
            assert json.loads(path.read_bytes()) == json.loads(whole)  # only white space may differ
            assert value_of(found) == 3
        except CheckpointError:
            pass
        path.write_bytes(whole)
    assert value_of(load(path.parent)) == 3


def test_a_newer_format_is_skipped_and_asks_for_an_upgrade(tmp_path):
    quick_save(tmp_path, 1)
    newer = quick_save(tmp_path, 2) / "manifest.json"
    newer.write_text(json.dumps({"format": 2, "anything": "else"}))
    warnings = []
    assert latest(tmp_path, warnings.append).step == 1
    assert "format 2, newer than 1: upgrade voidrl" in warnings[0]


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"format": "x"}', '{"format": NaN}', "\xff", ""])
def test_a_manifest_of_another_kind_is_damaged(tmp_path, text):
    path = quick_save(tmp_path, 1)
    (path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"manifest.json is damaged"):
        load(path)


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


def test_an_unknown_file_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no 'critic.safetensors', only .*agent"):
        load(quick_save(tmp_path, 1)).tensors("critic.safetensors")


def test_keep_last_keeps_the_newest(tmp_path):
    for step in range(1, 7):
        quick_save(tmp_path, step, keep_last=3)
    assert list_steps(tmp_path) == [4, 5, 6]
    quick_save(tmp_path, 7, keep_last=1)
    assert list_steps(tmp_path) == [7]
    with pytest.raises(ConfigError, match="keep_last is 0"):
        quick_save(tmp_path, 8, keep_last=0)


def test_keep_last_counts_valid_ones_and_never_deletes_newer_ones(tmp_path):
    for step in (10, 20, 30, 40):
        quick_save(tmp_path, step)
    flip(tmp_path / "step_000000000030" / AGENT)
    flip(tmp_path / "step_000000000040" / AGENT)
    quick_save(tmp_path, 35, keep_last=2)  # resumed from 20, since 30 and 40 are damaged
    assert list_steps(tmp_path) == [20, 30, 35, 40]
    assert latest(tmp_path, lambda message: None).step == 35
    quick_save(tmp_path, 40, keep_last=2)
    assert list_steps(tmp_path) == [35, 40]
    assert latest(tmp_path, fail).step == 40


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


def test_no_tag_is_no_promise(tmp_path):
    quick_save(tmp_path, 1, 5)
    assert value_of(load(quick_save(tmp_path, 2, 6))) == 6


def test_without_links_the_file_is_copied(tmp_path, monkeypatch):
    def no_links(*args, **kwargs):
        raise OSError(errno.EPERM, "Operation not permitted")

    first = quick_save(tmp_path, 1, 5, tag="a")
    monkeypatch.setattr(os, "link", no_links)
    second = save(tmp_path, 2, {REPLAY: Group(lambda: fail("made again"), "a")}, {}, keep_last=9)
    assert (second / REPLAY).stat().st_ino != (first / REPLAY).stat().st_ino
    assert (load(second).tensors(REPLAY)["frames"] == 5).all()


@pytest.mark.parametrize("forget", [False, True])
def test_a_damaged_file_is_never_linked(tmp_path, monkeypatch, forget):
    path = quick_save(tmp_path, 1, 5, tag="a")
    time.sleep(0.02)  # more than the clock tick of a file system
    flip(path / REPLAY)
    if forget:
        monkeypatch.setattr(checkpoint, "_hashed", {})
    assert value_of(load(quick_save(tmp_path, 2, 5, tag="a"))) == 5


def test_a_save_reads_again_only_what_it_does_not_know(tmp_path, monkeypatch):
    quick_save(tmp_path, 1, 5, tag="a")
    monkeypatch.setattr("hashlib.file_digest", lambda *args: fail("read again"))
    quick_save(tmp_path, 2, 5, tag="a", keep_last=2)
    quick_save(tmp_path, 3, 5, tag="a", keep_last=2)


def test_a_step_saved_again_replaces_the_first(tmp_path):
    quick_save(tmp_path, 1, 5)
    path = quick_save(tmp_path, 1, 6)
    assert path.name == "step_000000000001"
    assert value_of(load(path)) == 6
    flip(path / AGENT)
    assert value_of(load(quick_save(tmp_path, 1, 7))) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000000001"]


@pytest.mark.parametrize("call", range(4))
def test_a_full_disk_leaves_the_earlier_checkpoints(tmp_path, monkeypatch, call):
    """The disk is full at the sync of one of the two files, of the manifest or of the folder."""
    quick_save(tmp_path, 1)
    calls = []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) == call + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(
        CheckpointError, match=r"cannot save step 2 in .*No space left.* at least \d\d+ bytes"
    ):
        quick_save(tmp_path, 2)
    assert list_steps(tmp_path) == [1]
    assert hidden(tmp_path) == []
    assert value_of(latest(tmp_path, fail)) == 1


def test_a_write_that_hits_a_limit_midway_names_the_bytes_and_the_folder(tmp_path):
    quick_save(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(CheckpointError, match=r"at least 4000\d\d bytes") as caught:
            save(tmp_path, 2, {AGENT: Group({"w": torch.zeros(100_000)})}, {}, keep_last=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path) in str(caught.value)
    assert hidden(tmp_path) == []
    assert value_of(latest(tmp_path, fail)) == 1


def test_a_failing_group_leaves_nothing_behind(tmp_path):
    def broken():
        raise RuntimeError("CUDA out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        save(tmp_path, 1, {AGENT: Group({"n": torch.ones(1)}), REPLAY: Group(broken)}, {}, keep_last=1)
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot save step 1 in .*file: File exists; choose a folder"):
        quick_save(tmp_path / "file", 1)

    def read_only(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", read_only)
    with pytest.raises(
        CheckpointError, match=r"cannot save step 1 in .*: Read-only file system; choose a folder"
    ):
        quick_save(tmp_path / "elsewhere", 1)


def test_leftovers_of_the_dead_are_cleared_and_those_of_the_living_are_not(tmp_path):
    dead = os.fork()
    if dead == 0:
        os._exit(0)
    os.waitpid(dead, 0)
    host, old = platform.node(), time.time() - 7200
    names = {f".tmp-{dead}-{host}": 0, f".tmp-{os.getpid()}-{host}": 0, ".trash-step_000000000001": 0,
             f".tmp-{os.getppid()}-{host}": 1, ".tmp-1-elsewhere": 1, ".tmp-2-elsewhere": 0}  # fmt: skip
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / AGENT).touch()
    os.utime(tmp_path / ".tmp-2-elsewhere", (old, old))
    quick_save(tmp_path, 1)
    assert hidden(tmp_path) == sorted(name for name, lives in names.items() if lives)
    assert list_steps(tmp_path) == [1]


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


def test_json_that_cannot_be_replaced_leaves_no_temporary_file(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"cannot write .*config.json: Is a directory"):
        write_json_atomic(tmp_path / "config.json", {})
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("text", ["", "{", '{"a": NaN}', '{"a": -Infinity}', "\xff"])
def test_damaged_json_is_one_sentence(tmp_path, text):
    path = tmp_path / "config.json"
    with pytest.raises(CheckpointError, match=r"the config is missing: there is no .*config.json"):
        read_json(path, "the config")
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"the config .*config.json is damaged") as caught:
        read_json(path, "the config")
    assert "\n" not in str(caught.value)
