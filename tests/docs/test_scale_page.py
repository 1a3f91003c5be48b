"""docs/scale.md prints what the simulator says, below each command of `voidrl experiment --dry-run`."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest
from doc_pages import ROOT

from voidrl.experiments import estimate
from voidrl.experiments.format import read_experiment
from voidrl.experiments.planner import make_plan
from voidrl.experiments.request import ExperimentRequest
from voidrl.experiments.schedule import Machines, describe, plan_schedule
from voidrl.experiments.state import CellState
from voidrl.system.units import parse_count

TABLE = re.compile(r"```text\n(voidrl experiment [^`]*?)\n```\n\n((?:\|[^\n]*\n)+)")


def tables():
    """Command and rows of each table of the page."""
    found = []
    for command, table in TABLE.findall((ROOT / "docs/scale.md").read_text("utf-8")):
        rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()[2:]]
        found.append((command.replace("\\\n", " "), rows))
    return found


def parse(words):
    parser = argparse.ArgumentParser()
    for name in ("--on", "--device", "--engine", "--preset", "--set"):
        parser.add_argument(name)
    for name in ("--nodes", "--gpus-per-node", "--jobs"):
        parser.add_argument(name, type=int, default=1)
    for name in ("--games", "--methods"):
        parser.add_argument(name, nargs="+", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args(words)


def printed(command):
    """For more options of the command: makespan, GPU-hours, utilization and longest chain, as printed."""
    program, subcommand, name, *words = shlex.split(command)
    assert (program, subcommand) == ("voidrl", "experiment")
    given = parse(words)
    assert given.dry_run
    assert given.device == "cuda"
    changes = {}
    if given.set:
        field, value = given.set.split("=")
        changes[field] = parse_count(value)
    request = ExperimentRequest(
        tasks=given.games, methods=given.methods, seeds=given.seeds, preset=given.preset, changes=changes,
        device="cuda", engine=given.engine or "auto",
    )  # fmt: skip
    plan = make_plan(read_experiment(name), request, "nowhere", run_code=False)
    states = {cell.folder: CellState("missing") for cell in plan.cells}
    estimates = estimate.estimate_all(plan, states, has_gpu=True)

    def row(options):
        more = parse(shlex.split(options))
        machines = Machines(more.nodes, more.gpus_per_node, more.jobs)
        lines = describe(plan_schedule(plan, estimates, machines), machines, "ray")
        said = dict(line.split(": ", 1) for line in lines)
        bounds = re.findall(r"(\S+) \(", said["not shorter than"])
        return [
            str(machines.gpus), said["makespan"], said["GPU-hours"].partition(" ")[0],
            said["utilization"].partition(" of")[0], *bounds[:2],
        ]  # fmt: skip

    return row


def check(command, rows):
    row = printed(command)
    for options, *cells in rows:
        assert row(options.strip("`")) == cells, f"{command} {options}"


def test_the_papers_table_costs_what_the_simulator_says():
    assert len(tables()) == 5
    check(*tables()[0])


@pytest.mark.slow
@pytest.mark.parametrize("index", [1, 2, 3, 4])
def test_the_other_tables(index):
    check(*tables()[index])
