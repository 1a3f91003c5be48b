"""`voidrl experiment --on slurm` with real runs, on a SLURM made of small programs.

A run is stopped by the signal before the limit and requeued, its driver is killed and attached again, and
every file that a local run would have is the same, bit for bit: every step is one of a regular checkpoint, so
that a stop at any of them adds no boundary that the local run does not have.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_slurm
import pytest

from voidrl.runs import checkpoint
from voidrl.runs.metrics import read_metrics

pytest.importorskip("submitit")
pytestmark = pytest.mark.slow
OWN = """
title = "Walks"
tasks = ["own_envs:good"]
seeds = [3, 4]
threads = 1

[config]
warmup_steps = 8
learner = { batch_size = 8, hidden_dim = 8, encoder = { feature_dim = 4 } }
log = { tensorboard = false, log_every_steps = 1, checkpoint_every_steps = 1 }

[pretrain]
steps = 160

[finetune]
steps = 24
config = { finetune.warmup_steps = 4 }

[evaluation]
episodes = 3

[methods.apt]
method = "apt"
"""
SEARCH = """
title = "Search"
tasks = ["own_envs:good"]
seeds = [3]
threads = 1
measures = ["updates"]

[config]
warmup_steps = 8
learner = { batch_size = 8, hidden_dim = 8, encoder = { feature_dim = 4 } }
log = { tensorboard = false, log_every_steps = 100, keep_last = 1, keep_replay = false }

[pretrain]
steps = 3000

[grid]
updates_per_step = { from = 0.25, to = 1.0, count = 4 }

[tune]
sampler = "random"

[methods.apt]
method = "apt"
phases = ["pretrain"]
evaluation = false
"""
ROOT = Path(__file__).parents[2]
FIRST = "own_envs-good/apt-pretrain/seed3"


def until(condition, seconds=300.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def deterministic(folder):
    """What a run computed: metrics without times, weights, optimizers and replay of the last checkpoint."""
    rows = [
        {name: value for name, value in row.items() if not name.startswith("time")}
        for row in read_metrics(folder)
    ]
    newest = checkpoint.latest(folder / "checkpoints", lambda text: None).path
    files = {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}
    return rows, files


def end_all():
    """Leave no process behind, whatever failed."""
    for task in fake_slurm.tasks():
        if (now := fake_slurm.read(task))["state"] == "RUNNING":
            fake_slurm.write(task, state="CANCELLED by 0")
            os.killpg(int(now["pgid"]), signal.SIGKILL)


@pytest.fixture
def env(tmp_path, monkeypatch):
    """Environment variables of a command, which finds a SLURM in its PATH; its state is in cluster/state."""
    commands = fake_slurm.install(tmp_path / "cluster")
    monkeypatch.setattr(fake_slurm, "STATE", str(tmp_path / "cluster/state"))
    paths = os.pathsep.join([str(ROOT / "src"), str(Path(__file__).parent), str(ROOT / "tests")])
    yield {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
    }
    end_all()


def test_requeued_and_attached_runs_equal_local_ones(tmp_path, env):
    own = tmp_path / "own.toml"
    own.write_text(OWN)
    state = tmp_path / "cluster/state"

    def command(out, on, *more):
        words = [sys.executable, "-m", "voidrl", "experiment", str(own), "--on", on, "--out", str(out)]
        return [*words, "--device", "cpu", "--no-report", *more]

    there, here = tmp_path / "there", tmp_path / "here"
    driver = subprocess.Popen(command(there, "slurm", "--time", "10"), env=env, cwd=tmp_path)
    until(lambda: (there / FIRST / "checkpoints").is_dir())
    fake_slurm.send("101_0", signal.SIGUSR2)  # the signal before the limit
    driver.kill()
    driver.wait()
    until(lambda: "scontrol requeue 101_0" in (state / "calls.log").read_text())
    later = subprocess.run(command(there, "slurm", "--time", "10"), env=env, cwd=tmp_path, check=False,
                           capture_output=True, text=True, timeout=600)  # fmt: skip
    assert later.returncode == 0, later.stderr
    assert fake_slurm.read("101_0")["requeues"] == "1"
    assert len(fake_slurm.tasks()) == 4  # none was submitted twice
    calls = (state / "calls.log").read_text().splitlines()
    assert "requeued at step" in (there / f"logs/{FIRST}.log").read_text()

    done = subprocess.run(
        command(here, "local", "--jobs", "2"), env=env, cwd=tmp_path, check=False, timeout=600
    )
    assert done.returncode == 0
    for cell in ("apt-pretrain/seed3", "apt-pretrain/seed4", "apt/seed3", "apt/seed4"):
        folder = f"own_envs-good/{cell}"
        assert deterministic(there / folder) == deterministic(here / folder), folder
    again = len(calls)
    assert subprocess.run(command(there, "slurm"), env=env, cwd=tmp_path, check=False).returncode == 0
    assert len((state / "calls.log").read_text().splitlines()) == again  # what is done asks SLURM nothing


def test_a_search_is_attached_and_prunes_points(tmp_path, env):
    """The driver of `--tune` is killed in the middle. The metric is the field itself: ranks are known."""
    (tmp_path / "search.toml").write_text(SEARCH)
    words = [sys.executable, "-m", "voidrl", "experiment", "search.toml", "--on", "slurm", "--tune", "6"]
    words += ["--max-running", "2", "--device", "cpu", "--no-report", "--out", "out"]
    jobs = tmp_path / "out/slurm/jobs.json"
    with subprocess.Popen(words, env=env, cwd=tmp_path) as driver:
        until(lambda: jobs.is_file() and '"103"' in jobs.read_text())
        # Two at a time: the third was chosen when one of them had ended, which SLURM may notice later.
        until(lambda: "COMPLETED" in [fake_slurm.read(task)["state"] for task in fake_slurm.tasks()][:2])
        driver.kill()
    later = subprocess.run(
        words, env=env, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=600
    )
    assert later.returncode == 0, later.stderr
    assert fake_slurm.tasks() == ["101", "102", "103", "104", "105", "106"]  # none was submitted twice
    assert "trial 6 is pruned at step" in later.stderr  # the lowest, when four others are done
    assert "pruned at step" in later.stderr
