"""`voidrl experiment --dry-run`: the cells, their states, and the cost of the rest."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.filesize import decimal

from voidrl.experiments import estimate, schedule
from voidrl.experiments.grid import Axis
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.state import CellState, differing_settings, state_of
from voidrl.runs import locks
from voidrl.system.machine import free_disk
from voidrl.system.terminal.tables import described, print_table, wrap_text
from voidrl.system.units import human_count, human_seconds, plural, value_text

Estimates = Mapping[str, estimate.Estimate]
MOST_LISTED = 40  # runs that are listed one by one without being asked for
OTHER_SETTINGS = "other settings"
WORKED_ON = "another process is working on it"
NAMES = {"done": "done", "trained": "to be evaluated", "partial": "partial", "missing": "missing"}


def print_plan(
    plan: Plan,
    jobs: int,
    file: TextIO | None = None,
    *,
    machines: schedule.Machines | None = None,
    where: str = "local",
    list_runs: bool = False,
) -> None:
    """Print everything, and with machines the schedule on them; nothing is written to disk.

    More than `MOST_LISTED` runs are summed up by method and phase, unless `list_runs`.
    """
    stream = sys.stdout if file is None else file
    states = {cell.folder: state_of(cell, plan.path(cell)) for cell in plan.cells}
    has_gpu = None if machines is None else machines.has_gpus
    estimates = estimate.estimate_all(plan, states, has_gpu=has_gpu)
    shown = {cell.folder: _state(plan, cell, states[cell.folder]) for cell in plan.cells}
    kinds = Counter[str](state.kind for state in states.values())
    counted = ", ".join(f"{kinds[kind]} {name}" for kind, name in NAMES.items() if kinds[kind])
    head = [plan.experiment.title, *filter(None, [plan.experiment.about]), *_scale(plan), *_grid(plan), ""]
    included = ", pre-trainings included" if plan.has_grid and not all(c.is_final for c in plan.cells) else ""
    tail = ["", f"{plural(len(plan.cells), 'run')} in {plan.out}{included}: {counted}"]
    tail += [*_time(plan, states, estimates, 1 if machines else jobs), *_disk(plan, states, estimates)]
    tail += plan.notes
    if machines is not None:
        planned = schedule.plan_schedule(plan, estimates, machines)
        tail += ["", *schedule.describe(planned, machines, where)]
    print(wrap_text("\n".join(head), file=stream), file=stream)
    if list_runs or len(plan.cells) <= MOST_LISTED:
        _print_runs(plan, shown, estimates, stream)
    else:
        _print_summary(plan, shown, estimates, stream)
        tail.insert(2, "--list-runs lists every run")
    print(wrap_text("\n".join(tail), file=stream), file=stream)
    print_missing(plan, stream)


def _print_runs(plan: Plan, states: Mapping[str, str], estimates: Estimates, stream: TextIO) -> None:
    rows = [
        (cell.folder, cell.phase, human_count(cell.config.steps), _seconds(needed), states[cell.folder])
        for cell, needed in ((cell, estimates[cell.folder]) for cell in plan.cells)
    ]
    print_table(("run", "phase", "steps", "time", "state"), rows, file=stream)


def _print_summary(plan: Plan, states: Mapping[str, str], estimates: Estimates, stream: TextIO) -> None:
    """A row for each method and phase."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in plan.cells:
        groups.setdefault((cell.arm.name, cell.phase), []).append(cell)
    rows = []
    for (arm, phase), cells in groups.items():
        steps = [cell.config.steps for cell in cells]
        needed = [estimates[cell.folder] for cell in cells]
        texts = Counter(_short_state(states[cell.folder]) for cell in cells)
        rows.append(
            (
                arm,
                phase,
                str(len(cells)),
                _span(steps, [human_count(each) for each in steps]),
                _times(needed),
                _total(needed),
                ", ".join(f"{number} {text}" for text, number in texts.items()),
            )
        )
    print_table(("method", "phase", "runs", "steps", "time each", "together", "state"), rows, file=stream)
    other = [folder for folder, text in states.items() if text.startswith(OTHER_SETTINGS)]
    if other:
        print(f"\n{other[0]} has {states[other[0]]}", file=stream)


def _short_state(text: str) -> str:
    """A state without the details that differ between runs."""
    if text.startswith(OTHER_SETTINGS):
        return f"with {OTHER_SETTINGS}"
    return "being worked on" if text.endswith(WORKED_ON) else text.partition(",")[0]


def _times(needed: Sequence[estimate.Estimate]) -> str:
    """The times of single runs that are not done, from the shortest to the longest."""
    left = [each for each in needed if each.seconds != 0]
    return _span([each.seconds or 0.0 for each in left], [*map(_seconds, left)]) if left else "–"


