"""A custom experiment: failures are reported and stop nothing else, and what is done is not done again."""

import io
import json
import re
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from done_cells import make_done, make_started, plan_of, write_status
from tiny_runs import rows

from voidrl.cli import main as cli
from voidrl.errors import RunInterrupted
from voidrl.experiments import board as board_module
from voidrl.experiments import run
from voidrl.experiments.board import Board, progress_line
from voidrl.experiments.executors import local
from voidrl.experiments.experiment import run_experiment
from voidrl.experiments.state import state_of
from voidrl.runs import locks
from voidrl.runs.experiment_record import read_failure
from voidrl.runs.status import read_status
from voidrl.system.terminal.signals import StopSignals

OWN = """
title = "Walks"
tasks = ["own_envs:good", "own_envs:raising"]
seeds = [3]
measures = ["return", "coverage/cells"]
[config]
warmup_steps = 8
learner = { batch_size = 8, hidden_dim = 8, encoder = { feature_dim = 4 } }
log = { tensorboard = false, log_every_steps = 8, checkpoint_every_steps = 16 }
[pretrain]
steps = 40
[finetune]
steps = 24
config = { finetune.warmup_steps = 4 }
[evaluation]
episodes = 3
[methods.apt]
method = "apt"
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


def test_a_failed_cell_is_reported_and_stops_no_other(own, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["experiment", str(own), "--out", str(out), "--jobs", "2", "--no-report", "--device", "cpu"]
    plan = plan_of(own, out, device="cpu")
    killed = make_started(plan, plan.cells[0])  # killed before its first checkpoint: it starts again
    date = (killed / "environment.json").read_text()
    assert cli.main(words) == 1
    said = capsys.readouterr()
    good, bad = "own_envs-good", "own_envs-raising"
    assert re.search(rf"{good}/apt/seed3: done in \d+s \(2 of 4\)", said.err)
    [failed] = [line for line in said.err.splitlines() if line.startswith("failed: ")]
    assert re.search(r"raising/apt-pretrain/seed3: .*RuntimeError\('the wheel fell off'\).*step 24", failed)
    log = out / "logs" / bad / "apt-pretrain/seed3.log"
    assert failed.endswith(f"; see {log}")
    assert "the wheel fell off" in log.read_text()
    assert (
        read_failure(out, f"{bad}/apt-pretrain/seed3") == read_status(out / bad / "apt-pretrain/seed3").error
    )
    assert f"not started: {bad}/apt/seed3 waits for {bad}/apt-pretrain/seed3, which failed" in said.err
    assert "voidrl experiment" in said.err.splitlines()[-1]  # tries again

    # The good one is done: pre-trained, fine-tuned, evaluated, and in the table.
    pretrained, tuned = (out / good / arm / "seed3" for arm in ("apt-pretrain", "apt"))
    assert rows(pretrained)[-1]["step"] == 40
    assert (pretrained / "environment.json").read_text() != date
    config = json.loads((tuned / "config.json").read_text())
    assert (config["phase"], config["steps"], config["finetune"]["warmup_steps"]) == ("finetune", 24, 4)
    assert [row["updates"] for row in rows(tuned) if "updates" in row][-1] == 40  # (24 − 4) · 2
    saved = json.loads((tuned / "evaluation.json").read_text())
    assert saved["episodes"] == len(saved["lengths"]) == 3
    zero_shot = json.loads((pretrained / "evaluation.json").read_text())
    assert (zero_shot["agent"]["steps"], zero_shot["episodes"]) == (40, 3)
    command = json.loads((tuned / "environment.json").read_text())["command"]
    assert command.startswith("voidrl experiment ")
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    cells = rows(pretrained)[-1]["coverage/cells"]
    found = [line for line in lines if line.startswith("own_envs:good apt ")]
    assert any(f" {cells} " in line and line.endswith(" 1 (3), one seed 40 1 done") for line in found), found
    assert any("(fine-tuning)" in line and line.endswith(" 40 + 24 1 done") for line in found), found

    # Asked for alone, what is done is only shown; the tasks that fail are left as they are.
    before = (tuned / "evaluation.json").stat().st_mtime_ns
    assert cli.main([*words, "--tasks", "own_envs-good"]) == 0
    assert (tuned / "evaluation.json").stat().st_mtime_ns == before
    cells = json.loads((out / "experiment.json").read_text())["cells"]
    assert [cell["folder"] for cell in cells] == [  # with the one of the failed task that was started
        f"{good}/apt-pretrain/seed3", f"{good}/apt/seed3", f"{bad}/apt-pretrain/seed3",
    ]  # fmt: skip


@pytest.fixture
def done(own, tmp_path):
    """The arguments of `run_experiment` for one that is done."""
    plan = plan_of(own, tmp_path / "out", device="cpu")
    for cell in plan.cells:
        make_done(plan, cell)
    return {"name": own, "request": plan.request, "out": plan.out}


def test_a_table_that_cannot_be_printed_does_not_fail_the_experiment(done, monkeypatch, capsys):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert run_experiment(**done, report=False) == 0
        monkeypatch.undo()
    lost = "output was lost (No space left on device); the run continues"
    assert f"{lost}; all results are in {done['out']}" in capsys.readouterr().err


def test_a_signal_during_the_report_asks_for_the_same_command(done, monkeypatch):
    def signalled(*args, **kwargs):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("voidrl.report.page.write_page", signalled)
    with (
        pytest.raises(RunInterrupted, match="by SIGTERM; to do what is missing"),
        StopSignals(raises=True),
    ):
        run_experiment(**done)


@pytest.mark.parametrize("requested", ["SIGTERM", ""])
def test_a_run_that_a_scheduler_stops_before_this_process_does_is_no_failure(own, tmp_path, requested):
    plan = plan_of(own, tmp_path / "out", device="cpu")
    executor, folder = local.Local(local.Options()), plan.cells[0].folder
    scheduler = run.Scheduler(plan, executor, ["voidrl"], Board(io.StringIO()))
    executor._children[folder] = SimpleNamespace(poll=lambda: 75, stdin=io.BytesIO())
    scheduler.running[folder] = 0.0
    scheduler.reap(stopping=bool(requested))
    assert not scheduler.running
    assert folder in scheduler.left  # to be resumed
    assert bool(scheduler.failed) is not bool(requested)


@pytest.mark.slow
def test_a_signal_stops_children_with_checkpoints(own, tmp_path):
    own.write_text(OWN.replace("steps = 40", "steps = 4_000_000"))
    plan = plan_of(own, tmp_path, tasks=("own_envs-good",), device="cpu")
    folder = plan.path(plan.cells[0])
    stopper = threading.Event()

    def stop_when_it_trains():
        while not stopper.wait(0.05):
            if state_of(plan.cells[0], folder).steps >= 32:
                signal.raise_signal(signal.SIGINT)
                return

    watcher = threading.Thread(target=stop_when_it_trains)
    watcher.start()
    try:
        with pytest.raises(RunInterrupted, match=r"stopped by SIGINT with 0 of 2 runs done; to resume"):
            run_experiment(own, request=plan.request, out=tmp_path, report=False)
    finally:
        stopper.set()
        watcher.join()
    assert read_status(folder).signal == "SIGTERM"
    step = state_of(plan.cells[0], folder).steps
    assert step >= 32
    assert rows(folder)[-1]["step"] == step  # nothing of it is lost


def test_on_a_terminal_the_lines_are_cut_to_its_width(tmp_path, monkeypatch):
    plan = plan_of("demo", tmp_path)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(board_module, "DRAW_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(board_module, "width_of", lambda stream: 30)
    monkeypatch.setenv("TERM", "xterm")
    with Board(terminal) as board:
        board.draw([(cell, plan.path(cell)) for cell in plan.cells])
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in terminal.getvalue().splitlines()]
    assert "maze/random/seed2: 0/16k, sta…" in lines
    assert max(map(len, lines)) == 30


def test_progress_is_that_of_voidrl_status(tmp_path):
    plan = plan_of("demo", tmp_path)
    cell = next(cell for cell in plan.cells if cell.evaluation is not None and cell.config.steps == 8000)
    folder = plan.path(cell)

    def shown():
        return progress_line(cell, folder).removeprefix(f"{cell.folder}: ")

    assert shown() == "0/8k, starting"
    make_started(plan, cell)
    (folder / "metrics.jsonl").write_text('{"step": 200, "time/steps_per_second": 5940.0}\n')  # warm-up
    lock = locks.acquire(folder / locks.RUN_LOCK)
    for state, fields, line in [
        ("running", {"steps": 4000, "rate": 100.0}, "4k/8k, 100 steps/s, eta 40s"),
        ("running", {"steps": 8000, "rate": 100.0}, "8k/8k, saving"),
        ("done", {"steps": 8000, "rate": 100.0}, "8k/8k, evaluating"),
        ("stopped", {"steps": 4000, "rate": 100.0}, "4k/8k, starting"),  # it is being resumed
    ]:
        write_status(folder, state, total_steps=8000, **fields)
        assert shown() == line
    (folder / "status.json").write_text("{")
    assert shown() == "200/8k, starting"
    locks.unlock(lock)


def test_a_log_has_a_line_for_each_run_every_ten_seconds_and_then_every_minute(tmp_path, monkeypatch):
    plan = plan_of("demo", tmp_path)
    folder = make_started(plan, plan.cells[0])
    write_status(folder, "running", steps=4000, total_steps=16_000, rate=100.0)
    lock = locks.acquire(folder / locks.RUN_LOCK)
    running = [(cell, plan.path(cell)) for cell in plan.cells[:2]]
    now, stream = 0, io.StringIO()
    monkeypatch.setattr("voidrl.experiments.board.time.monotonic", lambda: now)
    board = Board(stream)
    for now in range(190):  # noqa: B007
        board.draw(running)
    lines = stream.getvalue().splitlines()
    assert lines[:2] == [
        "maze/random/seed2: 4k/16k, 100 steps/s, eta 2m00s",
        "maze/apt/seed2: 0/16k, starting",
    ]
    assert len(lines) == 2 * (5 + 2)  # at 10, 20 … 50, 110 and 170 seconds
    # On a cluster a thousand may be queued: the log has few lines, and those that train come first.
    queued = [(plan.cells[1], tmp_path / str(i)) for i in range(1000)]
    now, before = now + 60, len(lines)
    board.draw([*queued, running[0]])
    more = stream.getvalue().splitlines()[before:]
    assert more[0] == lines[0]
    assert len(more) == 13
    assert more[-1] == "… and 989 more"
    locks.unlock(lock)
