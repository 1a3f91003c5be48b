"""`voidrl experiment --dry-run`: how many cells are in which state, and the cost of the rest."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress

from voidrl.errors import VoidrlError
from voidrl.experiments.planner import Cell, Plan
from voidrl.experiments.scale import learns
from voidrl.experiments.state import CellState, differing_settings, state_of
from voidrl.runs.metrics import read_metrics
from voidrl.system.terminal.tables import print_table, wrap_text
from voidrl.system.units import human_count, human_seconds, plural

REFUSED = "refused"
COLUMNS = ["method", "phase", "steps", "done", "partial", "to do", REFUSED, "time"]


def print_plan(plan: Plan, places: int | None = None) -> None:
    """Print a table of the cells and the time of the rest, on so many places; nothing is written to disk."""
    differ = {cell.folder: differing_settings(cell, plan.path(cell)) for cell in plan.cells}
    states = {cell.folder: state_of(cell, plan.path(cell)) for cell in plan.cells if not differ[cell.folder]}
    seconds = _seconds(plan, states)
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
            **Counter(states[cell.folder].kind if cell.folder in states else REFUSED for cell in cells),
            "time": human_seconds(total) if total else "",
        }
        rows.append(row)
    used = [name for name in COLUMNS if any(row.get(name) for row in rows)]
    if rows:
        print_table(used, [[row.get(name, "") for name in used] for row in rows], title=plan.experiment.title)
    lines = ["", f"{plural(len(plan.cells), 'run')} in {plan.out}"]
    if plan.request.tune is not None:
        lines.append(f"and those of {plural(plan.request.tune, 'point')} of each grid, which Optuna chooses")
    lines += [*_time(plan, seconds, places), *plan.notes]
    refused = [f"{name} holds a run with other settings: {why[0]}" for name, why in differ.items() if why]
    print(wrap_text("\n".join([*lines, *(f"refused, as {why}" for why in refused[:1])])))


def _seconds(plan: Plan, states: Mapping[str, CellState]) -> dict[str, float | None]:
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
        state, known = states.get(cell.folder), rates.get(kind(cell))
        left = 0 if state is None or state.kind == "done" else max(0, cell.config.steps - state.steps)
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
