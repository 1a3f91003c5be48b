"""Several runs in one process: each is, bit for bit, the run that it would be alone."""

import argparse
import io
import json
import os
import shutil
import signal
import threading
import time
from functools import partial

import pytest
import torch
from tiny_runs import MAZE, Fickle, Walk, assert_same_run, rows, tiny

import voidrl
from voidrl import machine, turns
from voidrl.cli import main as cli
from voidrl.cli.seeds import ReadSeeds, read_seeds
from voidrl.concurrent import run_together, together
from voidrl.errors import ConfigError, EnvironmentFailedError, RunInterrupted, RunsFailedError
from voidrl.runs.status import read_status
from voidrl.terminal.joint_progress import JointProgress
from voidrl.terminal.progress import Progress
from voidrl.terminal.signals import StopSignals, followed

SEEDS = (1, 2, 3)
EVALUATED = {"log__eval_every_steps": 10, "log__eval_episodes": 3}


def start(root, seed, env=Walk, steps=40, **changes):
    config = tiny(**{"env__num_envs": 2, **changes})
    return voidrl.pretrain(env, "apt", steps=steps, seed=seed, out=root / f"seed-{seed}", config=config)


def by_seed(call, seeds=SEEDS):
    return {f"seed {seed}": partial(call, seed) for seed in seeds}


