"""Published tables alongside our numbers, with our seeds and steps, and aggregates over Atari games.

An experiment says which tables it is compared with. A run outside of experiments is compared with the
published rows of the agent whose preset it was trained with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from voidrl.config import bonus_method
from voidrl.envs.suites.atari import GAMES_26
from voidrl.envs.suites.published import RAM_RATIO, Published, PublishedRow, sources
from voidrl.errors import VoidrlError
from voidrl.report.agents import find_agent
from voidrl.report.formatting import Table, join_names, step_range
from voidrl.report.groups import PHASE_NAMES, ArmRuns, source_of
from voidrl.report.outcomes import known_game, outcome, spreads
from voidrl.report.read import Collection, Run
from voidrl.report.scores.statistics import Summary, summarize

ABSENT = "–"
MOST_SIDE_BY_SIDE = 3  # with more methods, they are the rows and tasks the columns
AGENTS = "table2"  # the tables with rows for agents that are trained from scratch


class _Quoted(NamedTuple):
    """A published row and the heading of its table."""

    heading: str
    """Heading of its table, with the number of runs where the row gives it."""
    row: PublishedRow


@dataclass(frozen=True)
class _Comparison:
    """The published tables of one benchmark, and our arms for their rows."""

    tables: tuple[Published, ...]
    ours: Mapping[str, dict[str, ArmRuns]]
    """Our arms by row name, then by environment; rows without a run are left out."""
    notes: list[str]
    """Notes about our runs."""
    is_experiment: bool = True

    @cached_property
    def methods(self) -> dict[str, list[_Quoted]]:
        """The rows of all tables by their names, in the order of the first table."""
        found: dict[str, list[_Quoted]] = {}
        for table in self.tables:
            for row in table.rows:
                runs = f", {row.runs} runs" if row.runs else ""
                found.setdefault(row.name, []).append(_Quoted(table.heading + runs, row))
        return found

    @property
    def all_tasks(self) -> list[str]:
        """The tasks of all tables."""
        return [*dict.fromkeys(task for table in self.tables for task in table.tasks)]

    @property
    def tasks(self) -> list[str]:
        """The tasks with a run of ours."""
        return [task for task in self.all_tasks if any(task in mine for mine in self.ours.values())]

    @property
    def citations(self) -> list[str]:
        """Sources of the published numbers."""
        return [f"{t.heading.capitalize()}: {t.source}; {t.measure}." for t in self.tables]


def published_tables(collection: Collection, arms: Sequence[ArmRuns]) -> list[Table]:
    """For each experiment that reproduces a published table: its tasks, then aggregates over them.

    Then likewise for agents trained outside of such experiments.
    """
    tables = []
    for experiment in collection.experiments:
        if experiment.published is None:
            continue
        try:
            published = sources(experiment.published)
        except VoidrlError as error:
            tables.append(Table(f"Published table {experiment.published}", [], [], [f"Not shown: {error}"]))
            continue
        mine = [arm for arm in arms if arm.runs[0].experiment is experiment]
        notes = [f"Ours: {experiment.departure}."] if experiment.departure else []
        views = dict.fromkeys(run.other_sight for arm in mine for run in arm.runs if run.other_sight)
        if views:
            notes.append(f"Ours: {join_names(views)}, so not the protocol of the published numbers.")
        lengths = Counter((_row_label(arm), arm.env, arm.phase) for arm in mine)
        if any(number > 1 for number in lengths.values()):
            notes.append("If an arm was run for several numbers of steps, the longest complete run is shown.")
        rows = {row.name: row for table in published for row in table.rows if row.ours is not None}
        ours = {name: found for name, row in rows.items() if (found := _arms_of(row, mine))}
        tables += _tables(_Comparison(published, ours, notes), collection)
    return tables + _agent_tables(collection, arms)


def _tables(compared: _Comparison, collection: Collection) -> list[Table]:
    tables = []
    if any(table.tasks for table in compared.tables):
        tables.append(_task_table(compared, collection))
    several = compared.is_experiment or len(compared.tasks) > 1
    if several and any(table.aggregates for table in compared.tables):
        tables.append(_aggregate_table(compared))
    return tables


def _agent_tables(collection: Collection, arms: Sequence[ArmRuns]) -> list[Table]:
    """Published numbers of the agents that were trained without an experiment that has them."""
    published = sources(AGENTS)
    names = dict.fromkeys(row.name for table in published for row in table.rows)
    ours: dict[str, dict[str, ArmRuns]] = {}
    for arm in sorted(arms, key=lambda arm: (bool(arm.complete), arm.runs[0].asked_steps)):
        experiment, game = arm.runs[0].experiment, known_game(arm.env)
        if arm.phase != "train" or "?" in arm.env or game not in GAMES_26:
            continue
        if bonus_method(arm.runs[0].config):  # another agent than the published one
            continue
        agent = find_agent(arm.runs[0], [name.replace("_", "-") for name in names])
        if agent is not None and (experiment is None or experiment.published is None):
            ours.setdefault(agent.replace("-", "_"), {})[f"atari/{game}"] = arm
    if not ours:
        return []
    found = [arm for mine in ours.values() for arm in mine.values()]
    steps = step_range(arm.runs[0].asked_steps for arm in found)
    notes = [f"Ours: {steps} steps; published: 100k."]
    compared = _Comparison(
        published, dict(sorted(ours.items(), key=lambda each: [*names].index(each[0]))), notes, False
    )
    return _tables(compared, collection)


def _row_label(arm: ArmRuns) -> str:
    """The experiment's label, without suffixes that distinguish experiments or lengths."""
    cell = arm.runs[0].cell
    return arm.label if cell is None else cell.label


