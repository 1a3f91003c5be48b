"""`voidrl status`: what runs do, from files that they may be writing, wherever they run."""

import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from pseudo_terminals import PseudoTerminal, widest
from rich.console import Console
from synthetic_runs import write_evaluation, write_experiment, write_json, write_run
from tiny_runs import until

from voidrl.cli import main as cli
from voidrl.cli.status import drawn, print_status
from voidrl.errors import RunFolderError
from voidrl.report import live
from voidrl.report.live import Watch
from voidrl.runs import locks
from voidrl.runs import status as status_module
from voidrl.runs.experiment_record import write_failure

OTHER = "node7.cluster.example"


def beat(folder, state="running", *, age=3.0, host=OTHER, **fields):
    """A status as a process on another machine has written it `age` seconds ago."""
    folder.mkdir(parents=True, exist_ok=True)
    at = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    fields = {"steps": 40, "total_steps": 100, "pid": 7, "rate": 5.0, **fields}
    write_json(folder / "status.json", {"state": state, "host": host, "heartbeat": at, **fields})


@pytest.fixture
def experiment(tmp_path):
    """Two pre-trainings and what is made of them: done, running elsewhere, failed, waiting."""
    tuned = {"phase": "finetune", "evaluated": True}
    cells = [
        {"folder": "maze/apt-pretrain/seed1"},
        {"folder": "maze/apt-pretrain/seed2", "seed": 2},
        {"folder": "maze/apt/seed1", "source": "maze/apt-pretrain/seed1", **tuned},
        {"folder": "maze/apt/seed2", "seed": 2, "source": "maze/apt-pretrain/seed2", **tuned},
    ]
    write_experiment(tmp_path, cells, title="Mazes")
    done = write_run(tmp_path / "maze/apt-pretrain/seed1", rows=[{"step": 100, "coverage/cells": 21}])
    scored = {"score_name": "coverage/cells", "score": 21, "score_step": 100}
    beat(done, "done", steps=100, rate=8.0, host=socket.gethostname(), **scored)
    running = tmp_path / "maze/apt-pretrain/seed2"
    write_run(running, seed=2, rows=[{"step": 40}])
    beat(running, device="cuda:1", ranks=4, score_name="episode/return", score=1234.5, score_step=38)
    return tmp_path


def states(root):
    return {run.name: (run.state, run.note) for run in Watch([root]).look().runs}


def test_an_experiment_has_all_its_cells_also_those_that_have_not_started(experiment):
    snapshot = Watch([experiment]).look()
    assert snapshot.title == "Mazes"
    assert states(experiment) == {
        "maze/apt-pretrain/seed1": ("done", ""),
        "maze/apt-pretrain/seed2": ("running", ""),
        "maze/apt/seed1": ("waiting", ""),
        "maze/apt/seed2": ("waiting", "waits for maze/apt-pretrain/seed2"),
    }
    first, second, *_ = snapshot.runs
    assert (first.score_name, first.score, first.score_step) == ("coverage/cells", 21, 100)
    assert (second.steps, second.total_steps, second.rate, second.seconds_left) == (40, 100, 5, 12)
    assert (second.score, second.host, second.device, second.ranks) == (1234.5, OTHER, "cuda:1", 4)
    assert 3 <= second.heartbeat_age < 60
    assert snapshot.counts == {"done": 1, "running": 1, "failed": 0, "stopped": 0, "pruned": 0, "waiting": 2}
    # One runs at a time: 60 steps at 5 per second, then twice 100 at 6.5, the median of what is known.
    assert snapshot.seconds_left == pytest.approx(60 / 5 + 2 * 100 / 6.5)


def test_what_only_the_experiment_knows(experiment):
    tuned = experiment / "maze/apt/seed1"
    lock = locks.cell_lock_path(experiment, "maze/apt/seed1")
    held = locks.acquire(lock)
    assert states(experiment)["maze/apt/seed1"] == ("starting", "")  # its process is importing
    write_run(tuned, phase="finetune", rows=[{"step": 100}])
    beat(tuned, "done", steps=100, host=socket.gethostname())
    assert states(experiment)["maze/apt/seed1"] == ("evaluating", "")
    locks.release(held)
    assert states(experiment)["maze/apt/seed1"] == ("waiting", "its evaluation is missing")
    os.utime(lock, (0, 0))
    write_failure(experiment, "maze/apt/seed1", "the simulator is gone")
    assert states(experiment)["maze/apt/seed1"] == ("failed", "the simulator is gone")
    write_evaluation(tuned, [3.0, 4.0])
    run = Watch([experiment]).look().runs[2]
    assert (run.state, run.score_name, run.score) == ("done", "eval/return", 3.5)


