"""Scores on a common scale, and published tables alongside our numbers, with our seeds and steps.

An experiment says which table it is compared with. Other runs are compared with the rows of their preset or
method, if they have the settings that the table asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from voidrl.config import bonus_method, flat
from voidrl.envs.suites import published
from voidrl.envs.suites.atari import GAMES_26
from voidrl.envs.suites.published import Published, PublishedRow
from voidrl.errors import VoidrlError
from voidrl.report.formatting import ABSENT, ONE_SEED, Bar, Table, draw_bars, join_names, step_range
from voidrl.report.groups import PHASE_NAMES, ArmRuns, find_agent
from voidrl.report.read import Collection, Run
from voidrl.report.scores.scales import Scale, scales
from voidrl.report.scores.statistics import Interval, bootstrap

FEW_TASKS = 3  # up to which there is room for ranges
RESAMPLES = 2000
SUITE_26 = {f"atari/{game}" for game in GAMES_26}
INTERVALS = (
    "Brackets are 95% bootstrap intervals: seeds are resampled within each task. A task with one seed adds "
    "no width, and with few seeds intervals are too narrow."
)
AGGREGATES = (
    "Aggregates are of normalized scores, in percent. Ours are over the tasks that were run, so they are "
    "comparable only if these are all tasks of the table."
)


@dataclass(frozen=True)
class Benchmark:
    """The tables of a benchmark, and our arms that are compared with them."""

    tables: tuple[Published, ...]
    ours: dict[str, dict[str, ArmRuns]]
    """Our arms by the name of a row, then by environment."""
    notes: list[str]


def find_benchmarks(collection: Collection, arms: Sequence[ArmRuns]) -> list[Benchmark]:
    """The benchmark of each experiment that reproduces one, and those of other runs."""
    found, compared = [], []
    for experiment in collection.experiments:
        if experiment.published is None:
            continue
        mine = [arm for arm in arms if arm.runs[0].experiment is experiment]
        compared += mine
        try:
            tables = published.sources(experiment.published)
        except VoidrlError as error:
            about = Published(experiment.published, (), (), f"Published table {experiment.published}", "", "")
            found.append(Benchmark((about,), {}, [f"Not shown: {error}"]))
            continue
        notes = [f"Ours: {experiment.departure}."] if experiment.departure else []
        rows = [row for table in tables for row in table.rows if row.ours is not None]
        found.append(Benchmark(tables, {row.name: _arms_of(row, mine) for row in rows}, notes))
    for name in published.names():
        tables = published.sources(name)
        if tables[0].runs:
            ours = _arms_outside(tables, [arm for arm in arms if arm not in compared])
            asked = {arm.runs[0].asked_steps for by_env in ours.values() for arm in by_env.values()}
            notes = [f"Ours: {step_range(asked)} steps with reward."] if asked else []
            found.append(Benchmark(tables, ours, notes))
    return [each for each in found if any(each.ours.values()) or not each.tables[0].rows]


def _arms_of(row: PublishedRow, arms: Sequence[ArmRuns]) -> dict[str, ArmRuns]:
    """Our arms for a row, by environment: arms with task reward, or if there are none, pre-training."""
    cells = ((arm, arm.runs[0].cell) for arm in arms)  # whose labels have no suffixes
    mine = [arm for arm, cell in cells if cell and cell.label == row.ours and not _is_first_stage(arm)]
    mine = [arm for arm in mine if arm.stage == "task"] or mine
    return {arm.env: arm for arm in _longest_last(mine)}


def _arms_outside(tables: Sequence[Published], arms: Sequence[ArmRuns]) -> dict[str, dict[str, ArmRuns]]:
    """Arms that no experiment compares, by the row of their preset or method."""
    names = [row.name for table in tables for row in table.rows]
    ours: dict[str, dict[str, ArmRuns]] = {}
    for arm in _longest_last(arms):
        run = arm.runs[0]
        settings = flat(run.config)
        is_like = all(settings.get(key) == value for key, value in tables[0].runs.items())
        if not is_like or arm.env not in tables[0].tasks or bonus_method(run.config):
            continue
        if run.phase == "train":
            named = [(find_agent(run, [name.replace("_", "-") for name in names]) or "").replace("-", "_")]
        else:
            named = [f"{run.method}_{settings.get('representation.name')}", run.method]
        for name in [name for name in named if name in names][:1]:
            ours.setdefault(name, {})[arm.env] = arm
    return ours


def _longest_last(arms: Iterable[ArmRuns]) -> list[ArmRuns]:
    """Arms in the order in which later ones replace earlier ones: the longest complete one is shown."""
    return sorted(arms, key=lambda arm: (bool(arm.complete), arm.runs[0].asked_steps))


def _is_first_stage(arm: ArmRuns) -> bool:
    """Whether it is the pre-training of an arm that the experiment fine-tunes: its score is zero-shot."""
    cell, experiment = arm.runs[0].cell, arm.runs[0].experiment
    if cell is None or experiment is None or cell.phase != "pretrain":
        return False
    return any((each.source, each.arm) == (cell.folder, cell.arm) for each in experiment.cells)


def published_table(benchmark: Benchmark) -> Table:
    """A line for each published row of a method and one for ours, with tasks and aggregates as columns."""
    tables, ours = benchmark.tables, benchmark.ours
    if not tables[0].rows:
        return Table(tables[0].title, [], [], benchmark.notes)
    every = dict.fromkeys(task for table in tables for task in table.tasks)
    tasks = [task for task in every if any(task in mine for mine in ours.values())]
    aggregates = [*dict.fromkeys(name for table in tables for name in table.columns if "/" not in name)]
    aggregates = aggregates if len(tasks) > 1 or not every else []
    columns = ["method", "", *(task.rpartition("/")[2].replace("_", " ") for task in tasks)]
    columns += [*aggregates, "tasks", "seeds", "steps"]
    quoted: dict[str, list[tuple[str, PublishedRow]]] = {}
    for table in tables:
        for row in table.rows:
            heading = table.heading + (f", {row.runs} runs" if row.runs else "")
            quoted.setdefault(row.name, []).append((heading, row))
    rows = []
    for name, found in quoted.items():
        for heading, row in found:
            known = [row.values.get(column) for column in (*tasks, *aggregates)]
            cells = [ABSENT if value is None else f"{value:g}".replace("-", "−") for value in known]
            if {*cells} - {ABSENT}:
                rows.append([row.label, heading, *cells, "", "", ""])
        if mine := ours.get(name):
            label = next((row.ours for _, row in found if row.ours), found[0][1].label)
            numbers = [_score(mine[task], len(tasks)) if task in mine else ABSENT for task in tasks]
            numbers += [_aggregate(name, mine) for name in aggregates]
            rows.append([label, "ours", *numbers, *_provenance(mine)])
    citations = [f"{table.heading.capitalize()}: {table.source}; {table.measure}." for table in tables]
    notes = [*citations, *benchmark.notes, *(note for table in tables for note in table.notes)]
    notes += [AGGREGATES, INTERVALS] if aggregates else []
    if absent := [task for task in every if task not in tasks]:
        notes.append(f"Tasks without a run: {len(absent)} of {len(every)} ({join_names(absent)}).")
    return Table(tables[0].title, columns, rows, notes, frozenset(range(2, len(columns) - 1)))


def _return_of(arm: ArmRuns) -> str | None:
    """The return that is our score, evaluated or else in training."""
    return next((key for key in ("return", "training_return") if key in arm.spreads), None)


def _score(arm: ArmRuns, tasks: int) -> str:
    """Our score in a task."""
    key = _return_of(arm)
    if key is None:
        return "no score yet"
    shown = arm.spreads[key].format(key)
    shown = shown if tasks <= FEW_TASKS else shown.partition(" (")[0]
    return shown + " in training" * (key == "training_return") + " so far" * (not arm.complete)


def _provenance(mine: Mapping[str, ArmRuns]) -> list[str]:
    """Number of tasks, their seeds, and how many of the protocol's steps our runs took."""
    seeds, taken = [], []
    for arm in mine.values():
        key = _return_of(arm)
        runs = arm.counted if key is None else arm.spreads[key].runs
        used = len({run.seed for run in runs})
        text = f"{used} of {len(arm.seeds)}" if used < len(arm.seeds) else str(used)
        is_missing = any(run.evaluation_gap == "missing" for run in arm.counted)
        seeds.append(f"{text}, evaluation missing" if is_missing else text)
        taken.append(_steps_taken(runs))
    return [str(len(mine)), *(join_names(dict.fromkeys(texts), 3, "; ") for texts in (seeds, taken))]


