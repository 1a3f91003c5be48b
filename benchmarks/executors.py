"""What an executor adds to each cell of an experiment: seconds beyond those of the cell's own process.

python benchmarks/executors.py                       # local
python benchmarks/executors.py --on local ray --cells 8 --json executors.json
python benchmarks/executors.py --on ray --option address=auto
python benchmarks/executors.py --on slurm            # where there is no sbatch: submitit's local executor

The cells train for a moment on CartPole, one at a time: some in processes that are started from here, as many
by the executor, and some from here again, since a machine may get slower or faster meanwhile. Starting
the executor itself is counted apart. On a busy machine the difference of two such times says nothing: read
the second line, with what is measured directly.

Without SLURM, `slurm` is what voidrl and submitit add: pickles, processes and files, but no queue, no sbatch
and no srun.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from voidrl.errors import VoidrlError
from voidrl.experiments import run
from voidrl.experiments.board import Board
from voidrl.experiments.executors import EXECUTORS, make_executor, make_options
from voidrl.experiments.executors.base import Ended, Executor, cell_command, cell_environment, log_path
from voidrl.experiments.executors.slurm import Slurm
from voidrl.experiments.executors.slurm_task import CellTask
from voidrl.experiments.format import read_experiment
from voidrl.experiments.plan import Plan
from voidrl.experiments.planner import make_plan
from voidrl.experiments.record import write_record
from voidrl.experiments.request import ExperimentRequest
from voidrl.runs.folder import environment_info
from voidrl.system.terminal.signals import StopSignals

COMMAND = ["benchmark"]

EXPERIMENT = """
tasks = ["CartPole-v1"]
[config]
warmup_steps = 8
learner = { batch_size = 8, hidden_dim = 8, encoder = { feature_dim = 4 } }
log = { tensorboard = false }
[pretrain]
steps = 16
[methods.apt]
method = "apt"
phases = ["pretrain"]
evaluation = false
"""


class Times(NamedTuple):
    """Of a cell, in seconds since 1970."""

    submitted: float
    started: float
    ended: float
    collected: float


class TimedTask(CellTask):
    """Writes down when the process of its cell starts and ends."""

    @staticmethod
    def path(log: str | Path) -> Path:
        """The file with these times."""
        return Path(log).with_suffix(".times.json")

    def __call__(self) -> int:
        """Run the cell."""
        code = super().__call__()
        self.path(self.log).write_text(json.dumps({"started": self.started, "ended": time.time()}))
        return code

    def _start(self, ignored: int) -> None:
        super()._start(ignored)
        self.started = time.time()


class TimedSlurm(Slurm):
    """The executor `slurm`, which knows when its cells started and ended."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.times: dict[str, Times] = {}
        self._submitted: dict[str, float] = {}

    def submit(self, job: Any) -> None:  # noqa: D102
        self._submitted[job["cell"]] = time.time()
        super().submit(job)

    def poll(self) -> dict[str, Ended]:  # noqa: D102
        ended = super().poll()
        for cell in ended:
            path = TimedTask.path(log_path(self._out.absolute(), cell))
            if path.is_file():  # else it has failed, which is said
                found = json.loads(path.read_text())
                self.times[cell] = Times(self._submitted[cell], found["started"], found["ended"], time.time())
        return ended

    def _task(self, job: Any) -> CellTask:
        log = log_path(self._out.absolute(), job["cell"])
        return TimedTask(job, cell_command(), cell_environment(job), Path.cwd(), log)


class LocalSlurm(TimedSlurm):
    """Uses submitit's local executor in place of SLURM."""

    def _sbatch(self, batch: Sequence[Any], name: str) -> list[str]:
        import submitit

        executor = submitit.LocalExecutor(self._folder)
        executor.update_parameters(timeout_min=60)
        return [executor.submit(self._task(job)).job_id for job in batch]

    def _ask(self, now: float) -> None:
        pass  # there is no sacct: a result says that a job is over


def make(name: str, plan: Plan, options: dict[str, Any]) -> Executor:
    """The executor of this name, or its stand-in."""
    chosen = make_options(name, options)
    if name != "slurm":
        return make_executor(name, plan, chosen)
    if shutil.which("sbatch") is None:
        print("slurm: no sbatch here, so this is submitit's local executor, without a queue")
        return LocalSlurm(plan.out, plan.experiment.name, chosen, plan.request.device)
    make_executor(name, plan, chosen)  # refuses what is missing
    return TimedSlurm(plan.out, plan.experiment.name, chosen, plan.request.device)


