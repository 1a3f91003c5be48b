"""`voidrl experiment`: plan, estimate or run, then show the results."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from voidrl.config import require
from voidrl.device import pick_device
from voidrl.envs.ids import ATARI, DMC
from voidrl.errors import MissingExtraError, RunInterrupted, StoppedBySignal, VoidrlError
from voidrl.experiments.board import Board
from voidrl.experiments.dry_run import print_missing, print_plan
from voidrl.experiments.format import ExperimentSpec, read_experiment
from voidrl.experiments.plan import Plan, make_plan
from voidrl.experiments.record import update_record, write_record
from voidrl.experiments.request import ExperimentRequest
from voidrl.experiments.run import Outcome, run_plan
from voidrl.experiments.state import require_same_settings, state_of
from voidrl.experiments.table import print_results
from voidrl.runs.status import utc_now
from voidrl.terminal.output import durable_output, say

FAILED = 1
SIMULATORS = {ATARI: ("ale_py", "ale-py", "atari"), DMC: ("dm_control", "dm-control", "dmc")}


def run_experiment(
    name: str | Path | ExperimentSpec,
    *,
    request: ExperimentRequest | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    dry_run: bool = False,
    report: bool = True,
    command: Sequence[str] | None = None,
) -> int:
    """Run the missing cells of an experiment and show the results; returns the exit code of the command.

    Args:
        name: One that comes with voidrl, or the path of a file.
        request: What differs from the file.
        out: The folder of its runs; by default `runs/NAME`.
        jobs: Runs at a time, each in its own process.
        dry_run: Print the cells and an estimate instead; nothing is written.
        report: Make `report.html` at the end.
        command: The command line that does the same again.
    """
    require(isinstance(jobs, int) and jobs >= 1, "jobs", jobs, "a whole number above 0")
    experiment = name if isinstance(name, ExperimentSpec) else read_experiment(name)
    folder = str(Path(experiment.path).absolute().parent)
    if not dry_run and folder not in sys.path and Path(experiment.path).is_file():
        sys.path.append(folder)  # for module:factory in the same folder
    plan = make_plan(experiment, request or ExperimentRequest(), out, run_code=not dry_run)
    if dry_run:
        print_plan(plan, jobs)
        return 0
    command = command or ["voidrl", "experiment", experiment.path]
    with unattended(plan, command):
        outcome = do_plan(plan, jobs=jobs, command=command)
        print_results(plan)
        print_missing(plan, sys.stdout)
        made = make_report(plan) if report else True
    return 0 if outcome.ok and made else FAILED


@contextmanager
def unattended(plan: Plan, command: Sequence[str]) -> Iterator[None]:
    """Need no terminal: output that breaks is dropped, and after a signal the same command resumes."""

    def note(text: str) -> None:
        path = plan.out / "logs" / "experiment.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{utc_now()} {text}\n")
        say(f"{text}; all results are in {plan.out}")

    with durable_output(note):
        try:
            yield
        except StoppedBySignal as stop:
            remedy = f"to do what is missing, run the same command again: {shlex.join(command)}"
            raise RunInterrupted(f"{stop}; {remedy}") from None


def do_plan(plan: Plan, *, jobs: int, command: Sequence[str]) -> Outcome:
    """Do everything that is missing, and say what could not be done."""
    require_same_settings(plan)
    if all(state_of(cell, plan.path(cell)).kind == "done" for cell in plan.cells):
        try:
            write_record(plan, command)
            update_record(plan)
        except VoidrlError as error:  # results in a read-only folder can be shown all the same
            say(str(error))
    else:
        pick_device(plan.request.device)
        _require_simulators(plan)
        write_record(plan, command)
    for note in plan.notes:
        say(f"note: {note}")
    outcome = run_plan(plan, jobs=jobs, command=command, board=Board())
    for folder, why in outcome.failed.items():
        say(f"failed: {folder}: {why}")
    for folder, source in outcome.waiting.items():
        say(f"not started: {folder} waits for {source}, which failed")
    if not outcome.ok:
        say(f"to try again what failed and keep the rest, run the same command: {shlex.join(command)}")
    return outcome


def make_report(plan: Plan) -> bool:
    """Write `report.html`; False if that failed, which leaves the runs as they are."""
    if not any((plan.path(cell) / "config.json").is_file() for cell in plan.cells):
        return True
    from voidrl.report.page import write_report

    try:
        written = write_report([plan.out], plan.out / "report.html", title=plan.experiment.title, say=say)
    except VoidrlError as error:
        say(f"no report was made: {error}; try again with `voidrl report {shlex.quote(str(plan.out))}`")
        return False
    print(f"report: {written}")
    return True


def _require_simulators(plan: Plan) -> None:
    """Refuse a missing package before the first of many runs fails."""
    for prefix, (module, package, extra) in SIMULATORS.items():
        needed = any(cell.task.startswith(prefix) for cell in plan.cells)
        if needed and importlib.util.find_spec(module) is None:
            raise MissingExtraError(package, extra, f"experiment {plan.experiment.name!r}")
