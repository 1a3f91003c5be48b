"""`voidrl experiment`: plan it, say what it takes or have it done, then show what came of it."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from voidrl.config import require
from voidrl.device import pick_device
from voidrl.envs.ids import ATARI, DMC
from voidrl.errors import MissingExtraError, VoidrlError
from voidrl.experiments import record
from voidrl.experiments.board import Board
from voidrl.experiments.dry_run import print_plan, say_missing
from voidrl.experiments.format import Experiment, read_experiment
from voidrl.experiments.plan import Plan, Request, make_plan
from voidrl.experiments.run import Outcome, run_plan
from voidrl.experiments.state import refuse_others, state_of
from voidrl.experiments.table import print_results
from voidrl.terminal.tables import wrap_text

FAILED = 1
REPORT = "report.html"
SIMULATORS = {ATARI: ("ale_py", "ale-py", "atari"), DMC: ("dm_control", "dm-control", "dmc")}


def run_experiment(
    name: str | Path | Experiment,
    *,
    request: Request | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    dry_run: bool = False,
    report: bool = True,
    command: Sequence[str] | None = None,
) -> int:
    """Do what is missing of an experiment, and show what is there; the exit code of the command.

    Args:
        name: One that comes with voidrl, or the path of a file.
        request: What differs from the file.
        out: Where its runs lie; by default `runs/NAME`.
        jobs: Runs at a time, each in a process of its own.
        dry_run: Print the cells and an estimate instead; nothing is written.
        report: Make `report.html` at the end.
        command: The command line that does the same again.
    """
    require(isinstance(jobs, int) and jobs >= 1, "jobs", jobs, "a whole number above 0")
    experiment = name if isinstance(name, Experiment) else read_experiment(name)
    beside = str(Path(experiment.path).absolute().parent)
    if beside not in sys.path and Path(experiment.path).is_file():
        sys.path.append(beside)  # modules beside the file, for module:factory
    plan = make_plan(experiment, request or Request(), out)
    if dry_run:
        print_plan(plan, jobs)
        return 0
    outcome = do_plan(plan, jobs=jobs, command=command)
    print_results(plan)
    say_missing(plan, sys.stdout)
    made = make_report(plan) if report else True
    return 0 if outcome.ok and made else FAILED


def do_plan(plan: Plan, *, jobs: int, command: Sequence[str] | None) -> Outcome:
    """Have everything done that is missing, and say what could not be."""
    command = command or ["voidrl", "experiment", plan.experiment.path]
    refuse_others(plan, plan.cells)
    if all(state_of(cell, plan.path(cell)).kind == "done" for cell in plan.cells):
        try:
            record.write(plan, command)
        except VoidrlError as error:  # a folder to look at, and no more
            _say(str(error))
    else:
        pick_device(plan.request.device)
        _require_simulators(plan)
        record.write(plan, command)
    for note in plan.notes:
        _say(f"note: {note}")
    outcome = run_plan(plan, jobs=jobs, command=command, board=Board())
    for failure in outcome.failed:
        log = "" if failure.log is None else f"; see {failure.log}"
        _say(f"failed: {failure.cell.folder}: {failure.why}{log}")
    for folder, source in outcome.waiting.items():
        _say(f"not begun: {folder} waits for {source}, which failed")
    if not outcome.ok:
        _say(f"the same command tries again what failed and keeps the rest: {shlex.join(command)}")
    return outcome


def make_report(plan: Plan) -> bool:
    """The page, and where it is; without it the experiment is done all the same."""
    if not any((plan.path(cell) / "config.json").is_file() for cell in plan.cells):
        return True
    from voidrl.report.page import write_report

    path = plan.out / REPORT
    try:
        written = write_report([plan.out], path, title=plan.experiment.title, say=_say)
    except VoidrlError as error:
        _say(f"no report was made: {error}; try again with `voidrl report {shlex.quote(str(plan.out))}`")
        return False
    print(f"report: {written}")
    return True


def _require_simulators(plan: Plan) -> None:
    """A missing package is better known before than after twenty-six failures."""
    for prefix, (module, package, extra) in SIMULATORS.items():
        if any(cell.task.startswith(prefix) for cell in plan.cells) and not _installed(module):
            raise MissingExtraError(package, extra, f"experiment {plan.experiment.name!r}")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _say(text: str) -> None:
    print(wrap_text(text, file=sys.stderr), file=sys.stderr, flush=True)
