"""`--dry-run`: every cell, what is there of it, and what the rest would take."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TextIO

from voidrl.experiments import estimate
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.state import State, differences, state_of
from voidrl.runs import locks
from voidrl.terminal.tables import described, print_table, wrap_text
from voidrl.units import human_count, human_seconds


def print_plan(plan: Plan, jobs: int, file: TextIO | None = None) -> None:
    """Print all of it; nothing is written to disk."""
    stream = sys.stdout if file is None else file
    experiment = plan.experiment

    def say(text: str = "") -> None:
        print(wrap_text(text, file=stream), file=stream)

    say(experiment.title)
    if experiment.about:
        say(experiment.about)
    say()
    states = {cell.folder: state_of(cell, plan.path(cell)) for cell in plan.cells}
    estimates = estimate.estimate_all(plan, states)
    rows = [
        (
            cell.folder,
            cell.phase,
            human_count(cell.config.steps),
            _seconds(estimates[cell.folder]),
            _state(plan, cell, states[cell.folder]),
        )
        for cell in plan.cells
    ]
    print_table(("run", "phase", "steps", "time", "state"), rows, file=stream)
    say()
    kinds = Counter[str](state.kind for state in states.values())
    named = {"done": "done", "trained": "to be evaluated", "partial": "partial", "missing": "missing"}
    counted = ", ".join(f"{kinds[kind]} {name}" for kind, name in named.items() if kinds[kind])
    say(f"{len(plan.cells)} runs in {plan.out}: {counted}")
    for line in [*_time(plan, states, estimates, jobs), *_disk(plan, states, estimates), *plan.notes]:
        say(line)
    say_missing(plan, stream)


def say_missing(plan: Plan, stream: TextIO) -> None:
    """The methods that the experiment would take and voidrl does not have."""
    if plan.missing:
        print("\nmissing, as voidrl does not have them yet:", file=stream)
        print(described(plan.missing, file=stream), file=stream)


def _state(plan: Plan, cell: Cell, state: State) -> str:
    path = plan.path(cell) / "config.json"
    if path.is_file() and (differ := differences(cell, path)):
        return f"other settings: {differ[0]}"
    held = locks.is_held(locks.lock_path(plan.out, cell.folder))
    under_way = ", another process is at it" if held else ""
    if state.kind == "partial":
        return f"partial, {human_count(state.step)} done{under_way}"
    return ("to be evaluated" if state.kind == "trained" else state.kind) + under_way


def _seconds(of: estimate.Estimate) -> str:
    if not of.seconds:
        return "?" if of.seconds is None else "–"
    elsewhere = of.rate.elsewhere if of.rate is not None else ""
    return human_seconds(of.seconds) + (f" ({elsewhere})" if elsewhere else "")


def _time(
    plan: Plan, states: dict[str, State], estimates: dict[str, estimate.Estimate], jobs: int
) -> list[str]:
    known = [each.seconds for each in estimates.values() if each.seconds is not None]
    unknown = len(estimates) - len(known)
    if not any(state.kind != "done" for state in states.values()):
        return []
    if not any(known):
        return ["time: unknown, as no such run has been measured"] if unknown else []
    rates = [each.rate for each in estimates.values() if each.rate is not None]
    others = ", ".join(dict.fromkeys(rate.elsewhere for rate in rates if rate.elsewhere))
    line = f"time: about {human_seconds(sum(known))}{f' ({others})' if others else ''}"
    line += " of training one run after the other"
    if jobs > 1:
        best = estimate.seconds_with(plan, estimates, jobs)
        line += f", at best {human_seconds(best)} with --jobs {jobs}"
    if unknown:
        line += f"; of {unknown} more runs it is unknown, as none such has been measured"
    return [f"{line}; evaluations are not in it", *estimate.sources(estimates.values())]


def _disk(plan: Plan, states: dict[str, State], estimates: dict[str, estimate.Estimate]) -> list[str]:
    sizes = {folder: each.bytes for folder, each in estimates.items() if each.bytes is not None}
    unknown = len(estimates) - len(sizes)
    whys = ", ".join(dict.fromkeys(each.why for each in estimates.values() if each.bytes is None))
    why = f"as the size of {whys} is not known before it is made"
    if not sizes:
        return [f"disk: unknown, {why}"]
    free = estimate.free_bytes(plan.out)
    there = "" if free is None else f"; {estimate.human_bytes(free)} are free there"
    more = f"; of {unknown} more runs it is unknown, {why}" if unknown else ""
    lines = [f"disk: about {estimate.human_bytes(sum(sizes.values()))}, when all are complete{more}{there}"]
    still = sum(size for folder, size in sizes.items() if states[folder].kind == "missing")
    if free is not None and still > free:
        lines.append("that does not fit: fewer seeds or tasks, --set log.keep_last=1, or another --out")
    return lines