def test_why_a_run_has_ended(tmp_path):
    write_run(tmp_path / "a", rows=[{"step": 40}])
    beat(tmp_path / "a", age=status_module.STALE_SECONDS * 2)
    state, note = states(tmp_path)["a"]
    assert state == "interrupted"
    assert re.fullmatch(f"no heartbeat from {OTHER} for 4m..s: its process or its node is gone", note)
    beat(tmp_path / "a", host=socket.gethostname())
    assert states(tmp_path)["a"] == ("interrupted", "its process ended and wrote no final state")
    beat(tmp_path / "a", "stopped", callback=status_module.PRUNING)
    assert states(tmp_path)["a"] == ("pruned", "worse than others at the same step")


def test_torn_damaged_and_missing_files(tmp_path):
    row = {"step": 30, "phase": "train", "episode/return": 2.0, "time/steps_per_second": 10.0}
    torn = write_run(tmp_path / "torn", rows=[row])
    beat(torn, steps=30, rate=None)
    with (torn / "metrics.jsonl").open("a") as file:
        file.write('{"step": 35, "episode/re')
    damaged = write_run(tmp_path / "damaged", rows=[row])
    (damaged / "status.json").write_text("{torn")
    for name, steps in (("lost", 30), ("whole", 100)):
        (write_run(tmp_path / name, rows=[{**row, "step": steps}]) / "status.json").unlink()
    found = {run.name: run for run in Watch([tmp_path]).look().runs}
    assert (found["torn"].rate, found["torn"].seconds_left) == (None, None)
    assert (found["damaged"].state, found["damaged"].steps) == ("failed", 30)
    assert "status.json is damaged: remove it" in found["damaged"].note
    assert [found[name].state for name in ("lost", "whole")] == ["interrupted", "done"]
    assert (found["lost"].steps, found["lost"].total_steps) == (30, 100)


def test_a_look_at_a_thousand_cells_enters_none_and_tries_few_locks(tmp_path, monkeypatch):
    folders = [f"task{i % 50}/seed{i // 50}" for i in range(1000)]
    write_experiment(tmp_path, [{"folder": folder, "evaluated": False} for folder in folders])
    for folder in folders[:800]:
        beat(tmp_path / folder, "done" if len(folder) % 2 else "running", score=1.0, score_name="x")
    looked, walked = [], []
    is_held, scandir = locks.is_held, os.scandir
    monkeypatch.setattr(locks, "is_held", lambda path: looked.append(path) or is_held(path))
    monkeypatch.setattr(os, "scandir", lambda path: walked.append(path) or scandir(path))
    watch = Watch([tmp_path])
    assert len(watch.look().runs) == 1000
    watch.look()
    assert len(walked) == 51  # the folders above the cells, once
    # No lock of a run that is done, or alive elsewhere; one that has not started may be about to.
    found = {path.parent.relative_to(tmp_path).as_posix() for path in looked if path.name == locks.RUN_LOCK}
    assert found == {*folders[800:]}


def test_paths(experiment, tmp_path):
    one = Watch([experiment / "maze/apt-pretrain/seed1"])
    assert one.is_of_one_run
    assert [run.name for run in one.look().runs] == ["seed1"]
    by_file = Watch([experiment / "maze/apt-pretrain/seed1/metrics.jsonl"])
    assert [run.path.name for run in by_file.look().runs] == ["seed1"]
    (experiment / "maze/apt").mkdir()
    part = Watch([experiment / "maze/apt"])  # nothing in it has started
    assert [run.state for run in part.look().runs] == ["waiting", "waiting"]
    both = Watch([experiment / "maze/apt-pretrain/seed1", experiment / "maze/apt-pretrain/seed2"])
    assert [run.name for run in both.look().runs] == ["seed1", "seed2"]
    other = write_run(tmp_path / "extra", rows=[{"step": 100}])  # a run in it that is none of its cells
    assert [run.name for run in Watch([experiment]).look().runs][-1] == other.name
    (experiment / "experiment.json").write_text("{torn")
    assert len(Watch([experiment]).look().runs) == 3


