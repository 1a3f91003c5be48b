"""Cells that are done in this process, or whose checkpoints were left on another machine."""

import contextlib
import dataclasses
import io

from voidrl.config import to_json
from voidrl.envs.ids import atari_game
from voidrl.envs.suites.atari import human_normalized
from voidrl.experiments.cell import do_job
from voidrl.experiments.format import read_experiment
from voidrl.experiments.planner import make_plan
from voidrl.experiments.record import write_record
from voidrl.experiments.request import ExperimentRequest
from voidrl.report.contents import Report
from voidrl.report.terminal import print_results
from voidrl.runs import checkpoint
from voidrl.runs.status import RunStatus
from voidrl.training.metrics import MetricsWriter

MACHINE = {"date": "2021-12-06T00:00:00+00:00", "versions": {"voidrl": "0.0.1"}, "command": "voidrl …"}


def plan_of(name, out="out", **request):
    """The plan of an experiment, by its name or file."""
    return make_plan(read_experiment(name), ExperimentRequest(**request), out)


def make_started(plan, cell):
    """Write what a run leaves that was killed before its first checkpoint."""
    folder = plan.path(cell)
    folder.mkdir(parents=True)
    checkpoint.write_json_atomic(folder / "config.json", to_json(cell.config))
    checkpoint.write_json_atomic(folder / "environment.json", MACHINE)
    return folder


def write_status(folder, state, **fields):
    status = RunStatus(state, heartbeat=MACHINE["date"], **fields)
    checkpoint.write_json_atomic(folder / "status.json", dataclasses.asdict(status))


def make_done(plan, cell, score=0.0, rate=100.0, successes=None, **last):
    """A run with two rows of metrics and, if the cell has one, its evaluation."""
    folder, steps = make_started(plan, cell), cell.config.steps
    with MetricsWriter(folder, tensorboard=False) as writer:
        for step in (steps // 2, steps):
            writer.write(step, {"updates": step, "time/steps_per_second": rate, **last})
    write_status(folder, "done", checkpoint=steps, steps=steps)
    if cell.evaluation is not None:
        game = atari_game(cell.task)
        evaluation = {
            "agent": {"steps": steps},
            "settings": cell.evaluation,
            "mean_return": score,
            "human_normalized": None if game is None else human_normalized(game, score),
            "returns": [score],
            "successes": successes,
        }
        checkpoint.write_json_atomic(folder / "evaluation.json", evaluation)
    return folder


def do_here(plan, cell):
    """Train and evaluate a cell in this process."""
    source = None if cell.source is None else str(plan.path(cell.source))
    job = {"root": str(plan.out), "cell": cell.folder, "config": to_json(cell.config), "source": source}
    do_job({**job, "evaluation": cell.evaluation, "zero_shot": cell.zero_shot, "trial": None})


def report_of(plan):
    """The report of the folder of a plan."""
    write_record(plan, ["voidrl", "experiment", plan.experiment.name])
    return Report.read([plan.out], lambda text: None)


def printed(show, *arguments):
    """The lines that a function prints, with single spaces."""
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        show(*arguments)
    return [" ".join(line.split()) for line in stream.getvalue().splitlines()]


def printed_results(plan):
    """The lines that `voidrl experiment` ends with."""
    return printed(print_results, report_of(plan))
