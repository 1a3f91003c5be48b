"""One run on several ranks: what it counts, saves and resumes, and what a lost rank leaves."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rank_runs import ENV, assert_same, pretrain, resume, saved_tensors, words

from voidrl import dist
from voidrl.cli import training
from voidrl.cli.main import main
from voidrl.data.export import export_data
from voidrl.errors import ConfigError, RunFolderError
from voidrl.runs.folder import RunFolder
from voidrl.runs.metrics import read_metrics
from voidrl.runs.status import read_status
from voidrl.training.build import require_fitting
from voidrl.training.saved_run import latest_run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked from the test")


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """A complete run on two ranks, and what they said."""
    out = tmp_path_factory.mktemp("two") / "run"
    codes, messages = pretrain(2, out)
    assert codes == [0, 0], messages
    return out, messages


def test_two_ranks_are_one_run_with_one_folder(on_two):
    out, messages = on_two
    status, rows = read_status(out), read_metrics(out)
    assert (status.state, status.ranks) == ("done", 2)
    # Four environments, each of whose steps counts once, and one row of each moment.
    steps = [row["step"] for row in rows]
    assert steps == sorted({*steps})
    assert status.steps == steps[-1] in range(120, 124)
    assert rows[-1]["updates"] == (steps[-1] - 12) // 2
    assert rows[-1]["episodes"] == 4 * 3  # of 6 steps, one of each environment between two checkpoints
    tensors, meta = saved_tensors(out)
    visits = sum(tensors[f"{rank}/loop.safetensors/visits"].sum() for rank in range(2))
    assert visits == meta["steps"] + meta["episodes"] + 4 * 3  # steps, resets, and a beginning per checkpoint
    assert messages[1] == ""
    assert "120 steps" in messages[0] or "steps in" in messages[0]


def test_ranks_have_columns_and_random_numbers_of_their_own(on_two):
    tensors, _ = saved_tensors(on_two[0])
    assert len(tensors["0/replay.safetensors/age"]) == len(tensors["1/replay.safetensors/age"]) == 2
    assert not torch.equal(tensors["0/loop.safetensors/rng_cpu"], tensors["1/loop.safetensors/rng_cpu"])
    mine, others = (tensors[f"{rank}/replay_00000.safetensors/frames"] for rank in range(2))
    assert mine.shape == others.shape
    assert not torch.equal(mine, others)


def test_a_checkpoint_counts_only_with_all_its_parts(on_two, tmp_path):
    out = shutil.copytree(on_two[0], tmp_path / "run")
    step = read_status(out).steps  # cut a file of the second rank short, after the run has ended
    part = next((out / "ranks" / "1").glob(f"step_{step:012d}")) / "loop.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    said = []
    with pytest.raises(Exception, match="no valid checkpoint"):
        latest_run(RunFolder(out), said.append)
    assert "the part of rank 1 of 2 cannot be used" in said[0]


@pytest.mark.parametrize("size", [1, 3, 7])
def test_parts_are_consecutive_and_differ_by_one_at_most(size):
    parts = [dist.ProcessGroup(rank, size).part(7) for rank in range(size)]
    assert [column for part in parts for column in part] == [*range(7)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_ranks_cannot_divide_is_refused_by_the_command(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "6")
    request = training.read_request("pretrain", [ENV, *words()])
    with pytest.raises(ConfigError, match="4 cannot be used with 6 ranks"):
        require_fitting(request.probed, request.config)


def test_a_folder_that_ranks_do_not_share_is_refused(on_two, tmp_path):
    RunFolder.follow(on_two[0]).require_visible()
    with pytest.raises(RunFolderError, match="expected a folder that all ranks share"):
        RunFolder.follow(tmp_path / "run").require_visible(0)


@pytest.mark.slow
def test_a_script_can_start_one_run_after_another_under_torchrun():
    """torchrun keeps one store for all groups: addresses of the first must not be read by the second."""
    script = str(Path(__file__).with_name("rank_twice.py"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert sorted(done.stdout.split()) == ["[3.0]"] * 6


@pytest.mark.slow
def test_a_resumed_run_is_exact_after_sigterm_of_one_rank(tmp_path):
    out = tmp_path / "run"
    codes, messages = pretrain(2, out, "1 17 SIGTERM")
    assert codes == [75, 75], messages
    assert "stopped by SIGTERM" in messages[0]
    assert messages[1] == ""
    assert read_status(out).state == "stopped"
    assert 40 < read_status(out).steps < 80
    # A stop cuts episodes where no other run does: the run to compare with was stopped there too.
    other = shutil.copytree(out, tmp_path / "other")
    for folder in (out, other):
        assert resume(2, folder)[0] == [0, 0]
    assert_same(out, other)
    assert read_status(out).state == "done"


@pytest.mark.parametrize(
    ("rank", "state"), [pytest.param(0, "interrupted", marks=pytest.mark.slow), (1, "failed")]
)
def test_a_killed_rank_ends_the_others_and_the_run_is_resumed_exactly(on_two, tmp_path, rank, state):
    out, began = tmp_path / "run", time.monotonic()
    codes, messages = pretrain(2, out, f"{rank} 17 SIGKILL")
    assert time.monotonic() - began < 30
    assert codes == [-signal.SIGKILL if other == rank else 2 for other in range(2)]
    step = latest_run(RunFolder(out), pytest.fail).step
    assert (
        f"voidrl: rank {1 - rank} of 2 has lost another rank: see that rank's message; the checkpoint of "
        f"step {step} is kept, resume with `torchrun --nproc-per-node 2 -m voidrl resume {out}`"
    ) in messages[1 - rank]
    assert read_status(out).state == state
    codes, messages = resume(2, out)
    assert codes == [0, 0], messages
    assert_same(on_two[0], out)


def test_another_number_of_ranks_is_refused(on_two, capsys):
    assert main(["resume", str(on_two[0]), "--steps", "200"]) == 2
    assert capsys.readouterr().err.endswith(
        f"voidrl: {on_two[0]} was saved by 2 ranks, each with its part of the replay, and cannot be resumed "
        f"on 1: resume with torchrun on 2\n"
    )


def test_the_replays_of_all_ranks_are_exported(on_two, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    exported = export_data(on_two[0], "data-v0")
    tensors, _ = saved_tensors(on_two[0])
    counters = [tensors[f"{rank}/replay.safetensors/counters"] for rank in range(2)]
    assert exported.steps == sum(int(size) for *_, size in counters)


@pytest.mark.slow
def test_agents_that_differ_between_ranks_are_noticed_before_they_are_saved(tmp_path):
    codes, messages = pretrain(2, tmp_path / "run", method="rank_runs:Drifting")
    assert codes == [2, 2]
    assert "the agents of the ranks differ" in messages[0]
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1  # before the first update


@pytest.mark.slow
def test_torchrun_passes_signals_on(tmp_path):
    out = tmp_path / "run"
    path = os.pathsep.join(filter(None, sys.path))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *torchrun, "-m", "voidrl", "pretrain", ENV, "--out", str(out)]
    child = subprocess.Popen(
        [*command, *words(steps=100000)],
        env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    while child.poll() is None and not (out / "metrics.jsonl").exists():
        time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    _, messages = child.communicate(timeout=120)
    assert messages.count("stopped by SIGTERM") == 1, messages
    assert read_status(out).state == "stopped"
    saved_tensors(out)  # all parts are there