def _span(values: Sequence[float], texts: Sequence[str]) -> str:
    """One text for equal values, else the smallest and the largest."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ends = dict.fromkeys([texts[order[0]], texts[order[-1]]])
    return " to ".join(ends)


def _total(needed: Sequence[estimate.Estimate]) -> str:
    seconds = [each.seconds for each in needed if each.seconds != 0]
    known = [each for each in seconds if each is not None]
    unknown = ["?"] if len(known) < len(seconds) else []
    return " + ".join([human_seconds(sum(known))] * bool(known) + unknown) or "–"


def _scale(plan: Plan) -> list[str]:
    others = [name for name in plan.experiment.scales if name != plan.experiment.scale]
    also = f" (--scale {' or '.join(others)} for others)" if others else ""
    return [f"scale: {plan.experiment.scale}{also}"] if plan.experiment.scale is not None else []


def _grid(plan: Plan) -> list[str]:
    """Lines with the fields that vary in each method, and the number of points."""
    lines = []
    request = plan.request
    for arm, axes in plan.axes.items():
        if not axes:
            continue
        final = [cell for cell in plan.cells if cell.arm.name == arm and cell.is_final]
        points = len({repr(cell.point) for cell in final})
        drawn = request.samples is not None or request.tune is not None
        fields = " × ".join(f"{axis.name} ({_values(axis, drawn)})" for axis in axes)
        line = f"grid of {arm}: {fields}, {plural(points, 'point')}, {plural(len(final), 'run')}"
        if sources := {cell.source for cell in final} - {None}:
            line += f" after {plural(len(sources), 'pre-training')}"
        if request.samples is not None and request.tune is None:
            line += f"; drawn with --grid-seed {request.grid_seed}"
        lines.append(line)
    if request.tune is not None:
        lines.append(
            "Optuna chooses points while it works, by what it knows of earlier ones: those below stand for "
            "them, and pruning makes it shorter"
        )
    return lines


def _values(axis: Axis, drawn: bool) -> str:
    """The number of a field's values, or the range from which they are drawn."""
    if drawn and axis.is_range:
        return f"{value_text(axis.low)} to {value_text(axis.high)}{', log' if axis.log else ''}"
    return str(len(axis.values))


def print_missing(plan: Plan, stream: TextIO) -> None:
    """List the methods of the experiment that voidrl does not have."""
    if plan.experiment.missing:
        print("\nmissing, as voidrl does not have them:", file=stream)
        print(described(plan.experiment.missing, file=stream), file=stream)


def _state(plan: Plan, cell: Cell, state: CellState) -> str:
    known = cell.probe.spec is not None
    if known and (differ := differing_settings(cell, plan.path(cell))):
        return f"{OTHER_SETTINGS}: {differ[0]}"
    text = NAMES[state.kind]
    if not known and state.kind != "missing":
        text += ", settings not compared"
    if state.kind == "partial":
        text += f", {human_count(state.steps)} done"
    if locks.is_held(locks.cell_lock_path(plan.out, cell.folder)):
        text += f", {WORKED_ON}"
    return text


def _seconds(needed: estimate.Estimate) -> str:
    if not needed.seconds:
        return "?" if needed.seconds is None else "–"
    hardware = needed.rate.other_hardware if needed.rate is not None else ""
    return human_seconds(needed.seconds) + (f" ({hardware})" if hardware else "")


def _time(plan: Plan, states: Mapping[str, CellState], estimates: Estimates, jobs: int) -> list[str]:
    known = [each.seconds for each in estimates.values() if each.seconds is not None]
    unknown = len(estimates) - len(known)
    if all(state.kind == "done" for state in states.values()):
        return []
    if not any(known):
        return ["time: unknown, as no such run has been measured"] if unknown else []
    rates = [each.rate for each in estimates.values() if each.rate is not None]
    hardware = ", ".join(dict.fromkeys(rate.other_hardware for rate in rates if rate.other_hardware))
    line = f"time: about {human_seconds(sum(known))}{f' ({hardware})' if hardware else ''}"
    line += " of training, one run at a time"
    if jobs > 1:
        best = estimate.parallel_seconds(plan, estimates, jobs)
        line += f", at best {human_seconds(best)} with {jobs} at a time"
    if unknown:
        line += f"; unknown for {unknown} more runs, as no such run has been measured"
    return [f"{line}; without evaluations", *estimate.sources(estimates.values())]


def _disk(plan: Plan, states: Mapping[str, CellState], estimates: Estimates) -> list[str]:
    sizes = {folder: each.bytes for folder, each in estimates.items() if each.bytes is not None}
    unknown = len(estimates) - len(sizes)
    reasons = ", ".join(dict.fromkeys(each.why for each in estimates.values() if each.bytes is None))
    why = f"as the size of {reasons} is not known before it is made"
    if not sizes:
        return [f"disk: unknown, {why}"]
    free = free_disk(plan.out)
    line = f"disk: about {decimal(sum(sizes.values()))} when all runs are complete"
    line += f"; unknown for {unknown} more runs, {why}" if unknown else ""
    if free is None:
        return [line]
    line += f"; {decimal(free)} free"
    needed = sum(size for folder, size in sizes.items() if states[folder].kind == "missing")
    if needed > free:
        smaller = "--set log.keep_last=1 log.keep_replay=false"
        return [line, f"that does not fit: fewer seeds or tasks, {smaller}, or another --out"]
    return [line]
