"""Cells that differ in their seed alone, trained in one process: each is the cell that it is alone."""

import io
import json
import os
import re
import signal
import sys

import pytest
from tiny_runs import assert_same_run

from voidrl.config import to_json
from voidrl.errors import ConfigError
from voidrl.experiments import cell as cell_module
from voidrl.experiments import cells, run
from voidrl.experiments.board import Board
from voidrl.experiments.cell import BAD_INPUT, DONE, INTERRUPTED, do_job
from voidrl.experiments.executors import local, make_options
from voidrl.experiments.executors.base import log_path
from voidrl.experiments.executors.devices import Gpu
from voidrl.experiments.format import read_experiment
from voidrl.experiments.planner import make_plan
from voidrl.experiments.request import ExperimentRequest
from voidrl.experiments.state import CellState, state_of
from voidrl.machine import GB
from voidrl.runs import locks
from voidrl.runs.experiment_record import read_failure

WALKS = """
title = "Walks"
tasks = ["own_envs:good"]
seeds = [1, 2, 3]
measures = ["return"]
threads = 1

[config]
warmup_steps = 8
learner = { batch_size = 8, hidden_dim = 8, encoder = { feature_dim = 4 } }
log = { tensorboard = false, log_every_steps = 8, checkpoint_every_steps = 16 }

[train]
steps = 32

[evaluation]
episodes = 2

[methods.scratch]
phases = ["train"]
"""


@pytest.fixture
def walks(tmp_path):
    path = tmp_path / "walks.toml"
    path.write_text(WALKS)
    return lambda out: make_plan(read_experiment(path), ExperimentRequest(device="cpu"), tmp_path / out)


def test_cells_of_one_process_are_those_of_a_process_each(walks, monkeypatch, capsys):
    monkeypatch.setattr(cell_module.sys, "argv", ["voidrl"])
    monkeypatch.setattr(locks, "adopt", lambda lock: None)
    at_once, alone = walks("at once"), walks("alone")
    jobs = [run.make_job(at_once, cell, ["voidrl"]) for cell in at_once.cells]
    jobs[1]["config"] = {**jobs[1]["config"], "env": {**jobs[1]["config"]["env"], "id": "own_envs:raising"}}
    reader, writer = os.pipe()
    for job in jobs:
        log_path(at_once.out, job["cell"]).parent.mkdir(parents=True, exist_ok=True)
    cells._work({"jobs": jobs, "report": writer})
    os.close(writer)
    with os.fdopen(reader) as reports:
        codes = dict(map(json.loads, reports))
    names = [cell.folder for cell in at_once.cells]
    assert codes == dict(zip(names, (DONE, BAD_INPUT, DONE), strict=True))
    assert "the wheel fell off" in read_failure(at_once.out, names[1])
    for number in (0, 2):
        cell = alone.cells[number]
        do_job(run.make_job(alone, cell, ["voidrl"]))
        assert_same_run(alone.path(cell), at_once.path(cell), steps=32)
        assert state_of(cell, at_once.path(cell)).kind == "done"


def test_each_cell_has_its_own_log(tmp_path):
    shared = io.StringIO()
    stream = cells.OutputOfCell(shared)
    print("from a library", file=stream)
    with (tmp_path / "cell.log").open("w") as log:
        token = cells._log.set(log)
        print("from the cell", file=stream)
        cells._log.reset(token)
    assert shared.getvalue() == "from a library\n"
    assert (tmp_path / "cell.log").read_text() == "from the cell\n"


# The executor

