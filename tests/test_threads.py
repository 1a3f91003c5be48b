"""Threads are chosen by the size of an update, never taken from others, and given back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import fill_replay, make_agent
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import voidrl
from voidrl.agent.cost import encoder_flop, update_gflop
from voidrl.config import EncoderConfig
from voidrl.engine import compiler
from voidrl.system import machine as cores_of
from voidrl.system import threads
from voidrl.system.machine import CORES, claim_cores, whole_cores
from voidrl.training import build
from voidrl.training.build import layers_for

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
    monkeypatch.setattr(threads, "usable_cores", lambda: 8)
    return monkeypatch


PICKED = {  # threads allowed by torch, GFLOP of an update, more arguments, OMP_NUM_THREADS, share of cores
    "small networks": ((8, 0.1, {}, None, 8), 1, "1 CPU thread of 8, by the size of the networks; cpu_thr"),
    "by size": ((8, 6.5, {}, None, 8), 3, "3 CPU threads of 8, by the size"),
    "torch.set_num_threads(2)": ((2, 99.0, {}, None, 8), 2, "2 CPU threads of 2"),
    "the caller's": ((6, 0.1, {}, "6", 8), 6, ""),
    "fixed wins": ((1, 0.1, {"fixed": 3}, "1", 8), 3, ""),
    "fixed beyond": ((8, 0.1, {"fixed": 64}, None, 8), 8, "8 CPU threads: cpu_threads = 64 is more than the"),
    "resumed beside others": ((8, 0.1, {"before": 4}, None, 2), 4, ""),
    "resumed, and the caller's": ((2, 0.1, {"before": 4}, "2", 8), 2, "2 CPU threads: until now the run had"),
}


@pytest.mark.parametrize("case", PICKED)
def test_the_number_of_threads_and_why(machine, case):
    (allowed, gflop, more, variable, share), expected, start = PICKED[case]
    machine.setattr(threads, "whole_cores", lambda: share)
    if variable:
        machine.setenv("OMP_NUM_THREADS", variable)
    number, sentence = threads.pick_threads(allowed, gflop, **more)
    assert number == expected
    assert sentence.startswith(start)
    assert start or sentence == ""  # nothing to choose, nothing to say


def test_the_callers_number_comes_back_also_after_an_error(machine):
    mine = torch.get_num_threads()

    def fail() -> None:
        with threads.cpu_threads(CPU, 1.0, fixed=mine + 1):
            assert torch.get_num_threads() == mine + 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.get_num_threads() == mine


def test_on_a_gpu_torch_has_the_share_of_this_process(machine):
    torch.set_num_threads(4)
    try:
        machine.setattr(threads, "whole_cores", lambda: 2)
        with threads.cpu_threads(torch.device("cuda"), 0.1, fixed=5):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(1)


# The share of a process


@pytest.fixture
def shared(monkeypatch, tmp_path):
    """A machine of 16 cores with nobody else on it."""
    for name in (CORES, "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cores_of, "usable_cores", lambda: 16)
    monkeypatch.setattr(cores_of.tempfile, "tempdir", str(tmp_path))
    return monkeypatch


def test_commands_on_one_machine_divide_it(shared, tmp_path):
    code = "from voidrl.system.machine import claim_cores\nwith claim_cores(3): print(1, flush=True); input()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    assert whole_cores() == 16
    with claim_cores():
        assert (whole_cores(), whole_cores(2)) == (16, 8)  # its own claim does not count against it
    with subprocess.Popen(command, env=environment, **pipes) as other:
        other.stdout.readline()
        assert (whole_cores(), whole_cores(3)) == (4, 2)
        other.kill()  # without a word
        other.wait()
        assert whole_cores() == 16
    with subprocess.Popen(command, env={**environment, CORES: "2"}, **pipes) as cell:
        cell.stdout.readline()
        assert whole_cores() == 16  # its experiment has claimed them
        cell.communicate(b"\n")
    assert not [*tmp_path.glob("voidrl-cores-*/*")]


def test_the_share_that_a_process_is_given(shared):
    for name, value, share in (("SLURM_CPUS_PER_TASK", "4", (4, 2, 1)), (CORES, "2", (2, 1, 1))):
        shared.setenv(name, value)
        assert (whole_cores(), whole_cores(2), whole_cores(40)) == share
    shared.setenv(CORES, "99")
    assert whole_cores() == 16


def test_compilation_has_the_share_of_this_process(monkeypatch):
    from torch._inductor import async_compile, config

    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    monkeypatch.setattr(async_compile, "maybe_warm_pool", lambda: None)
    monkeypatch.setattr(config, "compile_threads", 16)
    monkeypatch.setattr(compiler, "whole_cores", lambda: 3)
    compiler._start_workers()
    assert config.compile_threads == 3


def test_a_run_uses_its_number_and_leaves_the_callers(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "whole_cores", lambda: 2)
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    torch.set_num_threads(2)
    try:
        run = voidrl.pretrain("CartPole-v1", steps=40, out=tmp_path / "run", config=TINY).origin
        assert "1 CPU thread of 2, by the size of the networks" in capsys.readouterr().err
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


def test_networks_are_made_with_one_thread(monkeypatch):
    """Their initial matrices are factorized: with the threads of many runs that took minutes."""
    seen, orthogonal = set(), nn.init.orthogonal_
    monkeypatch.setattr(
        nn.init, "orthogonal_", lambda *args: seen.add(torch.get_num_threads()) or orthogonal(*args)
    )
    with threads.using(2):
        make_agent()
        assert torch.get_num_threads() == 2
    assert seen == {1}


@pytest.mark.slow
def test_the_benchmark_of_a_shared_machine(monkeypatch, tmp_path):
    pytest.importorskip("ale_py")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import shared_machine

    words = ["--runs", "2", "--steps", "40", "--episodes", "1", "--num-envs", "2"]
    words += ["--device", "cpu", "--engine", "eager", "--json"]
    rows = shared_machine.main([*words, str(tmp_path / "rows.json")])
    assert [row["runs"] for row in rows] == [2, 2]
    assert rows[0]["cores each"] == max(1, rows[1]["cores each"] // 2)
    assert all(row["steps/s in all"] > 0 and row["seconds per evaluation"] > 0 for row in rows)
    assert json.loads((tmp_path / "rows.json").read_text()) == rows


# Cost


def test_operations_of_an_encoder_are_counted():
    """One 8×8 convolution at stride 4 on 84×84 has 20² positions."""
    nature = EncoderConfig(stack="nature", feature_dim=0)
    first, second, third = 20**2 * 8**2 * 4 * 32, 9**2 * 4**2 * 32 * 64, 7**2 * 3**2 * 64 * 64
    assert encoder_flop((4, 84, 84), nature) == 2 * (first + second + third)
    mlp = EncoderConfig(stack="mlp", hidden_dim=10, feature_dim=5)
    assert encoder_flop((3,), mlp) == 2 * (3 * 10 + 10 * 5)


def test_the_count_agrees_with_the_operators_of_an_update():
    """Within a factor of two and a half of what torch counts, for discrete and continuous actions."""
    for env in ("CartPole-v1", "MountainCarContinuous-v0"):
        layers = layers_for(env, "pretrain", None, {"learner.hidden_dim": 256, "learner.batch_size": 32})
        probed = build.probe(env, layers)
        spec, config = probed.spec, build.config_for(probed, layers)
        agent = voidrl.Agent(spec, config, CPU)
        replay = fill_replay(spec, skill_dim=agent.method.skill_dim)
        with FlopCounterMode(display=False) as counter:
            agent.update(replay, agent.learner.variant(0))
        ratio = update_gflop(spec, config) / (counter.get_total_flops() / 1e9)
        assert 0.4 < ratio < 2.5, (env, ratio)
