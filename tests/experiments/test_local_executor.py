"""`--on local`: its options, cells on several GPUs, and CUDA's multi-process service; no GPU is needed."""

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from done_cells import plan_of
from tiny_runs import until

from voidrl.cli import main as cli
from voidrl.experiments import run
from voidrl.experiments.board import Board
from voidrl.experiments.executors import base, local, mps
from voidrl.experiments.executors.local import visible_gpus
from voidrl.experiments.state import CellState
from voidrl.system import machine


def executable(folder, name, text):
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Puts a program on the PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return lambda name, text: executable(tmp_path, name, text)


# Options


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--devices", "0,0"],
            "--devices = '0,0' cannot be used: expected numbers of GPUs such as",
        ),
        (["--devices", "0,7"], "expected GPUs that nvidia-smi shows here (GPU 0, 1)"),
        (["--devices", "0", "--device", "cpu"], "--devices 0 and --device cpu exclude each other"),
        (["--jobs", "0"], "jobs = 0 cannot be used: expected a whole number above 0"),
        (["--on", "rya"], "unknown executor 'rya'; did you mean 'ray'?"),
        (["--on", "slurm", "--jobs", "2"], "--jobs cannot be used with --on slurm: it belongs to --on local"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(words, sentence, tmp_path, capsys, on_path):
    on_path("nvidia-smi", "printf '0, GPU-a\\n1, GPU-b\\n'")
    out = tmp_path / "out"
    assert cli.main(["experiment", "demo", "--out", str(out), *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()


# GPUs


def test_gpus_are_numbered_as_cuda_numbers_them(on_path, monkeypatch):
    on_path("nvidia-smi", "printf '0, GPU-aa\\n1, GPU-bb\\n2, GPU-cc\\n'")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["GPU-aa", "GPU-bb", "GPU-cc"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-a,9,1")
    assert visible_gpus() == ["GPU-cc", "GPU-aa"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
    on_path("nvidia-smi", "echo no driver; exit 9")
    assert visible_gpus() == []


# Processes


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    plan = plan_of("demo", tmp_path_factory.mktemp("demo") / "out", methods=("random", "apt"))
    plan.out.mkdir()
    (plan.out / "experiment.json").touch()
    return plan


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    """Cells whose processes write down their job and environment, and are done."""
    code = (
        "import json, os, sys; job = json.loads(sys.stdin.readline());"
        "names = ('CUDA_VISIBLE_DEVICES', 'CUDA_MPS_PIPE_DIRECTORY', 'VOIDRL_CORES');"
        "seen = {name: os.environ.get(name) for name in names};"
        f"path = {str(tmp_path)!r} + '/' + job['cell'].replace('/', '-') + '.json';"
        "open(path, 'w').write(json.dumps([seen, job['config']['device']]))"
    )
    monkeypatch.setattr(base, "CELL_COMMAND", [sys.executable, "-S", "-c", code])
    monkeypatch.setattr(run, "try_to_write_record", lambda *plan, say: None)

    def state_of(cell, folder):
        is_done = (tmp_path / f"{cell.folder.replace('/', '-')}.json").exists()
        return CellState("done" if is_done else "to do")

    monkeypatch.setattr(run, "state_of", state_of)

    def read():
        found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
        return [found[name] for name in ("maze-random-seed2", "maze-apt-seed2")]

    return read


def work(plan, executor):
    shown = io.StringIO()
    outcome = run.run_plan(plan, executor, command=["voidrl"], board=Board(shown))
    assert outcome.ok
    return shown.getvalue()


def test_each_process_sees_its_own_gpu_alone(plan, recorder):
    work(plan, local.Local(local.Options(devices="1,3"), device="cuda", gpus=["GPU-b", "GPU-d"]))
    first, second = recorder()
    assert (first[0]["CUDA_VISIBLE_DEVICES"], first[1]) == ("GPU-b", "cuda")
    assert (second[0]["CUDA_VISIBLE_DEVICES"], second[1]) == ("GPU-d", "cuda")


@pytest.mark.parametrize(("jobs", "cores"), [(1, "8"), (2, "4"), (5, "4")])  # there are two runs
def test_runs_divide_the_cores(plan, recorder, monkeypatch, tmp_path, jobs, cores):
    for name in (machine.CORES, "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    monkeypatch.setattr(machine.tempfile, "tempdir", str(tmp_path))  # other runs on this machine do not count
    request = dataclasses.replace(plan.request, device="cpu")
    plan = dataclasses.replace(plan, request=request)
    work(plan, local.make(plan, local.Options(jobs=jobs)))
    for seen, device in recorder():
        assert device == "cpu"
        assert seen["VOIDRL_CORES"] == cores
        assert seen["CUDA_MPS_PIPE_DIRECTORY"] is None


# CUDA's multi-process service

# Notes every call with the pipe's folder; as a daemon it leaves a control file there.
DAEMON = """
echo "$1$(if [ -z "$1" ]; then cat; fi) $CUDA_MPS_PIPE_DIRECTORY $CUDA_VISIBLE_DEVICES" >> "$MPS_CALLS"
if [ "$1" = -d ]; then touch "$CUDA_MPS_PIPE_DIRECTORY/control"; fi
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """What the daemon was asked for."""
    monkeypatch.setenv("MPS_CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr(mps, "PROBE", "")
    monkeypatch.setattr(mps, "SYSTEM_PIPES", str(tmp_path / "none"))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps.tempfile, "tempdir", str(tmp_path))

    def read():
        path = tmp_path / "calls"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    return read


def sharing(**how):
    return local.Local(local.Options(jobs=2), starts_mps=True, **how)


def test_a_daemon_serves_the_runs_of_one_command_and_ends_with_it(plan, recorder, on_path, calls):
    on_path(mps.DAEMON, DAEMON)
    executor = sharing(device="cuda", gpus=["GPU-a", "GPU-b"])
    assert "note" not in work(plan, executor)
    [(start, pipe, served), (end, same, _)] = calls()
    assert (start, end, same, served) == ("-d", "quit", pipe, "GPU-a,GPU-b")
    assert {seen["CUDA_MPS_PIPE_DIRECTORY"] for seen, _ in recorder()} == {pipe}
    assert not Path(pipe).parent.exists()


@pytest.mark.parametrize("how", ["missing", "refused", "broken"])
def test_runs_go_on_without_a_daemon_that_does_not_work(how, plan, recorder, on_path, calls, monkeypatch):
    reason = f"{mps.DAEMON} is not installed"
    if how == "refused":
        on_path(mps.DAEMON, "echo An instance of this daemon is already running >&2; exit 1")
        reason = "An instance of this daemon is already running"
    elif how == "broken":  # as where a GPU is in exclusive mode and another process has it
        on_path(mps.DAEMON, DAEMON)
        monkeypatch.setattr(mps, "PROBE", "import sys; sys.exit('cuInit returned CUDA error 805')")
        reason = "cuInit returned CUDA error 805"
    shown = work(plan, sharing())
    note = f"note: runs share a GPU without CUDA's multi-process service: {reason}"
    assert " ".join(shown.split()).count(note) == 1
    assert [seen["CUDA_MPS_PIPE_DIRECTORY"] for seen, _ in recorder()] == [None, None]
    if how == "broken":
        assert [call[0] for call in calls()] == ["-d", "quit"]  # nothing is left of it


def test_no_daemon_is_started_where_it_is_off_or_there_is_one(plan, on_path, calls, monkeypatch, tmp_path):
    on_path(mps.DAEMON, DAEMON)
    on_path("nvidia-smi", "printf '0, GPU-a\\n'")
    monkeypatch.setattr("voidrl.system.device.pick_device", torch.device)
    for options in ({"jobs": 2, "no_mps": True}, {"jobs": 1}):
        with local.make(plan, local.Options(devices="0", **options)):
            pass
    (tmp_path / "own").mkdir()
    (tmp_path / "own/control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "own"))
    with sharing():
        pass
    assert calls() == []


def test_the_daemon_ends_even_if_the_command_is_killed(on_path, calls, tmp_path):
    on_path(mps.DAEMON, DAEMON)
    code = (
        "from voidrl.experiments.executors import mps; import os, signal; mps.PROBE = '';"
        f"mps.tempfile.tempdir = {str(tmp_path)!r}; mps.mps_daemon().__enter__();"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    until(lambda: [call[0] for call in calls()] == ["-d", "quit"])
