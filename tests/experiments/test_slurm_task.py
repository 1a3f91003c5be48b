"""The task of a SLURM job, run by submitit's local executor: signals, requeues, and what it returns."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from voidrl.experiments.executors.slurm_task import CellTask

submitit = pytest.importorskip("submitit")
STUB = [sys.executable, "-S", str(Path(__file__).with_name("stub_cell.py"))]


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)
    return found


def stub_task(root, *codes, progress=True):
    folder = root / "maze/apt/seed1"
    folder.mkdir(parents=True)
    (folder / "stub.json").write_text(json.dumps({"codes": codes, "progress": progress}))
    job = {"root": str(root), "cell": "maze/apt/seed1", "command": ["voidrl", "experiment"]}
    return CellTask(job, STUB, {}, root, root / "logs/maze/apt/seed1.log")


def start(root, task):
    executor = submitit.LocalExecutor(root / "slurm", max_num_timeout=100)
    executor.update_parameters(timeout_min=5, signal_delay_s=1)
    return executor.submit(task)


def starts(root):
    path = root / "maze/apt/seed1/starts.txt"
    return path.read_text().splitlines() if path.is_file() else []


def task_process(job):
    """The process that SLURM would signal: the child of submitit's local controller."""

    def find():
        children = Path(f"/proc/{job.job_id}/task/{job.job_id}/children").read_text().split()
        return int(children[0]) if children else None

    return until(find)


@pytest.fixture(autouse=True)
def in_path(monkeypatch):
    source = Path(__file__).parents[2] / "src"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]))


def test_the_signal_before_the_limit_requeues_the_cell(tmp_path):
    job = start(tmp_path, stub_task(tmp_path, 75, 0))
    until(lambda: len(starts(tmp_path)) == 1)
    os.kill(task_process(job), signal.SIGUSR2)
    assert job.result() == 0
    log = (tmp_path / "logs/maze/apt/seed1.log").read_text()
    assert [line for line in log.splitlines() if line.startswith("start")] == [
        "start 1 of maze/apt/seed1",
        "start 2 of maze/apt/seed1",
    ]
    assert "requeued at step 100" in log
    assert all(line.endswith(" True") for line in starts(tmp_path))  # USR2 to all processes kills no cell


def test_a_cell_without_progress_is_given_up(tmp_path):
    task = stub_task(tmp_path, "75!", progress=False)
    for _ in range(3):  # the first end is at step 0, which is no progress from then on
        task._start(signal.SIGUSR2)
        task = task.checkpoint().function
        assert task.last_checkpoint == 0
    task._start(signal.SIGUSR2)
    assert task.checkpoint() is None  # its exit status is returned, for the driver to judge


def test_progress_allows_any_number_of_requeues(tmp_path):
    task = stub_task(tmp_path, "75!")
    for step in (100, 200, 300, 400, 500):
        task._start(signal.SIGUSR2)
        task = task.checkpoint().function
        assert (task.last_checkpoint, task.idle_requeues) == (step, 0)


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (2, 2), ("9!", -signal.SIGKILL)])
def test_other_ends_are_returned_as_they_are(tmp_path, code, expected, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # of this process
    assert stub_task(tmp_path, code)() == expected
    assert len(starts(tmp_path)) == 1


@pytest.mark.slow
def test_exit_status_75_requeues(tmp_path):
    job = start(tmp_path, stub_task(tmp_path, "75!", "75!", 0))
    assert job.result() == 0
    assert len(starts(tmp_path)) == 3


@pytest.mark.parametrize("code", [0, 75])
def test_a_canceled_cell_that_is_done_has_a_result(tmp_path, code, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    task = stub_task(tmp_path, code)
    task._terminated = True  # by a signal that came at its end
    if code == 0:
        assert task() == 0
    else:
        with pytest.raises(SystemExit, match="75"):  # the state of the job says how it ended
            task()


def test_a_signal_that_comes_when_the_cell_is_done_requeues_nothing(tmp_path):
    task = stub_task(tmp_path, 0)
    task._start(signal.SIGUSR2)
    assert task._wait() == 0
    assert task.checkpoint() is None


@pytest.mark.slow
def test_a_canceled_job_stops_with_a_checkpoint_and_leaves_the_rest_to_slurm(tmp_path):
    job = start(tmp_path, stub_task(tmp_path, 75, 0))
    until(lambda: len(starts(tmp_path)) == 1)
    os.kill(task_process(job), signal.SIGTERM)
    until(job.done)
    assert len(starts(tmp_path)) == 1
    assert not job.paths.result_pickle.exists()