def test_new_runs_are_found_while_it_watches(experiment, monkeypatch):
    watch = Watch([experiment])
    assert len(watch.look().runs) == 4
    write_run(experiment / "late", rows=[{"step": 1}])
    monkeypatch.setattr(live, "FIND_SECONDS", 0.0)
    assert len(watch.look().runs) == 5


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "there is nothing at runs: expected a run"),
        (["nowhere"], "there is nothing at nowhere: expected a run"),
        (["."], ". holds no runs: expected a run folder (one with config.json and metrics.jsonl)"),
        ([".", "--interval", "0"], "--interval = 0.0 cannot be used: expected a number of seconds above 0"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["status", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_in_a_pipe_it_prints_one_table_and_ends(experiment, capsys):
    failed = write_run(
        experiment / "maze/apt/seed2", phase="finetune", error="it diverged", rows=[{"step": 9}]
    )
    beat(failed, "failed", error="it diverged", steps=9)
    assert cli.main(["status", str(experiment)]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = [line.split() for line in lines]
    assert cells[0] == ["run", "state", "steps", "rate", "eta", "score", "node", "beat"]
    assert cells[2][:6] == ["maze/apt-pretrain/seed2", "running", "40/100", "5/s", "12s", "return"]
    assert cells[2][6:10] == ["1.23k", "node7", "cuda:1", "×4"]
    assert lines[-2] == "failed: maze/apt/seed2: it diverged"
    assert lines[-1].startswith("4 runs: 1 done, 1 running, 1 failed, 1 waiting; eta of all ")


def test_as_data_and_without_a_path_of_runs(experiment, monkeypatch, capsys):
    (experiment.parent / "runs").symlink_to(experiment)
    monkeypatch.chdir(experiment.parent)
    assert cli.main(["status", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["summary"]["runs"] == 4
    assert data["summary"]["steps"] == 140
    assert [run["group"] for run in data["runs"]] == ["done", "running", "waiting", "waiting"]
    assert data["runs"][1]["heartbeat_age"] >= 3


def test_one_run_has_all_details(tmp_path, capsys):
    run = write_run(tmp_path / "run", rows=[{"step": 60}])
    (run / "log.txt").write_text("started\n")
    beat(run, "failed", error="env broke", steps=60, checkpoint=50, rate=None)
    assert cli.main(["status", str(run)]) == 0
    found = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert found["state"] == "failed"
    assert found["error"] == "env broke"
    assert found["checkpoint"] == "step 50"
    assert found["log"] == str(run / "log.txt")
    assert found["resume"] == f"voidrl resume {run}"


@pytest.mark.parametrize("columns", [60, 120])
def test_the_table_fits_the_terminal_and_keeps_runs_apart(experiment, columns, monkeypatch, plain_terminal):
    snapshot = Watch([experiment]).look()
    with PseudoTerminal(columns) as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal.stream)
        print_status(snapshot)
    lines = terminal.lines()
    assert widest(lines) <= columns
    assert len({line.split()[0] for line in lines[2:6]}) == 4
    assert ("node7 cuda:1 ×4" in lines[3]) == (columns == 120)
    assert all(word in lines[3] for word in ("running", "40/100", "12s"))


def test_what_is_redrawn_has_the_active_runs_first(experiment):
    console = Console(width=80, file=io.StringIO())
    console.print(drawn(Watch([experiment]).look(), 80, active_first=True))
    sums, _, first, *_ = console.file.getvalue().splitlines()
    assert sums.startswith("4 runs: 1 done, 1 running, 2 waiting")
    assert "running" in first


@pytest.mark.slow
def test_on_a_terminal_it_refreshes_until_ctrl_c(experiment):
    code = "from voidrl.cli.main import main; raise SystemExit(main())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "CI": ""}
    with PseudoTerminal(100) as terminal:
        command = [sys.executable, "-c", code, "status", str(experiment), "--interval", "0.1"]
        process = subprocess.Popen(command, stdout=terminal.stream, stderr=subprocess.PIPE, env=environment)
        beat(experiment / "maze/apt-pretrain/seed2", steps=55)
        until(lambda: b"55/100" in terminal._bytes)
        beat(experiment / "maze/apt-pretrain/seed2", steps=66)
        until(lambda: b"66/100" in terminal._bytes)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read() == b""


def test_what_vanishes_is_not_shown_and_a_folder_that_does_is_a_sentence(tmp_path):
    kept = write_run(tmp_path / "runs/kept", rows=[{"step": 60}])
    gone = write_run(tmp_path / "runs/gone", rows=[{"step": 60}])
    watch = Watch([tmp_path / "runs"])
    assert len(watch.look().runs) == 2
    shutil.rmtree(gone)
    assert [run.name for run in watch.look().runs] == ["kept"]
    shutil.rmtree(kept)
    with pytest.raises(RunFolderError, match="runs holds no runs: expected"):
        watch.look()
    (tmp_path / "runs").rmdir()
    with pytest.raises(RunFolderError, match=r"there is nothing at .*runs"):
        watch.look()


def test_the_eta_of_all_takes_the_rates_of_the_same_method(tmp_path):
    names = ("random", "apt")
    cells = [{"folder": f"{arm}/seed{i}", "arm": arm, "seed": i} for arm in names for i in (1, 2)]
    write_experiment(tmp_path, cells)
    beat(tmp_path / "random/seed1", "done", steps=100, rate=1000.0)
    beat(tmp_path / "apt/seed1", steps=0, rate=1.0)
    snapshot = Watch([tmp_path]).look()
    assert snapshot.seconds_left == pytest.approx(100 + 0.1 + 100)  # one at a time