CASES = {
    "in this process, with evaluations": (SEEDS, EVALUATED),
    "in workers": ((1, 2), {"env__backend": "async"}),
    "from pixels": ((1, 2), {"env": MAZE, "augment__shift_pixels": 1, "steps": 24}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_seed_is_the_run_alone_bit_for_bit(case, tmp_path):
    seeds, changes = CASES[case]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    agents = voidrl.together(by_seed(lambda seed: start(tmp_path / "at once", seed, **changes), seeds))
    assert torch.equal(torch.get_rng_state(), before)
    for seed in seeds:
        alone = start(tmp_path / "alone", seed, **changes)
        assert_same_run(tmp_path / "alone" / f"seed-{seed}", tmp_path / "at once" / f"seed-{seed}")
        for name, tensor in agents[f"seed {seed}"].tensors().items():
            assert torch.equal(tensor, alone.tensors()[name]), name


def test_seeds_are_resumed_alone_or_together_as_if_they_had_never_been_stopped(tmp_path):
    root = tmp_path / "at once"
    together(by_seed(lambda seed: start(root, seed, steps=20)))
    voidrl.resume(root / "seed-1", steps=40, env=Walk)
    resumed = together(by_seed(lambda seed: voidrl.resume(root / f"seed-{seed}", steps=40, env=Walk), (2, 3)))
    assert [agent.steps for agent in resumed.values()] == [40, 40]
    for seed in SEEDS:
        start(tmp_path / "alone", seed)
        assert_same_run(tmp_path / "alone" / f"seed-{seed}", root / f"seed-{seed}", steps=40)


class SignalAtStep(voidrl.Callback):
    def __init__(self, step):
        self.step = step

    def on_step(self, run):
        if run.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)  # the handler runs in the main thread


def test_a_signal_stops_all_with_checkpoints_from_which_each_can_be_resumed_by_itself(tmp_path, capsys):
    root = tmp_path / "at once"

    def begin(seed):
        callbacks = [SignalAtStep(14)] if seed == 2 else []
        config = tiny(env__num_envs=2)
        out = root / f"seed-{seed}"
        return voidrl.pretrain(Walk, steps=40, seed=seed, out=out, config=config, callbacks=callbacks)

    with pytest.raises(RunInterrupted, match="stopped by SIGTERM"):
        together(by_seed(begin))
    said = capsys.readouterr().err
    for seed in SEEDS:
        status = read_status(root / f"seed-{seed}")
        assert (status.state, status.signal, status.checkpoint) == ("stopped", "SIGTERM", status.steps)
        assert 12 <= status.steps <= 16
        assert f"seed {seed}: stopped by SIGTERM at step {status.steps} of 40" in said
    shutil.copytree(root, tmp_path / "copy")
    together(by_seed(lambda seed: voidrl.resume(root / f"seed-{seed}", env=Walk)))
    voidrl.resume(tmp_path / "copy" / "seed-3", env=Walk)
    assert_same_run(tmp_path / "copy" / "seed-3", root / "seed-3", steps=40)


def test_a_seed_that_fails_stops_no_other_and_is_reported_as_alone(tmp_path, capsys):
    def begin(seed):
        env = partial(Fickle, "raise") if seed == 2 else Walk
        config = tiny(env__num_envs=1)
        return voidrl.pretrain(env, steps=40, seed=seed, out=tmp_path / f"seed-{seed}", config=config)

    with pytest.raises(RunsFailedError, match="1 of 3 runs failed; seed 2: environment 0 ") as failed:
        together(by_seed(begin))
    assert "seed 2: environment 0" in capsys.readouterr().err
    assert {*failed.value.returned} == {"seed 1", "seed 3"}
    assert isinstance(failed.value.errors["seed 2"], EnvironmentFailedError)
    states = [read_status(tmp_path / f"seed-{seed}").state for seed in SEEDS]
    assert states == ["done", "failed", "done"]
    assert "the wheel fell off" in (tmp_path / "seed-2" / "log.txt").read_text()
    start(tmp_path / "alone", 3, env__num_envs=1)
    assert rows(tmp_path / "alone" / "seed-3") == rows(tmp_path / "seed-3")


def test_what_all_runs_have_done_wrong_is_said_once_at_the_end(tmp_path):
    wrong = tiny(learner__n_step=-1)
    calls = by_seed(lambda seed: voidrl.pretrain(Walk, seed=seed, out=tmp_path / f"{seed}", config=wrong))
    with pytest.raises(RunsFailedError, match="3 of 3 runs failed; seed 1, seed 2, seed 3: ") as failed:
        together(calls)
    assert str(failed.value).count("n_step") == str(failed.value.errors["seed 1"]).count("n_step")


def test_an_error_of_the_code_is_raised_as_it_is(tmp_path):
    done = []
    with pytest.raises(ZeroDivisionError):
        together({"first": lambda: 1 // 0, "second": lambda: done.append(True)})
    assert done  # the others were completed before


def test_runs_cannot_be_nested():
    with pytest.raises(RunsFailedError, match="runs that share a process cannot start others together"):
        together({"outer": lambda: together({"inner": lambda: None})})


def test_the_command_line_starts_and_resumes_several_seeds(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    short = {"warmup-steps": 8, "learner.hidden-dim": 8, "learner.batch-size": 8, "env.num-envs": 2}
    options = [word for name, value in short.items() for word in (f"--{name}", str(value))]
    options += [
        "--preset",
        "none",
        "--method",
        "random",
        "--device",
        "cpu",
        "--log.checkpoint-every-steps",
        "8",
    ]
    out = str(tmp_path / "out")
    command = ["pretrain", MAZE, *options, "--steps", "16", "--out"]
    assert cli.main([*command, out, "--seeds", "1..2"]) == 0
    assert cli.main([*command, str(tmp_path / "alone"), "--seed", "2"]) == 0
    assert_same_run(tmp_path / "alone", tmp_path / "out" / "seed-2", steps=16)
    assert json.loads((tmp_path / "out/seed-2/config.json").read_text())["seed"] == 2
    assert cli.main(["resume", f"{out}/seed-1", f"{out}/seed-2", "--steps", "32"]) == 0
    assert [read_status(tmp_path / f"out/seed-{seed}").steps for seed in (1, 2)] == [32, 32]
    capsys.readouterr()
    assert cli.main([*command, out, "--seeds", "2..3"]) == 2  # before any of them starts
    assert "seed-2 already holds a run" in capsys.readouterr().err
    assert not (tmp_path / "out/seed-3").exists()


def test_lists_of_seeds():
    assert read_seeds("1..4") == [1, 2, 3, 4]
    assert read_seeds("7..7") == [7]
    assert read_seeds("1,3,5") == [1, 3, 5]
    assert read_seeds("4") == [4]
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", action=ReadSeeds, nargs="+", default=[2])
    assert parser.parse_args(["--seeds", "1..3", "7", "9,8"]).seeds == [1, 2, 3, 7, 9, 8]
    assert parser.parse_args([]).seeds == [2]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--seeds", "1.."], "--seeds '1..' cannot be used: expected whole numbers from 0 on, such as 1..8"),
        (["--seeds", "one"], "expected whole numbers"),
        (["--seeds", "1..999999999"], "expected at most 256 seeds"),
        (["--seeds", "3..1"], "--seeds 3..1 cannot be used: expected the smaller number first"),
        (["--seeds", "1,2,1"], "--seeds 1,2,1 cannot be used: expected each seed once"),
        (["--seeds"], "option --seeds has no value"),
        (["--seeds", "1..2", "--seed", "3"], "--seeds 1..2 and --seed 3 exclude each other"),
        (["--seeds", "1..2", "--ranks", "2"], "--seeds cannot be used on 2 ranks"),
        (["--seeds", "1..2", "--log.wandb-project", "p"], "as W&B has one run in each"),
    ],
)
def test_bad_lists_of_seeds_are_answered_with_a_sentence(options, sentence, capsys, tmp_path):
    words = ["--preset", "none", "--device", "cpu", "--steps", "9", "--out", str(tmp_path / "out")]
    assert cli.main(["pretrain", MAZE, *words, *options]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# What they share


def test_turns_are_taken_in_order_and_each_thread_has_its_own_random_numbers():
    order = []

    def draw(name, seed):
        torch.manual_seed(seed)
        drawn = []
        for _ in range(4):
            order.append(name)
            drawn += torch.rand(3).tolist()
            with turns.released():
                pass
        return drawn

    calls = {name: partial(draw, name, seed) for seed, name in enumerate("abc")}
    ends = run_together(calls, StopSignals())
    assert order[:3] == ["a", "b", "c"]
    assert sorted(order) == sorted("abc" * 4)
    for seed, name in enumerate("abc"):
        with torch.random.fork_rng():
            assert ends[name].result() == pytest.approx(draw(name, seed), abs=0)


def test_others_compute_while_one_waits():
    begun, met = threading.Event(), threading.Event()

    def wait():
        begun.set()
        with turns.released():
            assert met.wait(10)

    def answer():
        with turns.released():
            begun.wait(10)
        met.set()

    ends = run_together({"waits": wait, "answers": answer}, StopSignals())
    assert all(end.error is None for end in ends.values())


@pytest.mark.parametrize("runs", [turns.MOST_ON_CUDA + 1, 16])
def test_a_gpu_has_streams_for_so_many_runs(runs):
    """Two runs that get the same stream of torch's pool would overwrite each other's workspaces."""
    with (
        turns.Turns(runs).taken(0),
        pytest.raises(ConfigError, match=f"{runs} runs cannot share a process on cuda: expected at most 10"),
        turns.own_stream(torch.device("cuda")),
    ):
        pass


def test_a_run_alone_gives_up_nothing():
    assert not turns.is_shared()
    with turns.released():
        assert torch.rand(1).shape == (1,)


def test_the_number_of_cpu_threads_is_that_of_each_run():
    mine = torch.get_num_threads()

    def change(number):
        found = torch.get_num_threads()
        torch.set_num_threads(number)
        with turns.released():
            pass
        return found, torch.get_num_threads()

    ends = run_together({"a": partial(change, 1), "b": partial(change, 2)}, StopSignals())
    assert [end.result() for end in ends.values()] == [(mine, 1), (mine, 2)]
    assert torch.get_num_threads() == mine


def test_runs_divide_the_cores_among_their_environments(monkeypatch):
    monkeypatch.setattr(machine, "whole_cores", lambda: 16)
    assert machine.own_cores() == 16
    ends = run_together(by_seed(lambda seed: machine.own_cores(), range(8)), StopSignals())
    assert {end.result() for end in ends.values()} == {2}
    with machine.shared_by(40):
        assert machine.own_cores() == 1


def test_a_thread_stops_with_the_signals_that_it_follows():
    leader, seen = StopSignals(), []

    def look():
        with followed(leader), StopSignals() as stop:
            seen.append(stop.requested)
            leader._requested = "SIGTERM"
            seen.append(stop.requested)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == ["", "SIGTERM"]


def test_one_display_shows_sums_of_steps_and_means_of_the_rest(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    joint = JointProgress(2)
    first = joint.join(100, 0, initial_updates=0, title="pretrain maze")
    second = joint.join(100, 50, initial_updates=5, title="pretrain maze")
    first.update(10, {"cells": 4.0}, updates=1)
    second.update(60, {"cells": 6.0}, updates=7)
    joint.close()
    last = stream.getvalue().splitlines()[-1]
    assert "pretrain maze, 2 runs  70/200  35%" in last
    assert "cells 5" in last


def test_a_run_that_joins_changes_no_rate():
    now = [0.0]
    progress = Progress(100, 0, stream=io.StringIO(), clock=lambda: now[0])
    progress.update(0, updates=0)
    progress.add_run(100, 40, 20)
    now[0] = 2.0
    progress.update(50, updates=24)  # ten steps more than the 40 with which the second one began
    assert progress._rates() == (5.0, 2.0)


def test_one_process_is_required(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="several runs cannot share a process under torchrun"):
        run_together({"a": lambda: None}, StopSignals())