def _arms_of(row: PublishedRow, arms: Sequence[ArmRuns]) -> dict[str, ArmRuns]:
    """Our arms for a row, by environment: arms with task reward, or if there are none, pre-training."""
    mine = [arm for arm in arms if _row_label(arm) == row.ours and not _is_first_stage(arm)]
    mine = [arm for arm in mine if arm.stage == "task"] or mine
    longest_last = sorted(mine, key=lambda arm: (bool(arm.complete), arm.runs[0].asked_steps))
    return {arm.env: arm for arm in longest_last}


def _is_first_stage(arm: ArmRuns) -> bool:
    """Whether it is the pre-training of an arm that the experiment fine-tunes: its score is zero-shot."""
    cell, experiment = arm.runs[0].cell, arm.runs[0].experiment
    if cell is None or experiment is None or cell.phase != "pretrain":
        return False
    return any((each.source, each.arm) == (cell.folder, cell.arm) for each in experiment.cells)


def _our_label(quoted: Sequence[_Quoted]) -> str:
    return next((each.row.ours for each in quoted if each.row.ours), quoted[0].row.label)


def _task_table(compared: _Comparison, collection: Collection) -> Table:
    if len(compared.ours) > MOST_SIDE_BY_SIDE or len(compared.tables) > 1:
        return _method_table(compared, collection)
    [table], tasks = compared.tables, compared.tasks
    matched = [row for row in table.rows if row.name in compared.ours]
    others = [row for row in table.rows if row not in matched and any(task in row.values for task in tasks)]
    columns = ["task"]
    for row in matched:
        columns += [f"{row.label}, published", f"{row.ours}, ours", "seeds", "protocol steps"]
    columns += [row.label for row in others]
    rows = []
    for task in tasks:
        cells = [task]
        for row in matched:
            cells += [_published(row, task), *_our_cells(compared.ours[row.name].get(task), collection)]
        rows.append([*cells, *(_published(row, task) for row in others)])
    return Table(table.title, columns, rows, _task_notes(compared), frozenset(range(1, len(columns))))


