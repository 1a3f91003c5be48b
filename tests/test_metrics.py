"""Rows keep their meaning on the way out, and a resumed run leaves the file as if it had never stopped."""

import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from voidrl.engine.accumulator import Accumulator
from voidrl.errors import ConfigError, RunFolderError
from voidrl.runs.metrics import read_metrics
from voidrl.training.metrics import MetricsWriter
from voidrl.types import NonFinite


def scalars(**values):
    return {key: torch.tensor(value) for key, value in values.items()}


def test_flush_gives_the_mean_of_the_adds_that_had_the_key_and_clears():
    accumulator = Accumulator()
    accumulator.add(scalars(loss=1.0, reward=10.0))
    accumulator.add(scalars(loss=2.0, reward=20.0))
    accumulator.add(scalars(loss=6.0))  # a metric that is only sometimes there
    accumulator.add(scalars(reward=60.0, loss=3.0))  # in another order
    accumulator.add({})
    assert accumulator.flush() == {"loss": 3.0, "reward": 30.0}
    assert accumulator.flush() == {}


def test_mean_is_exact_over_many_float32_adds_and_mixes_types():
    accumulator = Accumulator()
    for _ in range(1000):
        accumulator.add({"reward": torch.tensor(0.1), "done": torch.tensor(True), "count": torch.tensor(3)})
    means = accumulator.flush()
    assert means == {"reward": pytest.approx(0.1, rel=1e-7), "done": 1.0, "count": 3.0}


def test_add_copies_the_value_and_drops_the_graph():
    accumulator = Accumulator()
    static = torch.tensor(1.0, requires_grad=True)
    accumulator.add({"loss": static * 2})
    accumulator.add({"loss": static})
    with torch.no_grad():
        static.fill_(100.0)  # as a replayed CUDA graph overwrites its outputs
    assert accumulator.flush() == {"loss": 1.5}


def test_add_never_reads_and_flush_reads_once(monkeypatch):
    Accumulator().add({"loss": torch.empty((), device="meta")})  # a meta tensor has no value to read
    accumulator = Accumulator()
    accumulator.add(scalars(a=1.0, b=2.0))
    accumulator.add(scalars(c=3.0))
    reads = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: reads.append(self.shape) or tolist(self))
    monkeypatch.setattr(torch.Tensor, "item", lambda self: pytest.fail("a second host read"))
    assert accumulator.flush() == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert reads == [(2, 3)]  # three sums, and how many adds of each key were finite


def test_the_first_add_that_was_not_finite_is_known_although_all_later_ones_are_broken():
    accumulator = Accumulator()
    for i in range(6):
        reward = math.nan if i == 2 else 1.0  # once
        loss = 1.0 if i < 3 else math.inf  # from then on
        accumulator.add(scalars(fine=1.0, reward=reward, loss=loss), variant=0)
        accumulator.add(scalars(loss=loss), variant=1)
    means = accumulator.flush()
    assert means["fine"] == 1.0
    assert math.isnan(means["reward"])
    assert means["loss"] == math.inf
    assert sorted(accumulator.non_finite) == [
        NonFinite(variant=0, key="loss", finite_adds=3, order=2),
        NonFinite(variant=0, key="reward", finite_adds=2, order=1),
        NonFinite(variant=1, key="loss", finite_adds=3, order=0),
    ]
    accumulator.add(scalars(fine=2.0, reward=1.0, loss=1.0))  # starts over
    assert accumulator.flush() == {"fine": 2.0, "reward": 1.0, "loss": 1.0}
    assert accumulator.non_finite == []


def test_a_metric_that_is_no_scalar_is_named():
    with pytest.raises(ConfigError, match=r"'distance' has shape \(4,\).*\.mean\(\)"):
        Accumulator().add({"loss": torch.tensor(0.0), "distance": torch.zeros(4)})


def test_rows_are_strict_json_with_step_first_and_keys_sorted(tmp_path):
    with MetricsWriter(tmp_path, tensorboard=False) as writer:
        row = {"reward": np.float32(0.5), "phase": "pretrain", "loss": np.float32(math.nan), "n": np.int64(3)}
        writer.write(1000, row)
        line = (tmp_path / "metrics.jsonl").read_text()  # before close: each row is flushed
    assert line == '{"step": 1000, "loss": null, "n": 3, "phase": "pretrain", "reward": 0.5}\n'


def write_rows(folder, steps, **kwargs):
    with MetricsWriter(folder, **kwargs) as writer:
        for step in steps:
            writer.write(step, {"reward": step / 10, "phase": "pretrain"})
        return writer.offset


