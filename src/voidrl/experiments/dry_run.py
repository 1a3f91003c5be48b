"""`voidrl experiment --dry-run`: how many cells are in which state, and the cost of the rest."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from contextlib import suppress
from typing import NamedTuple, TextIO

from voidrl.errors import VoidrlError
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.scale import learns
from voidrl.experiments.state import differing_settings, state_of
from voidrl.runs.metrics import read_metrics
from voidrl.system.terminal.tables import print_table, wrap_text
from voidrl.system.units import human_count, human_seconds, plural

STATES = {"done": "done", "trained": "partial", "partial": "partial", "missing": "to do"}
REFUSED = "refused"
Kind = tuple[str, str]
"""An arm and a phase: cells of one kind are taken to be equally fast."""


class Needed(NamedTuple):
    """State of a cell, and what it still takes."""

    state: str
    steps: int
    """Steps that are left."""
    why: str = ""
    """The first setting in which a refused run differs."""


def print_plan(plan: Plan, places: int | None = None, file: TextIO | None = None) -> None:
    """Print a table of the cells and the time of the rest, on so many places; nothing is written to disk."""
    stream = sys.stdout if file is None else file
    needed = {cell.folder: _needed(plan, cell) for cell in plan.cells}
    seconds = _seconds(plan, needed)
    groups: dict[Kind, list[Cell]] = {}
    for cell in plan.cells:
        groups.setdefault((cell.arm.name, cell.phase), []).append(cell)
    states = [*dict.fromkeys((*STATES.values(), REFUSED))]
    rows = []
    for (arm, phase), cells in groups.items():
        steps = sorted({cell.config.steps for cell in cells})
        counts = Counter(needed[cell.folder].state for cell in cells)
        times = [seconds[cell.folder] for cell in cells]
        known = [time for time in times if time is not None]
        hours = human_seconds(sum(known)) if known and len(known) == len(times) and any(known) else ""
        spread = " to ".join(human_count(each) for each in dict.fromkeys([steps[0], steps[-1]]))
        rows.append([arm, phase, spread, *(str(counts[state] or "") for state in states), hours])
    columns = ["method", "phase", "steps", *states, "time"]
    used = [i for i, _ in enumerate(columns) if any(row[i] for row in rows)]
    scale = f" (scale {plan.experiment.scale} of {', '.join(plan.experiment.scales)})"
    title = plan.experiment.title + (scale if plan.experiment.scale is not None else "")
    shown = [[row[i] for i in used] for row in rows]
    print_table([columns[i] for i in used], shown, title=title, file=stream)
    lines = ["", f"{plural(len(plan.cells), 'run')} in {plan.out}", *_grids(plan)]
    lines += [*_time(plan, seconds, places), *plan.notes]
    refused = [folder for folder, each in needed.items() if each.state == REFUSED]
    if refused:
        lines.append(f"refused, as {refused[0]} holds a run with other settings: {needed[refused[0]].why}")
    print(wrap_text("\n".join(lines), file=stream), file=stream)


def _needed(plan: Plan, cell: Cell) -> Needed:
    if differ := differing_settings(cell, plan.path(cell)):
        return Needed(REFUSED, 0, differ[0])
    state = state_of(cell, plan.path(cell))
    left = 0 if state.kind in ("done", "trained") else cell.config.steps - state.steps
    return Needed(STATES[state.kind], left)


def _seconds(plan: Plan, needed: dict[str, Needed]) -> dict[str, float | None]:
    """Training time that is left, by the median rate of equal runs in the folder; None without a rate."""
    rates: dict[Kind, list[float]] = {}
    for cell in plan.cells:
        trains, found = learns(cell.config), []
        with suppress(VoidrlError):  # no metrics yet
            rows = [row for row in read_metrics(plan.path(cell)) if row.get("updates") or not trains]
            found = [rate for row in rows if (rate := row.get("time/steps_per_second"))]
        if found:
            # Points of a grid may differ in their updates per step, which take most of the time.
            updates = cell.config.updates_per_step if trains else 1.0
            rates.setdefault((cell.arm.name, cell.phase), []).append(statistics.median(found) * updates)

    def seconds(cell: Cell) -> float | None:
        steps, known = needed[cell.folder].steps, rates.get((cell.arm.name, cell.phase))
        updates = cell.config.updates_per_step if learns(cell.config) else 1.0
        return 0.0 if not steps else None if known is None else steps * updates / statistics.median(known)

    return {cell.folder: seconds(cell) for cell in plan.cells}


def _time(plan: Plan, seconds: dict[str, float | None], places: int | None) -> list[str]:
    unknown = sum(time is None for time in seconds.values())
    known = {folder: time for folder, time in seconds.items() if time}
    lines = []
    if known:
        chains = [(known.get(cell.folder, 0.0) + known.get(cell.source or "", 0.0)) for cell in plan.cells]
        total, longest = sum(known.values()), max(chains)
        line = f"training: about {human_seconds(total)} in all, the longest chain {human_seconds(longest)}"
        if places is not None and places > 1:
            line += f"; at best {human_seconds(max(total / places, longest))} with {places} at a time"
        lines.append(f"{line}, by the rates of runs in this folder")
    if unknown:
        lines.append(f"time: unknown for {plural(unknown, 'run')}, as none like them has run in this folder")
    return lines


def _grids(plan: Plan) -> list[str]:
    """Lines with the fields that vary in each method, and the number of points."""
    lines = []
    for arm, axes in plan.axes.items():
        if not axes:
            continue
        fields = " × ".join(f"{axis.name} ({len(axis.values)})" for axis in axes)
        points = plural(len({repr(c.point) for c in plan.cells if c.arm.name == arm and c.is_final}), "point")
        if plan.request.tune is not None:
            runs = len(plan.cells_at(arm, {axis.name: axis.values[0] for axis in axes}))
            points = f"Optuna chooses {plural(plan.request.tune, 'point')} of {plural(runs, 'run')} each"
        lines.append(f"grid of {arm}: {fields}, {points}")
    return lines
