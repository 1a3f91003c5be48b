"""Tuning: trials are cells, and are resumed rather than drawn again."""

import json

import pytest
from done_cells import plan_of, write_status

from voidrl.errors import RunFolderError, RunInterrupted, VoidrlError
from voidrl.experiments import run as running
from voidrl.experiments import tune
from voidrl.experiments.board import Board
from voidrl.experiments.cell import DONE
from voidrl.experiments.executors.base import Ended, Executor
from voidrl.experiments.run import run_plan
from voidrl.runs.checkpoint import write_json_atomic

optuna = pytest.importorskip("optuna", reason="tuning needs optuna")
FILE = """
preset = "maze-demo"
measures = ["coverage/cells"]
tasks = [{ name = "maze", env = "voidrl/PixelMaze-v0?size=5" }]
[pretrain]
steps = 800
config = { log.log_every_steps = 100 }
[grid]
"learner.learning_rate" = { from = 1e-5, to = 1e-1, count = 5, log = true }
[methods.apt]
phases = ["pretrain"]
evaluation = false
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(running, "POLL_SECONDS", 0.0)


class Pretend(Executor):
    """Cells that write metrics of a known height, a row with every poll."""

    def __init__(self, root, height, jobs=2, failures=0, stops_after=None):
        self.root, self.height, self.jobs = root, height, jobs
        self.failures, self.stops_after = failures, stops_after
        self.jobs_left, self.submitted, self.polls = {}, [], 0

    def has_room(self):
        return len(self.jobs_left) < self.jobs

    def submit(self, job):
        folder = self.root / job["cell"]
        folder.mkdir(parents=True, exist_ok=True)
        write_json_atomic(folder / "config.json", job["config"])
        rows = (
            (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
        )
        self.jobs_left[job["cell"]] = (job, 100 * len(rows))
        self.submitted.append((job["cell"], 100 * len(rows)))

    def poll(self):
        self.polls += 1
        if self.polls == self.stops_after:
            raise RunInterrupted("the driver was stopped")
        return {cell: ended for cell in [*self.jobs_left] if (ended := self._advance(cell)) is not None}

    def _advance(self, cell):
        job, step = self.jobs_left[cell]
        folder, total = self.root / cell, job["config"]["steps"]
        if self.failures:
            self.failures -= 1
            del self.jobs_left[cell]
            return Ended(1)
        step += 100
        value = self.height(job["config"]["learner"]["learning_rate"]) * step / total
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "coverage/cells": value}) + "\n")
        self.jobs_left[cell] = (job, step)
        if step >= total:
            write_status(folder, "done", checkpoint=step, steps=step)
            del self.jobs_left[cell]
            return Ended(DONE)
        return None

    def stop(self):
        self.jobs_left.clear()

    def kill(self):
        self.jobs_left.clear()

    def __exit__(self, *exc):
        pass


@pytest.fixture
def tuned(tmp_path, capsys):
    """Runs `--tune`; returns the tuner, the executor and the outcome."""
    path = tmp_path / "search.toml"

    def run(number, *, text=FILE, height=lambda rate: 100.0, **pretend):
        path.write_text(text)
        plan = plan_of(path, tmp_path / "out", device="cpu", tune=number)
        executor = Pretend(plan.out, height, **pretend)
        with tune.open_tuner(plan) as tuner:
            outcome = run_plan(plan, executor, command=["voidrl"], board=Board(), tuner=tuner)
        return tuner, executor, outcome

    return run


def states(tuner):
    return [trial.state.name for trial in tuner.studies["apt"].trials]


def test_all_trials_are_run_as_cells_and_the_same_command_adds_none(tuned):
    tuner, executor, outcome = tuned(3)
    assert outcome.ok
    assert len(executor.submitted) == len({cell for cell, _ in executor.submitted}) == 3
    assert states(tuner) == ["COMPLETE"] * 3
    assert [trial.value for trial in tuner.studies["apt"].trials] == [100.0] * 3
    again, executor, _ = tuned(3)
    assert executor.submitted == []
    assert again.is_complete
    more, executor, _ = tuned(4)  # a larger number adds to them
    assert len(executor.submitted) == 1
    assert states(more) == ["COMPLETE"] * 4


def test_an_interrupted_search_resumes_its_trials(tuned):
    with pytest.raises(RunInterrupted):
        tuned(3, stops_after=5)
    tuner, executor, outcome = tuned(3)
    assert outcome.ok
    assert states(tuner) == ["COMPLETE"] * 3  # none was drawn again
    resumed = [step for _, step in executor.submitted[:2]]
    assert all(step > 0 for step in resumed)
    assert len({cell.folder for cell in tuner.plan.cells}) == 3


def test_a_study_whose_last_line_is_torn_is_resumed(tuned):
    tuner, _, _ = tuned(2)
    path = tuner.plan.out / tune.FILE_NAME
    path.write_bytes(path.read_bytes()[:-7])  # the end of a trial is half written
    tuner, executor, outcome = tuned(3)
    assert outcome.ok
    assert states(tuner) == ["COMPLETE"] * 3
    assert len(executor.submitted) == 1  # nothing is run again
    tuner, executor, _ = tuned(3)
    assert (states(tuner), executor.submitted) == (["COMPLETE"] * 3, [])


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b"[1]\n", b'{"op_code": 0}\n', b'{"op_code": "x"}\n'])
def test_a_damaged_study_is_one_sentence(tuned, damage):
    tuner, _, _ = tuned(1)
    (tuner.plan.out / tune.FILE_NAME).write_bytes(damage)
    with pytest.raises(RunFolderError, match=r"study\.journal cannot be read as .* study .*: remove it"):
        tuned(1)


def test_a_failed_cell_is_tried_again_by_the_next_command(tuned):
    tuner, executor, outcome = tuned(2, failures=1)
    [failed] = outcome.failed
    assert sorted(states(tuner)) == ["COMPLETE", "RUNNING"]
    tuner, executor, outcome = tuned(2)
    assert outcome.ok
    assert [cell for cell, _ in executor.submitted] == [failed]
    assert states(tuner) == ["COMPLETE"] * 2


def test_another_grid_or_a_metric_that_is_not_measured_is_refused(tuned):
    tuned(1)
    with pytest.raises(VoidrlError, match="holds a study of 'apt' with another grid"):
        tuned(2, text=FILE.replace("count = 5", "count = 4"))
    with pytest.raises(VoidrlError, match="cannot compare points of method 'apt' by 'return'"):
        tuned(2, text=FILE.replace('"coverage/cells"', '"return"'))


def test_seeds_of_a_trial_make_one_value(tuned):
    text = f"seeds = [1, 2]\n{FILE}"
    tuner, executor, _ = tuned(6, text=text, height=lambda rate: 100.0 if rate > 1e-3 else 1.0, jobs=1)
    assert len(executor.submitted) == len(tuner.plan.cells)
    assert {*states(tuner)} == {"COMPLETE"}
    assert {trial.value for trial in tuner.studies["apt"].trials} == {100.0, 1.0}


def test_the_space_is_that_of_the_grid():
    from voidrl.experiments.grid import Axis

    values = optuna.distributions.CategoricalDistribution(("3", "6", "12"))
    assert tune._distribution(Axis("a", (3, 6, 12))) == values
    assert tune._value(Axis("a", (3, 6, 12)), "6") == 6
    rate = Axis("a", low=1e-4, high=1e-2, count=3, log=True)
    assert tune._distribution(rate) == optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True)
    assert tune._value(rate, 0.00123456) == 0.001235
    assert tune._value(Axis("a", ((1, 2), (3,))), "3") == (3,)