def test_resume_repeats_the_rows_after_the_checkpoint_and_nothing_else(tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    write_rows(whole, range(5), tensorboard=False)
    offset = write_rows(resumed, range(2), tensorboard=False)
    write_rows(resumed, [2, 3], tensorboard=False)
    with (resumed / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew')  # killed in the middle of a row
    write_rows(resumed, range(2, 5), tensorboard=False, resume_bytes=offset, step=1)
    assert (resumed / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("offset", "message"), [(999, "holds 12 bytes .* byte 999"), (5, "was changed after")]
)
def test_a_file_that_does_not_fit_the_checkpoint_is_refused_untouched(tmp_path, offset, message):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    with pytest.raises(RunFolderError, match=message):
        MetricsWriter(tmp_path, tensorboard=False, resume_bytes=offset)
    assert path.read_text() == '{"step": 1}\n'


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsWriter(tmp_path) as writer:
        for step in (10, 20):
            writer.write(step, {"reward": float(step), "phase": "pretrain"})
        offset = writer.offset
        writer.write(30, {"reward": -1.0})
    with MetricsWriter(tmp_path, resume_bytes=offset, step=20) as writer:
        for step in (30, 40):
            writer.write(step, {"reward": float(step)})
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert events.Tags()["scalars"] == ["reward"]  # words are no curves
    assert [(e.step, e.value) for e in events.Scalars("reward")] == [(10, 10), (20, 20), (30, 30), (40, 40)]


class FakeWandb:
    """What we use of the real package: `init`, and `log`, `finish`, `id` of what it returns."""

    def __init__(self, *, init=None, log=None, finish=None):
        self.started, self.logged, self.finished, self.fails = [], [], [], (init, log, finish)
        self.id = "abc"

    def _may_fail(self, call):
        if self.fails[call] is not None:
            raise self.fails[call]

    def init(self, **given):
        assert given.keys() == {"project", "name", "dir", "id", "resume"}
        self.started.append(given)
        self.was_tty = sys.stdin.isatty()
        self._may_fail(0)
        return self

    def log(self, data, step):
        self._may_fail(1)
        self.logged.append((step, data))

    def finish(self):
        self._may_fail(2)
        self.finished.append(True)


@pytest.fixture
def wandb(monkeypatch):
    def use(**fails):
        fake = FakeWandb(**fails)
        monkeypatch.setitem(sys.modules, "wandb", fake)
        return fake

    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "600")  # the user's own value wins
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "1")
    return use


def test_wandb_gets_the_numbers_and_a_resumed_run_its_own_id(tmp_path, wandb, monkeypatch):
    fake = wandb()
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    folder = tmp_path / "PixelMaze_apt_s1"
    how = {"tensorboard": False, "wandb_project": "void", "say": pytest.fail}
    offset = write_rows(folder, [10], **how)
    write_rows(folder, [20], resume_bytes=offset, step=10, **how)
    assert fake.logged == [(10, {"reward": 1.0}), (20, {"reward": 2.0})]
    assert [kwargs["id"] for kwargs in fake.started] == [None, "abc"]
    assert fake.started[0]["project"] == "void"
    assert fake.started[0]["name"] == "PixelMaze_apt_s1"
    assert len(fake.finished) == 2
    assert not fake.was_tty, "without a key, W&B would wait for someone to type it"
    assert sys.stdin is terminal
    assert os.environ["WANDB_INIT_TIMEOUT"] == "600"


@pytest.mark.parametrize("call", ["init", "log", "finish"])
def test_wandb_that_fails_is_one_warning_and_the_run_continues(tmp_path, wandb, call):
    wandb(**{call: ConnectionError("no route\nto host")})
    said = []
    how = {"tensorboard": False, "wandb_project": "void", "say": said.append}
    offset = write_rows(tmp_path, range(5), **how)
    assert said == ["Weights & Biases is turned off (no route to host); metrics.jsonl has everything"]
    write_rows(tmp_path, [5], resume_bytes=offset, step=4, **how)
    assert len(said) == 2
    assert [row["step"] for row in read_metrics(tmp_path)] == [*range(6)]


@pytest.mark.parametrize("obstacle", ["a file", "full later", "no package"])
def test_tensorboard_that_fails_is_one_warning_and_the_run_continues(tmp_path, monkeypatch, capfd, obstacle):
    if obstacle == "a file":
        (tmp_path / "tb").write_text("")
    elif obstacle == "no package":
        monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    said = []
    with MetricsWriter(tmp_path, say=said.append) as writer:
        writer.write(1, {"reward": 1.0})
        if obstacle == "full later":
            with Path("/dev/full").open("wb", buffering=0) as full:
                os.dup2(full.fileno(), writer._loggers["TensorBoard"]._file.fileno())
        writer.write(2, {"reward": 2.0})
        writer.write(3, {"reward": 3.0})
    assert len(said) == 1
    assert said[0].startswith("TensorBoard is turned off (")
    assert capfd.readouterr().err == ""
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("obstacle", ["folder", "device", "under a file"])
def test_metrics_that_cannot_be_written_are_a_sentence_at_the_start(tmp_path, obstacle):
    folder = tmp_path / "run"
    if obstacle == "under a file":
        folder.touch()
    else:
        folder.mkdir()
    if obstacle == "folder":
        (folder / "metrics.jsonl").mkdir()
    elif obstacle == "device":
        (folder / "metrics.jsonl").symlink_to("/dev/full")  # which can be read without end
    says = r"metrics\.jsonl (\(File exists\)|is no ordinary file).*; .*folder"
    with pytest.raises(RunFolderError, match=says):
        MetricsWriter(folder, tensorboard=False)


@pytest.mark.parametrize("room", [0, 5])
def test_a_full_disk_is_told_in_a_sentence(tmp_path, room):
    class Full:
        def write(self, line):
            if room == 0:
                raise OSError(28, "No space left on device")
            return min(room, len(line))

    writer = MetricsWriter(tmp_path, tensorboard=False)
    writer.write(1, {"a": 1.0})
    writer._file.close()
    writer._file = Full()
    with pytest.raises(RunFolderError, match=r"No space left.*voidrl resume"):
        writer.write(2, {"a": 2.0})
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]