def _steps_taken(runs: Sequence[Run]) -> str:
    """Steps taken, of the protocol's, in pre-training and with task reward."""
    parts, first = [], runs[0]
    if first.phase == "finetune":
        known = [run.pretraining_steps for run in runs if run.pretraining_steps is not None]
        sources = {run.cell.source for run in runs if run.cell}
        cells = first.experiment.cells if first.experiment else []
        asked = [cell.protocol_steps for cell in cells if cell.folder in sources]
        parts.append(_of_protocol(known, asked, "pre-training") if known else "pre-training unknown")
    asked = [run.protocol_steps for run in runs]
    parts.append(_of_protocol([run.final_steps for run in runs], asked, PHASE_NAMES[first.phase]))
    return ", ".join(parts)


def _of_protocol(taken: Sequence[int], asked: Sequence[int | None], phase: str) -> str:
    protocol = [number for number in asked if number]
    return f"{step_range(taken)}{f' of {step_range(protocol)}' if protocol else ''} {phase}"


def _aggregate(name: str, mine: Mapping[str, ArmRuns]) -> str:
    """Our value of an aggregate: a statistic, of all tasks of its benchmark or of a group of them."""
    statistic, _, group = name.partition(" of ")
    known = [(arm, *arm.scale) for arm in mine.values() if arm.scale and arm.scores()]
    if group == "57":
        chosen = known if {task for *_, task in known} - SUITE_26 else []
    elif group:
        chosen = [each for each in known if each[2] in each[1].groups[group]]
    else:
        chosen = [each for each in known if each[1].groups or each[2] in SUITE_26]
    return _statistic(statistic.partition(" ")[0].lower(), [arm for arm, *_ in chosen])


