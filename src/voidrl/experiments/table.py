"""Results of an experiment: means over seeds, their range, and published numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

import numpy as np

from voidrl.config import registry
from voidrl.envs.ids import atari_game
from voidrl.envs.suites import published
from voidrl.envs.suites.published import Published
from voidrl.experiments.grid_table import print_grids
from voidrl.experiments.measures import COVERAGE, cell_value, show_value, zero_shot_value
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.record import make_record
from voidrl.experiments.state import cell_evaluation, no_results, state_of
from voidrl.report.scores import urlb
from voidrl.report.scores.panel import make_panels, signed, span
from voidrl.report.scores.statistics import aggregate, percent
from voidrl.system.terminal.tables import print_table, wrap_text
from voidrl.system.units import human_count

ZERO_SHOT = "zero-shot"
AGGREGATES = {"median": "median", "mean": "mean", "iqm": "IQM", "above_human": "above human"}


@dataclass(frozen=True)
class TableRow:
    """A measure of an arm on a task."""

    label: str
    task: str
    measure: str
    values: list[float]
    """Value of each finished seed."""
    steps: list[tuple[int, int]]
    """Steps of the pre-training, if there was one, and of the run itself; each with the protocol's steps."""
    published: Mapping[str, str]
    """Published numbers as text, by the heading of their table."""
    phase: str
    """Phase of the runs; `zero-shot` for the agent that a fine-tuning starts from, on the task."""
    is_final: bool = True
    """Whether it is of the last run of an arm, rather than of its pre-training."""

    @property
    def share(self) -> float:
        """Smallest share of the protocol's steps over the phases."""
        return min((steps / protocol for steps, protocol in self.steps if protocol), default=1.0)


def results(plan: Plan) -> list[TableRow]:
    """The measures of all finished cells; of pre-trainings that were not evaluated, only coverage."""
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
            if not (first.is_final or first.evaluation or measure.startswith(COVERAGE)):
                continue
            values = [
                float(value)
                for cell in cells
                if (value := cell_value(cell, plan.path(cell), measure)) is not None
            ]
            numbers = _published(plan, label, task) if measure == "return" and first.is_final else {}
            if values:
                rows.append(TableRow(label, task, measure, values, steps, numbers, phase, first.is_final))
            before = [zero_shot_value(cell, plan.path(cell), measure) for cell in cells]
            if found := [value for value in before if value is not None]:
                rows.append(TableRow(label, task, measure, found, steps[:1], {}, ZERO_SHOT, is_final=False))
    return rows


def _sources(plan: Plan) -> tuple[Published, ...]:
    return () if plan.published is None else published.sources(plan.published)


def _published(plan: Plan, label: str, task: str) -> dict[str, str]:
    """Published returns of an arm on a task, with their number of runs where that is known."""
    found = {}
    for table in _sources(plan):
        row = table.row(label)
        if row is not None and task in row.values:
            runs = f" ({row.runs})" if row.runs else ""
            found[table.heading] = show_value("return", row.values[task]) + runs
    return found


def print_results(plan: Plan, file: TextIO | None = None) -> None:
    """Print the table, aggregates over games, and how far numbers can be compared; of a grid, its ranking."""
    if plan.has_grid:
        print_grids(plan, file)
        return
    rows = results(plan)
    if not rows:
        print(wrap_text(no_results(plan), file=file), file=file)
        return
    evaluated_before = any(cell.evaluation is not None and not cell.is_final for cell in plan.cells)
    if evaluated_before or any(row.phase == ZERO_SHOT for row in rows):
        _print_stages(plan, rows, file)
    else:
        _print_rows(plan, rows, file)
    _print_urlb(plan, rows, file)
    _print_panels(plan, file)
    for lines in ([*_aggregates(plan, rows)], [*_caveats(plan, rows)]):
        if lines:
            print(wrap_text("\n".join(["", *lines]), file=file), file=file)


def _print_rows(plan: Plan, rows: Sequence[TableRow], file: TextIO | None) -> None:
    """A line for each measure."""
    names, shown = _task_names(plan), []
    for row in rows:
        low, high = (show_value(row.measure, end) for end in (min(row.values), max(row.values)))
        cells = {
            "task": names[row.task],
            "method": row.label if row.is_final else f"{row.label}, pre-training",
            "measure": row.measure,
            "mean": show_value(row.measure, float(np.mean(row.values))),
            "range": "" if low == high else f"{low} to {high}",
            "seeds": len(row.values),
            "steps": _steps(row),
            **{table.heading: row.published.get(table.heading, "") for table in _sources(plan)},
        }
        shown.append(cells)
    _print_cells(plan, shown, file)


