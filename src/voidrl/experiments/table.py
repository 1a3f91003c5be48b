"""What an experiment came to: means over the seeds, their range, and the published numbers beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from voidrl.envs.ids import atari_game
from voidrl.errors import VoidrlError
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.state import last_row, read_evaluation, state_of
from voidrl.metrics import read_metrics
from voidrl.scores.statistics import aggregate, percent
from voidrl.suites import published
from voidrl.terminal.tables import print_table, wrap_text
from voidrl.units import human_count

OF_EVALUATION = {"return": "mean_return", "human_normalized": "human_normalized"}
SHARES = {"human_normalized", "success"}
COVERAGE = "coverage/"
AGGREGATED = ("median", "mean", "above_human")


@dataclass(frozen=True)
class Result:
    """A measure of an arm in a task."""

    label: str
    task: str
    phase: str
    measure: str
    values: list[float]
    """One for each seed that is done."""
    steps: list[tuple[int, int]]
    """Of the pre-training before it, if there was one, and of the run itself; each with the protocol's."""
    published: float | None
    ends: bool = True
    """Whether it is of the last run of an arm; else of the pre-training that one began from."""

    @property
    def share(self) -> float:
        """Of the protocol's steps, in the phase that had the smallest."""
        return min(steps / protocol for steps, protocol in self.steps)


def results(plan: Plan) -> list[Result]:
    """Of the cells that are done; of pre-trainings that are gone on from, what they saw."""
    printed = None if plan.published is None else published.numbers(plan.published)
    found: dict[tuple[str, str, str], list[tuple[Cell, dict[str, float]]]] = {}
    for cell in plan.cells:
        if state_of(cell, plan.path(cell)).kind == "done":
            key = (cell.task, cell.label, cell.phase)
            found.setdefault(key, []).append((cell, measured(plan, cell)))
    rows, by_folder = [], {cell.folder: cell for cell in plan.cells}
    for (task, label, phase), members in found.items():
        first = members[0][0]
        runs = [by_folder[first.source], first] if first.source is not None else [first]
        steps = [(run.config.steps, run.protocol_steps) for run in runs]
        measures = first.arm.measures
        if not first.ends:
            measures = tuple(name for name in measures if name.startswith(COVERAGE))
        for measure in measures:
            values = [numbers[measure] for _, numbers in members if measure in numbers]
            if values:
                held = printed.value(label, task) if printed is not None and measure == "return" else None
                rows.append(Result(label, task, phase, measure, values, steps, held, first.ends))
    return rows


def measured(plan: Plan, cell: Cell) -> dict[str, float]:
    """The cell's measures, as far as its run has them."""
    folder, saved = plan.path(cell), None
    if cell.evaluation is not None:
        saved = read_evaluation(cell, folder)
    return {
        name: value for name in cell.arm.measures if (value := _value(name, saved, cell, plan)) is not None
    }


def _value(name: str, saved: dict[str, Any] | None, cell: Cell, plan: Plan) -> float | None:
    found: Any = None
    if name in OF_EVALUATION:
        found = None if saved is None else saved.get(OF_EVALUATION[name])
    elif name == "success":
        told = None if saved is None else saved.get("successes")
        found = None if told is None else float(np.mean(told))
    elif name.startswith("states/"):
        found = None if saved is None else saved.get("counts", {}).get(name.removeprefix("states/"))
    else:  # a column of the metrics: the last value that it has
        row = last_row(plan.path(cell)) or {}
        found = row.get(name)
        if found is None:
            try:
                rows = read_metrics(plan.path(cell))
            except VoidrlError:
                rows = []
            found = next((row[name] for row in reversed(rows) if row.get(name) is not None), None)
    return None if found is None else float(found)


def print_results(plan: Plan, file: TextIO | None = None) -> None:
    """The table, for people."""
    rows = results(plan)
    if not rows:
        print("no run is done yet: no results", file=file)
        return
    names = {cell.task: cell.folder.partition("/")[0] for cell in plan.cells}
    several = any(len(row.values) > 1 for row in rows)
    shown = []
    held = any(row.published is not None for row in rows)
    for row in rows:
        mean = show(row.measure, float(np.mean(row.values)))
        label = row.label if row.ends else f"{row.label}, pre-training"
        cells: list[object] = [names[row.task], label, row.measure, mean]
        if several:
            low, high = (show(row.measure, end) for end in (min(row.values), max(row.values)))
            cells.append("" if low == high else f"{low} to {high}")
        cells += [len(row.values), _steps(row)]
        if held:
            cells.append("" if row.published is None else show(row.measure, row.published))
        shown.append(cells)
    columns = [
        "task",
        "method",
        "measure",
        "mean",
        *["range"] * several,
        "seeds",
        "steps",
        *["published"] * held,
    ]
    print_table(columns, shown, title=plan.experiment.title, file=file)
    for line in [*_aggregates(plan, rows), *_about(plan, rows)]:
        print(wrap_text(line, file=file), file=file)


def show(measure: str, value: float) -> str:
    """As a table has it."""
    if measure in SHARES:
        return percent(value)
    if measure.startswith((COVERAGE, "states/")):
        return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:,.1f}"
    return f"{value:,.1f}"


def _steps(row: Result) -> str:
    """With what the protocol would take, where that is something else."""
    return " + ".join(
        human_count(steps) + ("" if steps == protocol else f" of {human_count(protocol)}")
        for steps, protocol in row.steps
    )


def _aggregates(plan: Plan, rows: Sequence[Result]) -> list[str]:
    """Median, mean and games above human of each arm with several Atari games."""
    printed = None if plan.published is None else published.numbers(plan.published)
    games: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row.measure == "human_normalized" and atari_game(row.task) is not None and row.phase != "pretrain":
            games.setdefault(row.label, {})[row.task] = row.values
    lines = []
    for label, scores in games.items():
        if len(scores) < 2:
            continue
        one = aggregate(scores)
        line = (
            f"{label}, human-normalized over {one.games} games: median {percent(one.median)}, mean "
            f"{percent(one.mean)}, {one.above_human} above human"
        )
        of = " of 57" if one.games == 57 else ""
        held = {} if printed is None else {name: printed.value(label, name + of) for name in AGGREGATED}
        said = {name: value for name, value in held.items() if value is not None}
        if said:
            numbers = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in said.items())
            line += f" (published, {57 if of else 26} games: {numbers})"
        lines.append(line)
    return ["", *lines] if lines else []


def _about(plan: Plan, rows: Sequence[Result]) -> list[str]:
    """How much the numbers can be held against anything."""
    lines = []
    if all(len(row.values) == 1 for row in rows):
        lines.append("One seed each: no spread is known.")
    least = min(row.share for row in rows)
    if least < 1:
        lines.append(f"The shortest runs have {100 * least:.2g} % of the protocol's steps.")
    if plan.published is not None and any(row.published is not None for row in rows):
        lines.append(f"Published: {published.numbers(plan.published).source}.")
    elif plan.published != plan.experiment.published:
        lines.append("Published numbers are not shown: their agents see something else.")
    preset, usual = plan.request.preset, plan.experiment.preset
    if preset is not None and preset != usual:
        lines.append(f"With preset {preset} instead of {usual or 'the usual one'}.")
    if plan.request.changes:
        changes = ", ".join(f"{name} = {value}" for name, value in plan.request.changes.items())
        lines.append(f"Changed: {changes}.")
    return ["", *lines] if lines else []