def _method_table(compared: _Comparison, collection: Collection) -> Table:
    """A line for each published row of a method and one for ours, with tasks as columns."""
    tasks = compared.tasks
    columns = ["method", "", *(task.rpartition("/")[2].replace("_", " ") for task in tasks)]
    columns.append("seeds")
    rows = []
    lengths: dict[str, list[str]] = {}
    for name, quoted in compared.methods.items():
        for heading, row in quoted:
            if any(task in row.values for task in compared.all_tasks):
                rows.append([row.label, heading, *(_published(row, task) for task in tasks), ""])
        if name not in compared.ours:
            continue
        cells = [_our_cells(compared.ours[name].get(task), collection) for task in tasks]
        _, seeds, taken = ([*dict.fromkeys(texts)] for texts in zip(*cells, strict=True))
        few = len(tasks) <= MOST_SIDE_BY_SIDE  # room for the range
        shown = [text if few else text.partition(" (")[0] for text, *_ in cells]
        label = _our_label(quoted)
        rows.append([label, "ours", *shown, join_names(filter(ABSENT.__ne__, seeds), 3, "; ")])
        length = join_names(filter(ABSENT.__ne__, taken), 3, "; ")
        lengths.setdefault(length, []).append(label)
    notes = _task_notes(compared)
    if compared.is_experiment:
        notes += [
            f"Ours, steps of {join_names(labels, len(rows))}: {length}." for length, labels in lengths.items()
        ]
    return Table(compared.tables[0].title, columns, rows, notes, frozenset(range(2, len(columns))))


def _task_notes(compared: _Comparison) -> list[str]:
    found = [*compared.citations, *(note for table in compared.tables for note in table.notes)]
    found += compared.notes
    if not compared.is_experiment:
        return found
    tasks, of = compared.tasks, compared.all_tasks
    absent = [task for task in of if task not in tasks]
    if absent:
        found.append(f"Tasks without a run: {len(absent)} of {len(of)} ({join_names(absent)}).")
    without = [
        _our_label(quoted)
        for name, quoted in compared.methods.items()
        if name not in compared.ours and any(each.row.ours for each in quoted)
    ]
    if without:
        found.append(f"Arms without a run: {join_names(without)}.")
    return found


def _published(row: PublishedRow, column: str) -> str:
    value = row.values.get(column)
    return ABSENT if value is None else f"{value:g}".replace("-", "−")


def _our_cells(arm: ArmRuns | None, collection: Collection) -> list[str]:
    """Our score, its seeds, and how many of the protocol's steps its runs took."""
    if arm is None:
        return [ABSENT, ABSENT, ABSENT]
    found = spreads(arm)
    key = next((key for key in ("return", "training_return") if key in found), None)
    shown = "no score yet" if key is None else found[key].format(key)
    shown += " in training" * (key == "training_return") + " so far" * (not arm.complete)
    runs = arm.counted if key is None else found[key].runs
    used = len({run.seed for run in runs})
    seeds = f"{used} of {len(arm.seeds)}" if used < len(arm.seeds) else str(used)
    if any(run.evaluation_gap == "missing" for run in arm.counted):
        seeds += ", evaluation missing"
    return [shown, seeds, _protocol_steps(runs, collection)]


def _protocol_steps(runs: Sequence[Run], collection: Collection) -> str:
    """Steps taken of the protocol's, in pre-training and with task reward."""
    views = dict.fromkeys(run.other_sight for run in runs if run.other_sight)
    if views:
        return f"another protocol: {join_names(views)}"
    sources = [source_of(run, collection.runs) for run in runs]
    parts = []
    if any(run.cell and run.cell.source and not found for run, found in zip(runs, sources, strict=True)):
        parts.append("pre-training unknown")
    elif known := [source for source in sources if source is not None]:
        parts.append(_taken(known))
    parts.append(_taken(runs))
    return ", ".join(filter(None, parts)) or "unknown"


def _taken(runs: Sequence[Run]) -> str:
    protocols = [run.protocol_steps for run in runs if run.protocol_steps]
    taken = step_range(run.final_steps for run in runs)
    return f"{taken} of {step_range(protocols)} {PHASE_NAMES[runs[0].phase]}" if protocols else ""


def _aggregate_table(compared: _Comparison) -> Table:
    tables = compared.tables
    names = [*dict.fromkeys(name for table in tables for name in table.aggregates)]
    columns = ["method"]
    for name in names:
        title = "IQM" if name == "iqm" else name.replace("_", " ")
        columns += [*(f"{title}, {table.heading}" for table in tables if name in table.aggregates), "ours"]
    columns += ["games, ours", "seeds, ours"]
    rows = [_aggregate_row(compared, name, names) for name in compared.methods]
    notes = [f"{table.heading.capitalize()}: {table.source}." for table in tables] + compared.notes
    if "median" in names:
        notes.append(
            "Human-normalized, in percent. Ours are over the games that were run, so they are comparable "
            "only if these are all games of the table: the 26, or the 57 in columns that say so."
        )
    return Table(f"{tables[0].title}: aggregates", columns, rows, notes, frozenset(range(1, len(columns))))


