"""`voidrl experiment`: plan, estimate or run, then show the results."""

from __future__ import annotations

import dataclasses
import importlib.util
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from voidrl.agent.dry_build import dry_build
from voidrl.envs.ids import ATARI, DMC
from voidrl.errors import MissingExtraError, RunInterrupted, StoppedBySignal, VoidrlError, printable
from voidrl.experiments.board import Board
from voidrl.experiments.dry_run import print_plan
from voidrl.experiments.executors import executor_module, make_options
from voidrl.experiments.format import ExperimentSpec, read_experiment
from voidrl.experiments.planner import Plan, make_plan
from voidrl.experiments.record import try_to_write_record, write_record
from voidrl.experiments.request import ExperimentRequest
from voidrl.experiments.run import Outcome, run_plan
from voidrl.experiments.state import require_same_settings, state_of
from voidrl.experiments.tune import open_tuner
from voidrl.system.terminal.output import durable_output, say

FAILED = 1
SIMULATORS = {ATARI: ("ale_py", "ale-py", "atari"), DMC: ("dm_control", "dm-control", "dmc")}


def run_experiment(
    name: str | Path | ExperimentSpec,
    *,
    request: ExperimentRequest | None = None,
    out: str | Path | None = None,
    on: str = "local",
    dry_run: bool = False,
    report: bool = True,
    command: Sequence[str] | None = None,
    **options: Any,
) -> int:
    """Run the missing cells of an experiment and show the results; returns the exit code of the command.

    Args:
        name: A shipped experiment, or the path of a file.
        request: Changes to the file.
        out: The folder of its runs; by default `runs/NAME`.
        on: The executor: local, ray or slurm.
        dry_run: Print the states of the cells and an estimate instead; nothing is written.
        report: Make `report.html` at the end.
        command: The command line that repeats it.
        options: Options of the executor, as on the command line: `jobs=2`.
    """
    chosen = make_options(on, options)
    request = dataclasses.replace(request or ExperimentRequest(), elsewhere=on != "local")
    experiment = name if isinstance(name, ExperimentSpec) else read_experiment(name)
    folder = str(Path(experiment.path).absolute().parent)
    if folder not in sys.path and Path(experiment.path).is_file():
        sys.path.append(folder)  # for module:factory in the file's folder
    plan = make_plan(experiment, request, out)
    kinds = {(cell.arm.name, cell.phase, repr(cell.point), cell.spec): cell for cell in plan.cells}
    for cell in kinds.values():
        dry_build(cell.spec, cell.config)  # refuses what cannot be built before the first of many runs fails
    if dry_run:
        print_plan(plan, getattr(chosen, "slots", None))
        return 0
    command = command or ["voidrl", "experiment", experiment.path]
    with unattended(plan, command):
        outcome = do_plan(plan, on, chosen, command=command)
        made = show_results(plan, with_page=report)
    return 0 if outcome.ok and made else FAILED


@contextmanager
def unattended(plan: Plan, command: Sequence[str]) -> Iterator[None]:
    """Need no terminal: broken output is dropped, and repeating the command after a signal resumes."""
    with durable_output(lambda text: say(f"{text}; all results are in {plan.out}")):
        try:
            yield
        except StoppedBySignal as stop:
            remedy = f"to do what is missing, run the same command again: {shlex.join(command)}"
            raise RunInterrupted(f"{stop}; {remedy}") from None


def do_plan(plan: Plan, on: str, options: Any, *, command: Sequence[str]) -> Outcome:
    """Run everything that is missing, and report failures."""
    for cell in plan.cells:
        require_same_settings(cell, plan.path(cell))
    for note in plan.notes:
        say(f"note: {note}")
    with nullcontext() if plan.request.tune is None else open_tuner(plan) as tuner:
        is_done = all(state_of(cell, plan.path(cell)).kind == "done" for cell in plan.cells)
        if is_done and (tuner is None or tuner.is_complete):
            try_to_write_record(plan, command, say=say)
            Board().start(len(plan.cells), len(plan.cells))
            return Outcome({}, {})
        executor = executor_module(on).make(plan, options)
        for prefix, (module, package, extra) in SIMULATORS.items():
            needed = any(cell.task.startswith(prefix) for cell in plan.cells)
            if needed and importlib.util.find_spec(module) is None:
                raise MissingExtraError(package, extra, f"experiment {plan.experiment.name!r}")
        write_record(plan, command)
        outcome = run_plan(plan, executor, command=command, board=Board(), tuner=tuner)
    for folder, why in outcome.failed.items():
        say(f"failed: {folder}: {why}")
    for folder, source in outcome.waiting.items():
        say(f"not started: {folder} waits for {source}, which failed")
    if not outcome.ok:
        say(f"to try again what failed and keep the rest, run the same command: {shlex.join(command)}")
    return outcome


def show_results(plan: Plan, *, with_tables: bool = True, with_page: bool = True) -> bool:
    """Print the results of all runs in the folder and write `report.html`; False if no page could be made."""
    from voidrl.report.contents import Report
    from voidrl.report.page import write_page
    from voidrl.report.terminal import print_results

    empty = "no results: no run has an evaluation, episode or coverage to compare; set `evaluation`"
    if not any(state_of(cell, plan.path(cell)).kind == "done" for cell in plan.cells):
        empty = "no run is done yet: no results"
    if not any((plan.path(cell) / "config.json").is_file() for cell in plan.cells):
        print(empty)
        return True
    try:
        report = Report.read([plan.out], say, plan.experiment.title)
        if with_tables:
            print_results(report)
            if not any(results.measures for results in report.results):
                print(empty)
        if with_page:
            print(f"report: {printable(write_page(report, plan.out / 'report.html', say=say))}")
    except VoidrlError as error:  # which does not affect the runs
        say(f"no report was made: {error}; try again with `voidrl report {shlex.quote(str(plan.out))}`")
        return not with_page
    return True