def main() -> None:
    """Measure the executors, print a table, and write the numbers as JSON if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", nargs="+", default=["local"], choices=EXECUTORS)
    parser.add_argument("--cells", type=int, default=4)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of an executor")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    options = dict(word.split("=", 1) for word in given.option)
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in given.on:
            try:
                results[name] = measure(name, options, given.cells, Path(temporary, name))
            except VoidrlError as error:
                print(f"{name}: {error}")
    print(f"{'executor':10}{'start':>9}{'process':>10}{'executor':>10}{'overhead per cell':>20}")
    for name, found in results.items():
        alone, within = found["process_seconds"], found["executor_seconds"]
        start, more = found["start_seconds"], found["overhead_seconds"]
        print(f"{name:10}{start:7.2f} s{alone:8.2f} s{within:8.2f} s{more:11.3f} s ({more / alone:+.1%})")
        if "until_process_seconds" in found:
            until, collected = found["until_process_seconds"], found["until_collected_seconds"]
            print(f"{'':10}directly: until its process starts {until:.3f} s, from its end {collected:.3f} s")
        else:
            print(f"{'':10}directly: until its process starts {found['submit_seconds']:.3f} s, from its end "
                  f"at most {run.POLL_SECONDS} s")  # fmt: skip
    if given.json is not None:
        figures = {"cells": given.cells, "executors": results, "environment": environment_info()}
        given.json.write_text(json.dumps(figures, indent=1) + "\n")


def measure(name: str, options: dict[str, Any], cells: int, root: Path) -> dict[str, float]:
    """Seconds per cell, alone and by the executor, and those until the executor is there."""
    root.mkdir(parents=True)
    file = root / "tiny.toml"
    file.write_text(EXPERIMENT)
    request = ExperimentRequest(seeds=range(1, cells + 1), device="cpu")
    plan = make_plan(read_experiment(str(file)), request, root / "executor")
    write_record(plan, COMMAND)
    before, after = (dataclasses.replace(plan, out=root / name) for name in ("before", "after"))
    run_alone(dataclasses.replace(plan, out=root / "first", cells=plan.cells[:1]))  # fills caches
    alone = run_alone(before)
    began = time.perf_counter()
    with make(name, plan, options) as executor:
        start = time.perf_counter() - began
        within, submits = run_on(executor, plan)
    alone = (alone + run_alone(after)) / 2
    times = getattr(executor, "times", {}).values()  # of an executor elsewhere, by the clocks of its nodes
    waits = {
        "until_process_seconds": [each.started - each.submitted for each in times],
        "until_collected_seconds": [each.collected - each.ended for each in times],
    }
    return {
        **{name: statistics.median(seconds) for name, seconds in waits.items() if seconds},
        "submit_seconds": statistics.median(submits),
        "start_seconds": start,
        "process_seconds": alone / cells,
        "executor_seconds": within / cells,
        "overhead_seconds": (within - alone) / cells,
    }


def run_on(executor: Executor, plan: Plan) -> tuple[float, list[float]]:
    """Seconds until the executor has done all cells, one at a time, and those that each submission took."""
    submit, submits = executor.submit, []

    def timed(job: Any) -> None:
        before = time.perf_counter()
        submit(job)
        submits.append(time.perf_counter() - before)

    executor.submit = timed  # type: ignore[method-assign]
    began = time.perf_counter()
    scheduler = run.Scheduler(plan, executor, COMMAND, Board(io.StringIO()))
    has_room = executor.has_room
    executor.has_room = lambda cell: not scheduler.running and has_room(cell)  # type: ignore[method-assign]
    outcome = scheduler.work(StopSignals())
    if not outcome.ok:
        raise SystemExit(f"cells failed: {outcome.failed}")
    return time.perf_counter() - began, submits


def run_alone(plan: Plan) -> float:
    """Seconds that the processes of all cells take, each started when the one before has ended."""
    began = time.perf_counter()
    for cell in plan.cells:
        job = run.make_job(plan, cell, COMMAND)
        environment = {**os.environ, **cell_environment(job)}
        process = subprocess.Popen(
            cell_command(), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
        if process.wait():
            raise SystemExit(f"a cell ended with exit status {process.returncode}")
        process.stdin.close()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
