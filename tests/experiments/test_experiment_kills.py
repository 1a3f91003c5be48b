"""`voidrl experiment demo --jobs 2`, killed, stopped and doubled: nothing lost, nothing done twice."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_runs import rows

from voidrl.cli import main as cli
from voidrl.experiments.format import read_experiment
from voidrl.experiments.planner import make_plan
from voidrl.experiments.request import ExperimentRequest
from voidrl.experiments.state import state_of
from voidrl.runs import checkpoint, locks
from voidrl.runs.metrics import last_rows
from voidrl.runs.status import read_status

CHANGES = {
    "log.checkpoint_every_steps": 48,
    "log.eval_every_steps": 0,
    "log.log_every_steps": 16,
    "learner.batch_size": 16,
    "representation.batch_size": 16,
    "learner.hidden_dim": 16,
    "updates_per_step": 0.25,
    "evaluation.episodes": 2,
}
SCALE = 0.03  # 480 steps, and 240 with the goal
PATIENCE_S = 180


def words(out):
    changes = [f"{name}={value}" for name, value in CHANGES.items()]
    options = [
        "--jobs",
        "2",
        "--steps-scale",
        str(SCALE),
        "--out",
        str(out),
        "--no-report",
        "--device",
        "cpu",
    ]
    return ["experiment", "demo", *options, "--set", *changes]


class Parent:
    """The command, in its own process."""

    def __init__(self, out):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "voidrl.cli.main", *words(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self):
        """Its exit code and its output."""
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said


def wait(what, until):
    """Until something is so, or an error that says what was not."""
    end = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < end, f"no {what} in {PATIENCE_S} s"
        time.sleep(0.01)


def attempts(plan, cell):
    """How often a process was started for a cell."""
    log = plan.out / "logs" / f"{cell.folder}.log"
    return log.read_text().count(" voidrl experiment demo ") if log.exists() else 0


def reached(folder):
    return next(last_rows(folder), {}).get("step", 0)


def is_held(plan, cell):
    return locks.is_held(locks.cell_lock_path(plan.out, cell.folder))


def files(folder):
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def is_done(plan, cell):
    return state_of(cell, plan.path(cell)).kind == "done"


def owner(plan, cell):
    """The processes of a cell and of the command that started it; None for one that is only just starting."""
    try:
        pid = int(locks.holder(locks.cell_lock_path(plan.out, cell.folder)).split()[0])
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (ValueError, OSError):
        return None
    return pid, int(stat.rpartition(")")[2].split()[1])


@pytest.mark.slow  # a shorter form is among the faults: "SIGKILL of an experiment"
def test_killed_and_doubled_it_loses_nothing_and_does_nothing_twice(tmp_path, capsys):
    request = ExperimentRequest(steps_scale=SCALE, changes=CHANGES, device="cpu")
    plan = make_plan(read_experiment("demo"), request, tmp_path)
    cells = {cell.arm.name: cell for cell in plan.cells}
    folder = {name: plan.path(cell) for name, cell in cells.items()}
    apt = cells["apt"]

    # The parent alone is killed: its children notice, write checkpoints and end by themselves.
    first = Parent(tmp_path)
    random = cells["random"]
    wait("APT's second checkpoint", lambda: reached(folder["apt"]) > 100 and is_done(plan, random))
    first.process.kill()
    first.end()
    wait("the children's end", lambda: not any(is_held(plan, cell) for cell in plan.cells))
    stopped_at = checkpoint.list_steps(folder["apt"] / "checkpoints")[-1]
    assert 100 < stopped_at < apt.config.steps
    assert reached(folder["apt"]) == stopped_at  # not a step is lost
    status = read_status(folder["apt"])
    assert (status.state, status.signal, status.steps) == ("stopped", "SIGTERM", stopped_at)
    before = {name: attempts(plan, cell) for name, cell in cells.items()}
    kept = {name: files(folder[name]) for name, cell in cells.items() if is_done(plan, cell)}

    # Two commands resume. One of them is killed with its children: the other takes over what it had.
    parents = [Parent(tmp_path), Parent(tmp_path)]
    wait("APT's next checkpoint", lambda: reached(folder["apt"]) > stopped_at + 60)
    _, killed = owner(plan, apt)
    owners = [owner(plan, cell) for cell in plan.cells if is_held(plan, cell)]
    os.kill(killed, signal.SIGKILL)
    for child in (child for child, parent in filter(None, owners) if parent == killed):
        os.kill(child, signal.SIGKILL)
    lost = [name for name, cell in cells.items() if not is_done(plan, cell)]
    assert "apt" in lost
    codes = {parent.process.pid: parent.end() for parent in parents}
    code, said = codes.pop(killed)
    assert code == -signal.SIGKILL
    [(code, said)] = codes.values()
    assert code == 0, said
    assert "maze/apt/seed2: left to process" in said
    assert ", taken over" in said
    assert "fine-tuned from APT" in said

    for name, cell in cells.items():
        assert is_done(plan, cell)
        steps = [row["step"] for row in rows(folder[name])]
        assert steps == sorted(set(steps))
        assert steps[-1] == cell.config.steps
        assert checkpoint.list_steps(folder[name] / "checkpoints")[-1] == cell.config.steps
        assert max(b - a for a, b in zip([0, *steps], steps, strict=False)) <= 32  # no gap where it went on
        assert read_status(folder[name]).state == "done"
        log = (folder[name] / "log.txt").read_text()
        assert log.count(f"{cell.phase} voidrl/PixelMaze") == 1, f"{name} was started again"
        assert "resumed at step 0" not in log
    for name, there in kept.items():
        assert files(folder[name]) == there
        assert attempts(plan, cells[name]) == before[name]
    assert attempts(plan, apt) == 3  # started, resumed by the one that was killed, and by the other
    resumed = re.findall(r"resumed at step (\d+)", (folder["apt"] / "log.txt").read_text())
    assert int(resumed[0]) == stopped_at < int(resumed[1])

    # Once more, when all is done: not a file changes, and the table is there again.
    there = files(tmp_path)
    assert cli.main(words(tmp_path)) == 0
    assert files(tmp_path) == there
    assert "fine-tuned from APT" in capsys.readouterr().out
