"""`voidrl experiment --dry-run`: how many cells are in which state, and the cost of the rest."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from voidrl.errors import VoidrlError
from voidrl.experiments.planner import Cell, Plan
from voidrl.experiments.scale import learns
from voidrl.experiments.state import differing_settings, state_of
from voidrl.runs.metrics import read_metrics
from voidrl.system.terminal.tables import print_table, wrap_text
from voidrl.system.units import human_count, human_seconds, plural

STATES = {"done": "done", "trained": "partial", "partial": "partial", "missing": "to do"}
REFUSED = "refused"
COLUMNS = ["method", "phase", "steps", *dict.fromkeys(STATES.values()), REFUSED, "time"]


class Needed(NamedTuple):
    """State of a cell, and what it still takes."""

    state: str
    steps: int
    """Steps that are left."""
    why: str = ""
    """The first setting in which a refused run differs."""


def print_plan(plan: Plan, places: int | None = None) -> None:
    """Print a table of the cells and the time of the rest, on so many places; nothing is written to disk."""
    needed = {cell.folder: _needed(plan, cell) for cell in plan.cells}
    seconds = _seconds(plan, needed)
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in plan.cells:
        groups.setdefault((cell.arm.name, cell.phase), []).append(cell)
    rows = []
    for (arm, phase), cells in groups.items():
        steps = sorted({cell.config.steps for cell in cells})
        times = [seconds[cell.folder] for cell in cells]
        total = None if None in times else sum(time or 0.0 for time in times)
        row = {
            "method": arm,
            "phase": phase,
            "steps": " to ".join(map(human_count, dict.fromkeys((steps[0], steps[-1])))),
            **Counter(needed[cell.folder].state for cell in cells),
            "time": human_seconds(total) if total else "",
        }
        rows.append([row.get(name, "") for name in COLUMNS])
    used = [i for i in range(len(COLUMNS)) if any(row[i] for row in rows)]
    if rows:
        shown = [[row[i] for i in used] for row in rows]
        print_table([COLUMNS[i] for i in used], shown, title=plan.experiment.title)
    lines = ["", f"{plural(len(plan.cells), 'run')} in {plan.out}"]
    if plan.request.tune is not None:
        lines.append(f"and those of {plural(plan.request.tune, 'point')} of each grid, which Optuna chooses")
    lines += [*_time(plan, seconds, places), *plan.notes]
    refused = [(folder, each.why) for folder, each in needed.items() if each.why]
    lines += [f"refused, as {name} holds a run with other settings: {why}" for name, why in refused[:1]]
    print(wrap_text("\n".join(lines)))


def _needed(plan: Plan, cell: Cell) -> Needed:
    if differ := differing_settings(cell, plan.path(cell)):
        return Needed(REFUSED, 0, differ[0])
    state = state_of(cell, plan.path(cell))
    left = 0 if state.kind in ("done", "trained") else cell.config.steps - state.steps
    return Needed(STATES[state.kind], left)


def _seconds(plan: Plan, needed: Mapping[str, Needed]) -> dict[str, float | None]:
    """Training time that is left, by the median rate of equal runs in the folder; None without a rate."""

    def kind(cell: Cell) -> tuple[object, ...]:  # cells of one kind are taken to be equally fast
        return cell.arm.name, cell.phase, cell.config.env.id, cell.config.effective.updates_per_step

    rates: dict[tuple[object, ...], list[float]] = {}
    for cell in plan.cells:
        with suppress(VoidrlError):  # no metrics yet
            rows = read_metrics(plan.path(cell))
            rows = [row for row in rows if row.get("updates") or not learns(cell.config)]  # after the warm-up
            logged = [row.get("time/steps_per_second") for row in rows]
            found = [rate for rate in logged if isinstance(rate, int | float) and rate]
            rates.setdefault(kind(cell), []).extend([statistics.median(found)] if found else [])
    seconds: dict[str, float | None] = {}
    for cell in plan.cells:
        left, known = needed[cell.folder].steps, rates.get(kind(cell))
        seconds[cell.folder] = left / statistics.median(known) if known and left else None if left else 0.0
    return seconds


def _time(plan: Plan, seconds: Mapping[str, float | None], places: int | None) -> Iterator[str]:
    unknown = sum(time is None for time in seconds.values())
    known = {folder: time for folder, time in seconds.items() if time}
    if known:
        chains = [known.get(cell.folder, 0.0) + known.get(cell.source or "", 0.0) for cell in plan.cells]
        total, longest = sum(known.values()), max(chains)
        line = f"training: about {human_seconds(total)} in all, the longest chain {human_seconds(longest)}"
        if places is not None and places > 1:
            line += f"; at best {human_seconds(max(total / places, longest))} with {places} at a time"
        yield f"{line}, by the rates of runs in this folder"
    if unknown:
        yield f"time: unknown for {plural(unknown, 'run')}, as none like them has run in this folder"