def _aggregate_row(compared: _Comparison, method: str, names: Sequence[str]) -> list[str]:
    quoted, mine = compared.methods[method], compared.ours.get(method, {})
    first, label = quoted[0].row, _our_label(quoted)
    games = {env: known_game(env) for env in mine}
    summaries = {
        "26": atari_summary([mine[env] for env, game in games.items() if game in GAMES_26]),
        "57": atari_summary([*mine.values()]) if {*games.values()} - {None, *GAMES_26} else None,
    }
    cells = [first.label if label == first.label else f"{first.label} (ours: {label})"]
    by_table = [next((r for r in table.rows if r.name == method), None) for table in compared.tables]
    for name in names:
        for table, row in zip(compared.tables, by_table, strict=True):
            if name in table.aggregates:
                cells.append(ABSENT if row is None else _published(row, name))
        if name == RAM_RATIO:
            cells.append(_ram_ratio(mine, _ram_baseline(compared)))
        else:
            statistic, _, of = name.partition(" of ")
            cells.append(_aggregate(statistic, summaries[of or "26"]))
    summary = summaries["57"] or summaries["26"]
    if summary is None:
        return [*cells, ABSENT, ABSENT]
    seeds = {len(game.scores) for game in summary.games.values()}
    return [*cells, str(len(summary.games)), " to ".join(map(str, dict.fromkeys([min(seeds), max(seeds)])))]


def _ram_baseline(compared: _Comparison) -> dict[str, ArmRuns]:
    """Our runs of the method whose published ratio is 1."""
    rows = (row for table in compared.tables for row in table.rows)
    found = (row.name for row in rows if row.values.get(RAM_RATIO) == 1 and row.name in compared.ours)
    return next((compared.ours[name] for name in found), {})


def _aggregate(statistic: str, summary: Summary | None) -> str:
    if summary is None:
        return ABSENT
    value = summary.intervals[statistic]
    if statistic == "above_human":
        return f"{value.point:g} of {len(summary.games)}"
    interval = "" if summary.flat else f" [{100 * value.low:.1f}, {100 * value.high:.1f}]"
    return f"{100 * value.point:.1f}{interval}".replace("-", "−")


def _ram_ratio(mine: dict[str, ArmRuns], baseline: dict[str, ArmRuns]) -> str:
    for env in mine.keys() & baseline.keys():
        ours, theirs = (spreads(arms[env]).get("coverage/ram") for arms in (mine, baseline))
        if ours and theirs and theirs.mean:
            return f"{ours.mean / theirs.mean:.2f}"
    return ABSENT


def atari_summary(arms: Sequence[ArmRuns]) -> Summary | None:
    """Human-normalized scores over the games of one label, with intervals; None without scores."""
    scores: dict[str, list[float]] = {}
    for arm in arms:
        for found in map(outcome, arm.counted):
            if "normalized" in found:
                scores.setdefault(arm.env, []).append(found["return"])
    try:
        return summarize(scores, resamples=2000) if scores else None
    except VoidrlError:
        return None  # two ids of one game, such as with and without sticky actions


def atari_table(arms: Sequence[ArmRuns]) -> Table | None:
    """Aggregates over games for each label; None with fewer than two games."""
    task_arms = [arm for arm in arms if arm.stage == "task"]
    labels = dict.fromkeys(arm.label for arm in task_arms)
    found = {label: atari_summary([arm for arm in task_arms if arm.label == label]) for label in labels}
    summaries = {label: summary for label, summary in found.items() if summary is not None}
    if max((len(summary.games) for summary in summaries.values()), default=0) < 2:
        return None
    statistics = ("iqm", "median", "mean", "above_human")
    rows = [
        [label, str(summary.aggregate.runs), *(_aggregate(name, summary) for name in statistics)]
        for label, summary in summaries.items()
    ]
    note = (
        "In percent: 0 is random play, 100 a human. Brackets are 95% bootstrap intervals over the seeds of "
        "each game; a game with one seed adds no width."
    )
    columns = ["", "runs", "IQM", "median", "mean", "games above human"]
    return Table("Human-normalized scores over games", columns, rows, [note], frozenset(range(1, 6)))