def _print_stages(plan: Plan, rows: Sequence[TableRow], file: TextIO | None) -> None:
    """A line for each method: coverage and zero-shot score before fine-tuning, and the score after."""
    names, by_folder = _task_names(plan), {cell.folder: cell for cell in plan.cells}
    lengths = {cell.config.steps for cell in plan.cells if cell.phase != "pretrain"}
    after = f"after {human_count(lengths.pop())}" if len(lengths) == 1 else "after training"
    shown: dict[tuple[str, str], dict[str, object]] = {}
    for cell in plan.cells:
        if not cell.is_final or (cell.task, cell.label) in shown:
            continue
        before = cell if cell.source is None else by_folder[cell.source]
        line: dict[str, object] = {"task": names[cell.task], "method": cell.label}
        shown[cell.task, cell.label] = line
        found = [row for row in rows if (row.task, row.label) == (before.task, before.label)]
        stages = [(ZERO_SHOT, row) for row in found if row.phase == "pretrain"]
        found = [row for row in rows if (row.task, row.label) == (cell.task, cell.label)]
        found = [row for row in found if row.phase != "pretrain" and not row.measure.startswith(COVERAGE)]
        stages += [(ZERO_SHOT if row.phase == ZERO_SHOT else after, row) for row in found]
        stages.sort(key=lambda stage: stage[0] != ZERO_SHOT)
        for stage, row in stages:
            line[_stage_column(stage, row.measure)] = _mean(row)
            line |= {"steps": _steps(row), **row.published}
        seeds = [*dict.fromkeys(len(row.values) for _, row in stages)]  # of the two stages, if these differ
        line["seeds"] = seeds[0] if len(seeds) == 1 else " + ".join(map(str, seeds))
    order = dict.fromkeys(
        _stage_column(stage, measure)
        for stage in (ZERO_SHOT, after)
        for measure in _measures(plan)
        if stage == after or "@" not in measure
    )
    columns = ["task", "method", *order, "seeds", "steps", *(table.heading for table in _sources(plan))]
    _print_cells(plan, [{name: line.get(name, "") for name in columns} for line in shown.values()], file)


def _stage_column(stage: str, measure: str) -> str:
    """The heading of a measure before or after fine-tuning; coverage is measured in pre-training."""
    if measure.startswith((COVERAGE, "states/")):
        place = "" if measure.startswith(COVERAGE) else f", {stage}"
        return f"states: {measure.partition('/')[2]}{place}"
    column, _, share = measure.partition("@")
    if share:  # of the steps
        at = f"at {share.removesuffix('%')} %"
        return at if column == "eval/return" else f"{column} {at}"
    names = {"return": "", "human_normalized": ", normalized"}
    return stage + names.get(measure, f", {measure}")


def _measures(plan: Plan) -> list[str]:
    return [*dict.fromkeys(measure for cell in plan.cells for measure in cell.arm.measures)]


def _mean(row: TableRow) -> str:
    """The mean, and the range if seeds differ."""
    numbers = (float(np.mean(row.values)), min(row.values), max(row.values))
    mean, low, high = (show_value(row.measure, number) for number in numbers)
    return mean if low == high else f"{mean} ({low} to {high})"


def _task_names(plan: Plan) -> dict[str, str]:
    return {cell.task: cell.folder.partition("/")[0] for cell in plan.cells}


def _print_cells(plan: Plan, shown: Sequence[Mapping[str, object]], file: TextIO | None) -> None:
    columns = [name for name in shown[0] if any(cells[name] for cells in shown)]
    cells_of = [[cells[name] for name in columns] for cells in shown]
    print_table(columns, cells_of, title=plan.experiment.title, file=file)


def _steps(row: TableRow) -> str:
    """Steps of each phase, with the protocol's where these differ."""
    return " + ".join(
        human_count(steps) + ("" if steps == protocol else f" of {human_count(protocol)}")
        for steps, protocol in row.steps
    )