def _bootstrap(name: str, arms: Iterable[ArmRuns]) -> Interval:
    scores = {arm.env: [score for _, score in arm.scores()] for arm in arms}
    return bootstrap(scores, name, resamples=RESAMPLES)


def _statistic(name: str, arms: Sequence[ArmRuns]) -> str:
    if not arms:
        return ABSENT
    value = _bootstrap(name, arms)
    return f"{value.point:g} of {len(arms)}" if name == "above" else interval_text(value)


def interval_text(value: Interval) -> str:
    """`63.5 [60.1, 66.0]` in percent, without an interval of no width, as with one seed."""
    interval = "" if value.is_flat else f" [{100 * value.low:.1f}, {100 * value.high:.1f}]"
    return f"{100 * value.point:.1f}{interval}".replace("-", "−")


def scale_tables(benchmarks: Sequence[Benchmark], arms: Sequence[ArmRuns]) -> Iterator[Table]:
    """For each scale with several tasks: normalized scores of each method, the highest mean first."""
    for scale in scales():
        methods: dict[str, dict[str, ArmRuns]] = {}
        for arm in arms:
            if arm.stage == "task" and arm.scale is not None and arm.scale[0] is scale and arm.scores():
                methods.setdefault(arm.label, {})[arm.env] = arm
        if len({env for members in methods.values() for env in members}) > 1:
            yield _scale_table(scale, methods, benchmarks)


def _scale_table(
    scale: Scale, methods: Mapping[str, Mapping[str, ArmRuns]], benchmarks: Sequence[Benchmark]
) -> Table:
    statistics = {"iqm": "IQM"}
    if not scale.groups:
        statistics = {"median": "median", **statistics, "above": f"above {scale.reference}"}
    lines: list[tuple[list[str], Bar]] = []
    for label, members in methods.items():
        by_task = [(arm.scale[1], arm) for arm in members.values() if arm.scale]
        known = _published_values(label, benchmarks)
        shares = [scale.normalize(task, known[task]) for task, _ in by_task if task in known]
        printed = float(np.mean(shares)) if shares else None
        mean = _bootstrap("mean", members.values())
        cells = [label, interval_text(mean), ABSENT if printed is None else f"{100 * printed:.1f}"]
        for tasks in scale.groups.values():
            there = [arm for task, arm in by_task if task in tasks]
            part = f" ({len(there)}/{len(tasks)})" if 0 < len(there) < len(tasks) else ""
            cells.append(_statistic("mean", there) + part)
        cells += [_statistic(name, [*members.values()]) for name in statistics]
        numbers = sorted({len(arm.scores()) for arm in members.values()})
        seeds = " to ".join(dict.fromkeys([str(numbers[0]), str(numbers[-1])]))
        taken = dict.fromkeys(_steps_taken(arm.complete) for arm in members.values())
        cells += [seeds + ONE_SEED * (numbers == [1]), join_names(taken, 2, "; ")]
        style = next(iter(members.values())).style
        lines.append((cells, Bar(mean.low, mean.point, mean.high, style, printed)))
    lines.sort(key=lambda line: -line[1].mean)
    columns = ["method", "mean", "published", *scale.groups, *statistics.values(), "seeds", "steps"]
    notes = [
        f"In percent: {scale.about}. Complete and evaluated runs only. The bar is the interval of the mean "
        "over tasks; the upright line and the column “published” are the published mean over the same tasks.",
        INTERVALS,
    ]
    title = f"{scale.reference.capitalize()}-normalized scores over tasks"
    rows, bars = [cells for cells, _ in lines], draw_bars((bar for _, bar in lines), 0.0, 1.0)
    numeric = frozenset(range(1, len(columns) - 2))
    return Table(title, columns, rows, notes, numeric, bars=bars, has_lines=True)


def _published_values(label: str, benchmarks: Sequence[Benchmark]) -> Mapping[str, float]:
    """The scores of the first published row that our arms with this label are compared with."""
    for each in benchmarks:
        names = {name for name, arms in each.ours.items() if any(a.label == label for a in arms.values())}
        for table in each.tables:
            for row in table.rows:
                if row.name in names and row.values:
                    return row.values
    return {}
