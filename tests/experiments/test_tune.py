"""Tuning: trials are cells, are pruned when they fall behind, and are resumed rather than drawn again."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
from done_cells import write_status
from tiny_runs import MAZE, tiny

from voidrl import api
from voidrl.config import update
from voidrl.errors import RunInterrupted, VoidrlError
from voidrl.experiments import planner as planning
from voidrl.experiments import run as running
from voidrl.experiments import study, tune
from voidrl.experiments.board import Board
from voidrl.experiments.cell import DONE, PRUNED
from voidrl.experiments.executors.base import Ended, Executor
from voidrl.experiments.format import read_experiment
from voidrl.experiments.grid_table import grids_of
from voidrl.experiments.planner import make_plan
from voidrl.experiments.prune import PruneOnRequest, prune_path, request_prune
from voidrl.experiments.request import ExperimentRequest
from voidrl.experiments.run import run_plan
from voidrl.runs.checkpoint import write_json_atomic
from voidrl.runs.experiment_record import read_experiment_record
from voidrl.runs.status import is_pruned

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
[tune]
sampler = "random"
[methods.apt]
phases = ["pretrain"]
evaluation = false
"""
SHARED = """
preset = "maze-demo"
measures = ["episode/return"]
tasks = [{ name = "maze", env = "voidrl/PixelMaze-v0?size=5" }]
[pretrain]
steps = 800
[finetune]
steps = 800
[grid]
"finetune.learning_rate" = { from = 1e-5, to = 1e-1, count = 5, log = true }
[tune]
sampler = "random"
metric = "coverage/cells"
[methods.apt]
evaluation = false
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(planning, "agent_bytes", lambda spec, config: None)
    monkeypatch.setattr(tune, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(running, "POLL_SECONDS", 0.0)


class Pretend(Executor):
    """Cells that write metrics of a known height, a row with every poll, and obey a request to end."""

    def __init__(self, root, height, jobs=2, failures=0, stops_after=None):
        self.root, self.height, self.jobs = root, height, jobs
        self.failures, self.stops_after = failures, stops_after
        self.jobs_left, self.submitted, self.polls, self.most = {}, [], 0, 0

    def has_room(self, cell):
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
        self.most = max(self.most, len(self.jobs_left))

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
        if prune_path(self.root, cell).exists():
            write_status(folder, "stopped", callback=PruneOnRequest.__name__, checkpoint=step, steps=step)
            del self.jobs_left[cell]
            return Ended(PRUNED)
        if step >= total:
            write_status(folder, "done", checkpoint=step, steps=step)
            del self.jobs_left[cell]
            return Ended(DONE)
        return None

    def where(self, cell):
        return ""

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
        plan = make_plan(
            read_experiment(path), ExperimentRequest(device="cpu", tune=number), tmp_path / "out"
        )
        tuner = study.Tuner(plan)
        tuner.start()
        executor = Pretend(plan.out, height, **pretend)
        try:
            outcome = run_plan(
                plan,
                executor,
                command=["voidrl"],
                board=Board(),
                make=lambda *given: tune.TuneScheduler(tuner, *given),
            )
        finally:
            tuner.close()
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


def test_trials_that_fall_behind_are_asked_to_end_and_shown_as_pruned(tuned, capsys):
    tuner, executor, outcome = tuned(8, height=lambda rate: 100.0 if rate > 1e-3 else 1.0)
    assert outcome.ok
    pruned_trials = [trial for trial in tuner.studies["apt"].trials if trial.state.name == "PRUNED"]
    assert pruned_trials
    assert all(trial.params["learner.learning_rate"] <= 1e-3 for trial in pruned_trials)
    assert len(states(tuner)) == 8
    [result] = grids_of(tuner.plan)
    assert len(result.pruned) == len(pruned_trials)
    assert len(result.ranked) == 8 - len(pruned_trials)
    assert result.ranked[0].mean == 100.0
    printed = capsys.readouterr().err
    assert "pruned at step" in printed
    assert "failed" not in printed
    for folder in tuner.pruned:  # it ended early, and another command leaves it so
        assert is_pruned(tuner.plan.out / folder)
    _, executor, _ = tuned(8, height=lambda rate: 100.0)
    assert executor.submitted == []


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
    path = tuner.plan.out / study.FILE_NAME
    path.write_bytes(path.read_bytes()[:-7])  # the end of a trial is half written
    tuner, executor, outcome = tuned(3)
    assert outcome.ok
    assert states(tuner) == ["COMPLETE"] * 3
    assert len(executor.submitted) == 1  # nothing is run again
    tuner, executor, _ = tuned(3)
    assert (states(tuner), executor.submitted) == (["COMPLETE"] * 3, [])


def test_a_failed_cell_is_tried_again_by_the_next_command(tuned):
    tuner, executor, outcome = tuned(2, failures=1)
    [failed] = outcome.failed
    assert sorted(states(tuner)) == ["COMPLETE", "RUNNING"]
    tuner, executor, outcome = tuned(2)
    assert outcome.ok
    assert [cell for cell, _ in executor.submitted] == [failed]
    assert states(tuner) == ["COMPLETE"] * 2


def test_no_point_is_chosen_while_a_cell_waits_in_the_queue_of_a_cluster(tuned, monkeypatch):
    monkeypatch.setattr(Pretend, "has_queue", lambda self: bool(self.jobs_left))
    _, executor, outcome = tuned(3, jobs=10)
    assert outcome.ok
    assert executor.most == 1


def test_another_grid_or_a_metric_that_is_not_measured_is_refused(tuned):
    tuned(1)
    with pytest.raises(VoidrlError, match="holds a study of 'apt' with another grid"):
        tuned(2, text=FILE.replace("count = 5", "count = 4"))
    with pytest.raises(VoidrlError, match="cannot compare points of method 'apt' by 'return'"):
        tuned(2, text=FILE.replace('"coverage/cells"', '"return"'))


def test_seeds_of_a_trial_make_one_curve_and_one_value(tuned):
    tuner, executor, _ = tuned(2, text=f"seeds = [1, 2]\n{FILE}", jobs=1)
    assert len(executor.submitted) == 4
    trial = tuner.studies["apt"].trials[0]
    assert trial.value == 100.0
    values = trial.intermediate_values
    assert values[400] == pytest.approx(50.0)  # the first seed, half-way
    assert values[800 + 400] == pytest.approx((100 + 50) / 2)  # its end, and the second seed half-way


def test_the_space_is_that_of_the_grid():
    from voidrl.experiments.grid import Axis

    assert study._distribution(Axis("a", (1, 3, 5))) == optuna.distributions.IntDistribution(1, 5, step=2)
    assert study._distribution(Axis("a", (3, 6, 12))) == optuna.distributions.CategoricalDistribution(
        (3, 6, 12)
    )
    rate = Axis("a", low=1e-4, high=1e-2, count=3, log=True)
    assert study._distribution(rate) == optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True)
    assert study._value(rate, 0.00123456) == 0.001235
    lists = Axis("a", ((1, 2), (3,)))
    assert study._value(lists, 1) == (3,)


def test_a_run_ends_with_a_checkpoint_when_asked_and_resumes_when_wanted(tmp_path):
    root, cell = tmp_path, "maze/k=3/seed1"
    request_prune(root, cell)
    config = tiny(updates_per_step=0.2, log__log_every_steps=20)
    callbacks = [PruneOnRequest(root, cell)]
    api.pretrain(MAZE, "random", steps=80, config=config, out=root / cell, callbacks=callbacks)
    assert is_pruned(root / cell)
    assert (root / cell / "checkpoints").is_dir()
    prune_path(root, cell).unlink()
    api.resume(root / cell, callbacks=callbacks)
    assert not is_pruned(root / cell)


def test_nothing_is_written_of_a_study_before_the_executor_is_there(tmp_path):
    path = tmp_path / "search.toml"
    path.write_text(FILE)
    request = ExperimentRequest(device="cpu", tune=2)
    plan = make_plan(read_experiment(path), request, tmp_path / "out")
    tuner = study.Tuner(plan)
    assert not tuner.is_complete
    assert not (plan.out / study.FILE_NAME).exists()
    tuner.close()


def test_a_pruned_run_that_a_killed_command_left_in_a_cluster_is_asked_to_end(tuned, monkeypatch):
    tuner, _, _ = tuned(8, height=lambda rate: 100.0 if rate > 1e-3 else 1.0)
    folder = min(tuner.pruned)
    prune_path(tuner.plan.out, folder).unlink()

    def attach(self, cells):
        self.jobs_left[folder] = ({"config": {"steps": 800, "learner": {"learning_rate": 1e-5}}}, 300)
        return {folder}

    monkeypatch.setattr(Pretend, "attach", attach)
    _, executor, outcome = tuned(8)
    assert outcome.ok
    assert executor.submitted == []
    assert is_pruned(tuner.plan.out / folder)


def test_the_record_has_every_trial_at_once_and_none_that_was_pruned_unstarted(tuned):
    text = f"seeds = [1, 2]\n{FILE}"
    tuner, executor, _ = tuned(8, text=text, height=lambda rate: 100.0 if rate > 1e-3 else 1.0, jobs=1)
    assert tuner.pruned
    record = read_experiment_record(tuner.plan.out)
    assert {cell.folder for cell in record.cells} == {cell for cell, _ in executor.submitted}
    assert {*executor.submitted} < {(cell.folder, 0) for trial in tuner.ended for cell in trial.cells}


def test_a_pretraining_that_was_pruned_is_wanted_again_by_another_point(tuned):
    tuner, _, _ = tuned(1, text=SHARED)
    [pretraining, _] = tuner.ended[0].cells
    tuner.pruned.add(pretraining.folder)
    tuner.number, tuner._lock = 2, tuner._take_lock()
    new = tuner.ask("apt")
    assert pretraining in new
    assert pretraining.folder not in tuner.pruned
    tuner.close()


def test_what_is_logged_between_the_last_look_and_the_end_is_reported(tuned, monkeypatch):
    monkeypatch.setattr(tune, "LOOK_SECONDS", 0.5)
    tuner, _, _ = tuned(1)
    assert [*tuner.studies["apt"].trials[0].intermediate_values] == [*range(100, 900, 100)]


def test_the_curve_of_a_trial_is_in_the_unit_of_its_measure(tmp_path):
    """Two seeds on Atari: 600 points of the game are no part of a mean of human-normalized scores."""
    path = tmp_path / "search.toml"
    path.write_text(
        "tasks = ['atari/pong']\nseeds = [1, 2]\nconfig = { log.eval_every_steps = 100 }\n"
        "[grid]\n'learner.n_step' = [1, 3]\n[methods.scratch]\nphases = ['train']\ntrain.steps = 800"
    )
    plan = make_plan(read_experiment(path), ExperimentRequest(), tmp_path / "out")
    cells = plan.cells_at("scratch", {"learner.n_step": 1})
    rows = [
        {"step": 50, "episode/return": 400.0},
        {"step": 100, "eval/return": 500.0, "eval/human_normalized": 0.25},
        {"step": 800, "eval/return": 600.0, "eval/human_normalized": 0.5},
    ]
    for cell in cells:
        plan.path(cell).mkdir(parents=True)
        (plan.path(cell) / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    said = []
    scheduler = SimpleNamespace(plan=plan, left={}, _say_unpruned=said.append)

    def curve(metric, cells=cells):
        return [*tune.TuneScheduler._curve(scheduler, study.PointTrial("scratch", None, cells), metric)]

    assert curve("human_normalized") == [(100, 0.25), (800, 0.5), (900, 0.375), (1600, 0.5)]
    assert curve("return") == [(100, 500.0), (800, 600.0), (900, 550.0), (1600, 600.0)]
    assert curve("success") == []  # the game has none
    assert not said
    config = update(cells[0].config, {"log.eval_every_steps": 0})
    unevaluated = [dataclasses.replace(cells[0], config=config)]
    assert curve("return", unevaluated) == [(50, 400.0)]
    assert curve("human_normalized", unevaluated) == curve("states/ram", unevaluated) == []
    assert said == ["scratch", "scratch"]