def _aggregates(plan: Plan, rows: Sequence[TableRow]) -> Iterator[str]:
    """Median, mean, interquartile mean and games above human of each arm with several Atari games."""
    games: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row.is_final and row.measure == "human_normalized" and atari_game(row.task) is not None:
            games.setdefault(row.label, {})[row.task] = row.values
    for label, scores in games.items():
        if len(scores) < 2:
            continue
        total = aggregate(scores)
        line = (
            f"{label}, human-normalized over {total.games} games: median {percent(total.median)}, mean "
            f"{percent(total.mean)}, IQM {percent(total.iqm)}, {total.above_human} above human"
        )
        of, suffix = (57, " of 57") if total.games == 57 else (26, "")
        quoted = []
        for table in _sources(plan):
            found = {name: table.value(label, name + suffix) for name in AGGREGATES}
            numbers = [f"{AGGREGATES[name]} {n:g}" for name, n in found.items() if n is not None]
            quoted += [f"{table.heading}, {of} games: {', '.join(numbers)}"] if numbers else []
        yield f"{line} ({'; '.join(quoted)})" if quoted else line


def _print_urlb(plan: Plan, rows: Sequence[TableRow], file: TextIO | None) -> None:
    """Expert-normalized means by body of each method and family, if this is URLB."""
    scores: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        task = urlb.urlb_task(row.task) if plan.experiment.published == "urlb" else None
        if task is not None and row.is_final and row.measure == "return":
            expert = urlb.expert_returns()[task]
            scores.setdefault(row.label, {})[task] = [value / expert for value in row.values]
    if not scores:
        return
    configs = {cell.label: cell.config for cell in plan.cells if cell.is_final}
    methods = []
    for label, found in scores.items():
        config, is_scratch = configs[label], configs[label].phase == "train"
        name = urlb.published_name(config.method.name, config.representation.name)
        printed = urlb.published_scores(None if is_scratch or plan.published is None else name)
        family = "" if is_scratch else registry.read_about(config.method.name).get("family", "")
        methods.append(urlb.MethodScores(label, family, found, printed))
    with_published = any(method.published for method in methods)
    columns = ["method", "family", *urlb.BODIES, "IQM", *(["published"] if with_published else [])]
    lines = []
    groups = [*urlb.sort_methods(methods), *urlb.group_families(methods)]
    for group in groups:
        one = len(group.members) == 1 and group.label == group.members[0].label
        scored = group.score(urlb.ALL)
        published_mean = group.published(urlb.ALL) if group.is_published(urlb.ALL) else None
        assert scored is not None
        means = [score.show() if (score := group.score(body)) else "" for body in urlb.BODIES]
        cells = [group.label, group.members[0].family if one else f"{len(group.members)} methods"]
        cells += [*means, scored.show("iqm")]
        cells += ["" if published_mean is None else f"{published_mean[0]:.2f}"] if with_published else []
        lines.append(cells)
    print(file=file)
    print_table(columns, lines, title="Expert-normalized, mean over tasks [95 % interval]", file=file)


def _print_panels(plan: Plan, file: TextIO | None) -> None:
    """Differences between fine-tuning and training from scratch, and conclusions."""
    found = {cell.folder: cell_evaluation(cell, plan.path(cell)) for cell in plan.cells}
    for panel in make_panels(make_record(plan, ()).cells, found):
        tuned, scratch = panel.label(panel.arms.finetuned), panel.label(panel.arms.scratch)
        rows = [
            (name, signed(gain.point), span(gain))
            for name, gain, _ in panel.difference_rows()
            if gain is not None
        ]
        if rows and panel.gain is not None:
            print(file=file)
            title = f"{tuned} − {scratch}, human-normalized"
            print_table(
                ("game", "difference", f"{panel.gain.percent} interval"), rows, title=title, file=file
            )
        print(wrap_text("\n".join(["", *panel.verdicts()]), file=file), file=file)


def _caveats(plan: Plan, rows: Sequence[TableRow]) -> Iterator[str]:
    """Caveats for comparisons of the numbers."""
    if all(len(row.values) == 1 for row in rows):
        yield "One seed each: no spread is known."
    least = min(row.share for row in rows)
    if least < 1:
        yield f"The shortest runs have {100 * least:.2g} % of the protocol's steps."
    if any(row.published for row in rows):
        shown = [table for table in _sources(plan) if any(table.row(row.label) for row in rows)]
        yield from (f"{table.heading.capitalize()}: {table.source}." for table in shown)
        if any(row.runs for table in shown for row in table.rows):
            yield "In parentheses: the number of runs behind a published number."
        if plan.published == "urlb":
            yield "Published means are over the same tasks as ours, without jaco_reach_top_right."
    elif plan.published != plan.experiment.published:
        yield "Published numbers are not shown: their agents have other observations."
    if departure := make_record(plan, ()).departure:
        yield f"Here: {departure}."