# Reports its cells but the last one as done, then ends as that one's process would.
STUB = """
import json, os, sys
asked = json.loads(sys.stdin.readline())
jobs = asked.get("jobs", [asked])
cells = [job["cell"] for job in jobs]
with open(sys.argv[1], "a") as file:
    file.write(json.dumps(cells) + "\\n")
for job in jobs:
    os.fstat(job["lock"])  # which it has inherited
for cell in cells[:-1]:
    os.write(asked["report"], (json.dumps([cell, 0]) + "\\n").encode())
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """A plan of six cells, three seeds of two methods, whose processes are stubs; and their groups."""
    request = ExperimentRequest(methods=("random", "apt"), seeds=(1, 2, 3))
    plan = make_plan(read_experiment("demo"), request, tmp_path / "out")
    path = tmp_path / "groups"
    path.touch()

    def use(code=0):
        command = [sys.executable, "-S", "-c", STUB, str(path), str(code)]
        monkeypatch.setattr(local, "cell_command", lambda *_: command)

    done: set[str] = set()
    monkeypatch.setattr(run, "update_record", lambda plan: None)
    monkeypatch.setattr(
        run, "state_of", lambda cell, _: CellState("done" if cell.folder in done else "missing")
    )
    poll = local.Local.poll

    def polled(executor):
        ended = poll(executor)
        done.update(cell for cell, end in ended.items() if end.code == DONE)
        return ended

    monkeypatch.setattr(local.Local, "poll", polled)
    use()
    return plan, use, lambda: [json.loads(line) for line in path.read_text().splitlines()]


def work(plan, **options):
    executor = local.make(plan, local.Options(devices="cpu", **options))
    return run.run_plan(plan, executor, command=["voidrl"], board=Board(io.StringIO()))


@pytest.mark.parametrize("together", [1, 2, 3, 8])
def test_cells_that_differ_in_their_seed_share_a_process(demo, together):
    plan, _, groups = demo
    first_phase = [cell for cell in plan.cells if cell.phase == "pretrain"]
    outcome = work(plan, together=together)
    assert outcome.ok
    found = [group for group in groups() if group[0] in {cell.folder for cell in first_phase}]
    assert sorted(cell for group in groups() for cell in group) == sorted(cell.folder for cell in plan.cells)
    assert max(map(len, found)) == min(together, 3)
    for group in groups():
        assert len({cell.rpartition("/")[0] for cell in group}) == 1  # one method, one phase


def test_what_a_process_does_not_report_ends_as_it_does(demo):
    plan, use, groups = demo
    use(code=1)
    outcome = work(plan, together=3)
    lasts = {group[-1] for group in groups()}
    assert {*outcome.failed} == lasts
    assert all("ended with exit status 1" in why for why in outcome.failed.values())


def test_a_stop_drops_what_has_not_been_started(demo, tmp_path):
    plan, _, groups = demo
    executor = local.make(plan, local.Options(devices="cpu", together=3))
    first, *_ = plan.cells
    lock = locks.acquire(locks.cell_lock_path(plan.out, first.folder))
    with executor:
        assert executor.has_room(first.folder)
        executor.submit(run.make_job(plan, first, ["voidrl"], lock))
        locks.release(lock)
        executor.stop()
        assert {cell: end.code for cell, end in executor.poll().items()} == {first.folder: INTERRUPTED}
    assert groups() == []
    again = locks.acquire(locks.cell_lock_path(plan.out, first.folder))
    assert again is not None  # nobody holds it any more
    locks.release(again)


def test_cells_of_one_process_have_one_gpu_and_one_slot_of_it(demo, monkeypatch):
    plan, _, groups = demo
    gpus = [Gpu(0, "GPU-a", 80 * GB, 80 * GB), Gpu(3, "GPU-d", 70 * GB, 80 * GB)]
    settings = {c.folder: local.settings_of(c.phase, to_json(c.config), c.evaluation) for c in plan.cells}
    options = local.Options(devices="0,3", together=3)
    executor = local.Local(options, device="cuda", gpus=gpus, settings=settings)
    monkeypatch.setattr(executor._placement, "_read", lambda: gpus)
    shown = io.StringIO()
    assert run.run_plan(plan, executor, command=["voidrl"], board=Board(shown)).ok
    assert max(map(len, groups())) == 3
    places = dict(re.findall(r"^(\S+): .* steps on (cuda:\d)", shown.getvalue(), re.MULTILINE))
    for group in groups():
        assert len({places[cell] for cell in group}) == 1
    assert {*places.values()} == {"cuda:0", "cuda:3"}
    assert not executor._placement.cells


def test_a_process_that_is_killed_ends_all_its_cells(demo, monkeypatch):
    plan, _, _ = demo
    kill = [sys.executable, "-S", "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    monkeypatch.setattr(local, "cell_command", lambda *_: kill)
    outcome = work(plan, together=3)
    assert len(outcome.failed) == len([cell for cell in plan.cells if cell.source is None])
    name = signal.Signals(signal.SIGKILL).name
    assert all(f"was ended by {name}" in why for why in outcome.failed.values())


@pytest.mark.parametrize("number", [0, -1])
def test_a_bad_number_is_refused(number):
    with pytest.raises(ConfigError, match=f"together = {number}"):
        local.Options(together=number)


def test_other_executors_have_no_such_option():
    with pytest.raises(ConfigError, match="--together cannot be used with --on slurm: it belongs to"):
        make_options("slurm", {"together": 2})
