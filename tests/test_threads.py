"""Threads are chosen by the size of an update, never taken from others, and given back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import voidrl
from voidrl.agent.cost import encoder_flop, update_gflop
from voidrl.config import EncoderConfig
from voidrl.replay import Replay
from voidrl.system import threads
from voidrl.training import build
from voidrl.training.layers import layers_for

CPU = torch.device("cpu")
TINY = {
    "updates_per_step": 0.25,
    "warmup_steps": 20,
    "learner": {"hidden_dim": 16, "batch_size": 16},
    "log.tensorboard": False,
}


@pytest.fixture
def machine(monkeypatch):
    """A machine of eight cores on which nothing else runs."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "whole_cores", lambda: 8)
    monkeypatch.setattr(threads, "free_cores", lambda: 8)
    return monkeypatch


PICKED = {  # threads allowed by torch, GFLOP of an update, more arguments, OMP_NUM_THREADS, free cores
    "small networks": ((8, 0.1, {}, None, 8), 1, ["networks are small", "cpu_threads or OMP_NUM_THREADS"]),
    "by size": ((8, 6.5, {}, None, 8), 3, ["by the size of the networks"]),
    "all": ((8, 99.0, {}, None, 8), 8, ["all that there are"]),
    "none is free": ((8, 99.0, {}, None, 0), 1, [""]),
    "some are left to others": ((8, 99.0, {}, None, 5), 5, ["other processes"]),
    "torch.set_num_threads(2)": ((2, 99.0, {}, None, 8), 2, [""]),
    "nothing to choose": ((1, 99.0, {}, None, 8), 1, []),
    "the caller's": ((6, 0.1, {}, "6", 8), 6, []),
    "fixed": ((8, 0.1, {"fixed": 3}, None, 8), 3, []),
    "fixed wins": ((1, 0.1, {"fixed": 3}, "1", 8), 3, []),
    "fixed beyond": ((8, 0.1, {"fixed": 64}, None, 8), 8, ["cpu_threads = 64 is more than the cores"]),
    "resumed": ((8, 0.1, {"before": 4}, None, 8), 4, []),
    "resumed beyond": ((8, 0.1, {"before": 16}, None, 8), 8, ["until now the run had 16", "rounding"]),
    "resumed, and the caller's": ((2, 0.1, {"before": 4}, "2", 8), 2, ["until now the run had 4"]),
}


@pytest.mark.parametrize("case", PICKED)
def test_the_number_of_threads_and_why(machine, case):
    (allowed, gflop, more, variable, free), expected, parts = PICKED[case]
    machine.setattr(threads, "free_cores", lambda: free)
    if variable:
        machine.setenv("OMP_NUM_THREADS", variable)
    number, sentence = threads.pick_threads(allowed, gflop, **more)
    assert number == expected
    assert all(part in sentence for part in parts)
    assert parts or sentence == ""  # nothing to choose, nothing to say


def test_the_callers_number_comes_back_also_after_an_error(machine):
    mine = torch.get_num_threads()

    def fail() -> None:
        with threads.cpu_threads(CPU, 1.0, fixed=mine + 1):
            assert torch.get_num_threads() == mine + 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.get_num_threads() == mine


def test_a_gpu_changes_nothing(machine):
    with threads.cpu_threads(torch.device("cuda"), 0.1, fixed=5):
        assert torch.get_num_threads() == 1


def test_free_cores_are_those_that_nobody_else_uses(tmp_path, monkeypatch):
    """Of 400 ticks of four cores within a second, others worked 250."""
    ticks = iter([(1000, 9000), (1250, 9150)])
    (tmp_path / "proc").mkdir()

    def at_next_look(root):
        busy, _ = next(ticks)
        return busy / 100

    clock = iter([0.0, 1.0])
    monkeypatch.setattr(threads, "_busy_seconds", at_next_look)
    monkeypatch.setattr(threads.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(threads.time, "process_time", lambda: 0.0)
    monkeypatch.setattr(threads, "whole_cores", lambda: 4)
    monkeypatch.setattr(threads, "cores", lambda: type("Cores", (), {"total": 4})())
    assert threads.free_cores(tmp_path, seconds=0) == 2  # 4 − 2.5, rounded


def test_the_kernels_counters_are_read(tmp_path, monkeypatch):
    assert threads._busy_seconds(tmp_path) is None  # no such file, as on macOS
    monkeypatch.setattr(threads.os, "sysconf", lambda name: 100)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu  100 20 30 1000 50 0 5 0 7 0\ncpu0 1 1 1 1\n")
    assert threads._busy_seconds(tmp_path) == pytest.approx(1.55)  # all but idle and waiting for a disk
    (tmp_path / "proc/stat").unlink()
    monkeypatch.setattr(threads, "whole_cores", lambda: 6)
    assert threads.free_cores(tmp_path) == 6


def test_a_run_uses_its_number_and_leaves_the_callers(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "whole_cores", lambda: 2)
    torch.set_num_threads(2)
    try:
        run = voidrl.pretrain("CartPole-v1", steps=40, out=tmp_path / "run", config=TINY).origin
        assert "1 CPU thread of 2, as the networks are small" in capsys.readouterr().err
        assert "1 CPU thread of 2" in (run / "log.txt").read_text()
        assert torch.get_num_threads() == 2
        (saved,) = (run / "checkpoints").glob("step_*/manifest.json")
        assert json.loads(saved.read_text())["meta"]["cpu_threads"] == 1
        voidrl.resume(run, steps=50)
        assert "CPU thread" not in capsys.readouterr().err  # it is kept
        voidrl.evaluate(run, episodes=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


# Cost


def test_operations_of_an_encoder_are_counted():
    """One 8×8 convolution at stride 4 on 84×84 has 20² positions."""
    nature = EncoderConfig(stack="nature", feature_dim=0)
    first, second, third = 20**2 * 8**2 * 4 * 32, 9**2 * 4**2 * 32 * 64, 7**2 * 3**2 * 64 * 64
    assert encoder_flop((4, 84, 84), nature) == 2 * (first + second + third)
    mlp = EncoderConfig(stack="mlp", hidden_dim=10, feature_dim=5)
    assert encoder_flop((3,), mlp) == 2 * (3 * 10 + 10 * 5)


def config_of(env, preset=None, **changes):
    layers = layers_for(env, "pretrain", preset, changes)
    probed = build.probe(env, layers)
    return probed.spec, build.config_for(probed, layers)


def test_the_count_agrees_with_the_operators_of_an_update():
    """Within a factor of two and a half of what torch counts, for discrete and continuous actions."""
    for env in ("CartPole-v1", "MountainCarContinuous-v0"):
        spec, config = config_of(env, **{"learner.hidden_dim": 256, "learner.batch_size": 32})
        agent = voidrl.Agent(spec, config, CPU)
        replay = Replay(spec, 2, 128, agent.method.skill_dim, CPU, CPU)
        fill(replay, agent)
        with FlopCounterMode(display=False) as counter:
            agent.update(replay, agent.learner.variant(0))
        ratio = update_gflop(spec, config) / (counter.get_total_flops() / 1e9)
        assert 0.4 < ratio < 2.5, (env, ratio)


def fill(replay, agent):
    n, spec = 2, agent.spec
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(n, *spec.frame_shape)).astype(np.float32)
    replay.reset(frames)
    no = np.zeros(n, bool)
    for _ in range(50):
        action = agent.random_actions(replay.latest()).numpy()
        frames = rng.normal(size=frames.shape).astype(np.float32)
        replay.add(action, np.zeros(n), no, no, frames, torch.zeros(n, 0))
