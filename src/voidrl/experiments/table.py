"""Results of an experiment: means over seeds, their range, and published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from voidrl.envs.ids import atari_game
from voidrl.errors import VoidrlError
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.state import cell_evaluation, state_of
from voidrl.runs.metrics import last_row, read_metrics
from voidrl.scores.statistics import aggregate, percent
from voidrl.suites import published
from voidrl.terminal.tables import print_table, wrap_text
from voidrl.units import human_count

EVALUATION_KEYS = {"return": "mean_return", "human_normalized": "human_normalized"}
SHARES = {"human_normalized", "success"}
COVERAGE = "coverage/"
AGGREGATES = ("median", "mean", "above_human")


@dataclass(frozen=True)
class Result:
    """A measure of an arm on a task."""

    label: str
    task: str
    phase: str
    measure: str
    values: list[float]
    """One for each finished seed."""
    steps: list[tuple[int, int]]
    """Steps of the pre-training, if there was one, and of the run itself; each with the protocol's."""
    published: float | None
    is_final: bool = True
    """Whether it is of the last run of an arm, rather than of its pre-training."""

    @property
    def share(self) -> float:
        """Smallest share of the protocol's steps over the phases."""
        return min(steps / protocol for steps, protocol in self.steps)


def results(plan: Plan) -> list[Result]:
    """The measures of all finished cells; of pre-trainings for other runs, their coverage alone."""
    compared = None if plan.published is None else published.numbers(plan.published)
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in plan.cells:
        if state_of(cell, plan.path(cell)).kind == "done":
            groups.setdefault((cell.task, cell.label, cell.phase), []).append(cell)
    rows, by_folder = [], {cell.folder: cell for cell in plan.cells}
    for (task, label, phase), cells in groups.items():
        first = cells[0]
        runs = [by_folder[first.source], first] if first.source is not None else [first]
        steps = [(run.config.steps, run.protocol_steps) for run in runs]
        for measure in first.arm.measures:
            if not first.is_final and not measure.startswith(COVERAGE):
                continue
            found = [_value(plan, cell, measure) for cell in cells]
            values = [value for value in found if value is not None]
            if values:
                number = compared.value(label, task) if compared and measure == "return" else None
                rows.append(Result(label, task, phase, measure, values, steps, number, first.is_final))
    return rows


def _value(plan: Plan, cell: Cell, measure: str) -> float | None:
    folder = plan.path(cell)
    saved: dict[str, Any] = (cell_evaluation(cell, folder) if cell.evaluation is not None else None) or {}
    if measure in EVALUATION_KEYS:
        value = saved.get(EVALUATION_KEYS[measure])
    elif measure == "success":
        successes = saved.get("successes")
        value = None if successes is None else np.mean(successes)
    elif measure.startswith("states/"):
        value = saved.get("counts", {}).get(measure.removeprefix("states/"))
    else:  # a column of the metrics: its last value
        value = last_row(folder).get(measure)
        if value is None:
            try:
                rows = read_metrics(folder)
            except VoidrlError:
                rows = []
            value = next((row[measure] for row in reversed(rows) if row.get(measure) is not None), None)
    return None if value is None else float(value)


def print_results(plan: Plan, file: TextIO | None = None) -> None:
    """Print the table, aggregates over games, and how far numbers can be compared."""
    rows = results(plan)
    if not rows:
        print("no run is done yet: no results", file=file)
        return
    names = {cell.task: cell.folder.partition("/")[0] for cell in plan.cells}
    several = any(len(row.values) > 1 for row in rows)
    compared = any(row.published is not None for row in rows)
    columns = ["task", "method", "measure", "mean", *["range"] * several, "seeds", "steps"]
    columns += ["published"] * compared
    shown = []
    for row in rows:
        label = row.label if row.is_final else f"{row.label}, pre-training"
        cells: list[object] = [names[row.task], label, row.measure]
        cells.append(_show(row.measure, float(np.mean(row.values))))
        if several:
            low, high = (_show(row.measure, end) for end in (min(row.values), max(row.values)))
            cells.append("" if low == high else f"{low} to {high}")
        cells += [len(row.values), _steps(row)]
        if compared:
            cells.append("" if row.published is None else _show(row.measure, row.published))
        shown.append(cells)
    print_table(columns, shown, title=plan.experiment.title, file=file)
    for lines in (_aggregates(plan, rows), _caveats(plan, rows)):
        if lines:
            print(wrap_text("\n".join(["", *lines]), file=file), file=file)


def _show(measure: str, value: float) -> str:
    if measure in SHARES:
        return percent(value)
    is_count = measure.startswith((COVERAGE, "states/")) and (value == round(value) or abs(value) >= 100)
    return f"{value:,.0f}" if is_count else f"{value:,.1f}"


def _steps(row: Result) -> str:
    """Steps of each phase, with the protocol's where these differ."""
    return " + ".join(
        human_count(steps) + ("" if steps == protocol else f" of {human_count(protocol)}")
        for steps, protocol in row.steps
    )


def _aggregates(plan: Plan, rows: Sequence[Result]) -> list[str]:
    """Median, mean and games above human of each arm with several Atari games."""
    compared = None if plan.published is None else published.numbers(plan.published)
    games: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row.measure == "human_normalized" and atari_game(row.task) is not None and row.phase != "pretrain":
            games.setdefault(row.label, {})[row.task] = row.values
    lines = []
    for label, scores in games.items():
        if len(scores) < 2:
            continue
        total = aggregate(scores)
        line = (
            f"{label}, human-normalized over {total.games} games: median {percent(total.median)}, mean "
            f"{percent(total.mean)}, {total.above_human} above human"
        )
        suffix = " of 57" if total.games == 57 else ""
        found = {name: compared.value(label, name + suffix) for name in AGGREGATES} if compared else {}
        numbers = [f"{name.replace('_', ' ')} {n:g}" for name, n in found.items() if n is not None]
        if numbers:
            line += f" (published, {57 if suffix else 26} games: {', '.join(numbers)})"
        lines.append(line)
    return lines


def _caveats(plan: Plan, rows: Sequence[Result]) -> list[str]:
    """How far the numbers can be compared."""
    lines = []
    if all(len(row.values) == 1 for row in rows):
        lines.append("One seed each: no spread is known.")
    least = min(row.share for row in rows)
    if least < 1:
        lines.append(f"The shortest runs have {100 * least:.2g} % of the protocol's steps.")
    if plan.published is not None and any(row.published is not None for row in rows):
        lines.append(f"Published: {published.numbers(plan.published).source}.")
    elif plan.published != plan.experiment.published:
        lines.append("Published numbers are not shown: their agents have other observations.")
    preset, default = plan.request.preset, plan.experiment.preset
    if preset is not None and preset != default:
        lines.append(f"With preset {preset} instead of {default or 'the default one'}.")
    if plan.request.changes:
        changes = ", ".join(f"{name} = {value}" for name, value in plan.request.changes.items())
        lines.append(f"Changed: {changes}.")
    return lines
