"""Published tables alongside our numbers, with our seeds and steps, and aggregates over Atari games.

An experiment says which tables it is compared with. A run outside of experiments is compared with the
published rows of the agent whose preset it was trained with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from voidrl.config import bonus_method
from voidrl.envs.suites.atari import GAMES_26
from voidrl.envs.suites.published import AGGREGATES, RAM_RATIO, Published, PublishedRow, sources
from voidrl.errors import VoidrlError
from voidrl.report.agents import find_agent
from voidrl.report.formatting import Table, join_names, step_range
from voidrl.report.groups import PHASE_NAMES, ArmRuns, source_of
from voidrl.report.outcomes import outcome, spreads
from voidrl.report.read import Collection, Run
from voidrl.report.scores.statistics import Summary, known_game, summarize

ABSENT = "–"
FEW_TASKS = 3  # up to which there is room for ranges
AGENTS = "table2"  # the tables with rows for agents that are trained from scratch
NORMALIZED = (
    "Median, mean, IQM and games above human are human-normalized, in percent. Ours are over the games that "
    "were run, so they are comparable only if these are all games of the table: the 26, or the 57 in columns "
    "that say so."
)
Ours = Mapping[str, Mapping[str, ArmRuns]]
"""Our arms by the name of a published row, then by environment; rows without a run are left out."""


def published_tables(collection: Collection, arms: Sequence[ArmRuns]) -> list[Table]:
    """A table for each experiment that reproduces a published one, and for agents outside of these."""
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
        rows = {row.name: row for table in published for row in table.rows if row.ours is not None}
        ours = {name: found for name, row in rows.items() if (found := _arms_of(row, mine))}
        tables.append(_table(published, ours, notes, collection))
    if agents := _agent_arms(arms):
        asked = step_range(arm.runs[0].asked_steps for mine in agents.values() for arm in mine.values())
        notes = [f"Ours: {asked} steps; published: 100k."]
        tables.append(_table(sources(AGENTS), agents, notes, collection))
    return tables


def _agent_arms(arms: Sequence[ArmRuns]) -> Ours:
    """Agents of the published rows that were trained without an experiment that has them."""
    names = dict.fromkeys(row.name.replace("_", "-") for table in sources(AGENTS) for row in table.rows)
    ours: dict[str, dict[str, ArmRuns]] = {}
    for arm in _longest_last(arms):
        experiment, game = arm.runs[0].experiment, known_game(arm.env)
        if arm.phase != "train" or "?" in arm.env or game not in GAMES_26:
            continue
        if bonus_method(arm.runs[0].config):  # another agent than the published one
            continue
        agent = find_agent(arm.runs[0], [*names])
        if agent is not None and (experiment is None or experiment.published is None):
            ours.setdefault(agent.replace("-", "_"), {})[f"atari/{game}"] = arm
    return ours


def _arms_of(row: PublishedRow, arms: Sequence[ArmRuns]) -> dict[str, ArmRuns]:
    """Our arms for a row, by environment: arms with task reward, or if there are none, pre-training."""
    mine = [arm for arm in arms if _row_label(arm) == row.ours and not _is_first_stage(arm)]
    mine = [arm for arm in mine if arm.stage == "task"] or mine
    return {arm.env: arm for arm in _longest_last(mine)}


def _longest_last(arms: Iterable[ArmRuns]) -> list[ArmRuns]:
    """Arms in the order in which later ones replace earlier ones: the longest complete one is shown."""
    return sorted(arms, key=lambda arm: (bool(arm.complete), arm.runs[0].asked_steps))


def _row_label(arm: ArmRuns) -> str:
    """The experiment's label, without suffixes that distinguish experiments or lengths."""
    cell = arm.runs[0].cell
    return arm.label if cell is None else cell.label


def _is_first_stage(arm: ArmRuns) -> bool:
    """Whether it is the pre-training of an arm that the experiment fine-tunes: its score is zero-shot."""
    cell, experiment = arm.runs[0].cell, arm.runs[0].experiment
    if cell is None or experiment is None or cell.phase != "pretrain":
        return False
    return any((each.source, each.arm) == (cell.folder, cell.arm) for each in experiment.cells)


def _table(tables: Sequence[Published], ours: Ours, notes: Sequence[str], collection: Collection) -> Table:
    """A line for each published row of a method and one for ours, with tasks and aggregates as columns."""
    every = dict.fromkeys(task for table in tables for task in table.tasks)
    tasks = [task for task in every if any(task in mine for mine in ours.values())]
    there = {column for table in tables for column in table.columns}
    aggregates = [name for name in AGGREGATES if name in there and (len(tasks) > 1 or not every)]
    if RAM_RATIO in there:
        aggregates = [RAM_RATIO]
    columns = ["method", "", *(task.rpartition("/")[2].replace("_", " ") for task in tasks)]
    columns += ["IQM" if name == "iqm" else name.replace("_", " ") for name in aggregates]
    columns += ["tasks", "seeds", "steps"]
    quoted: dict[str, list[tuple[str, PublishedRow]]] = {}
    for table in tables:
        for row in table.rows:
            heading = table.heading + (f", {row.runs} runs" if row.runs else "")
            quoted.setdefault(row.name, []).append((heading, row))
    rows = []
    for name, found in quoted.items():
        for heading, row in found:
            cells = [_published(row, column) for column in (*tasks, *aggregates)]
            if {*cells} != {ABSENT}:
                rows.append([row.label, heading, *cells, "", "", ""])
        if mine := ours.get(name):
            label = next((row.ours for _, row in found if row.ours), found[0][1].label)
            numbers = [*_scores(mine, tasks), *_aggregates(mine, aggregates, ours, tables)]
            rows.append([label, "ours", *numbers, *_provenance(mine, collection)])
    notes = [*notes, *(note for table in tables for note in table.notes)]
    citations = [f"{table.heading.capitalize()}: {table.source}; {table.measure}." for table in tables]
    if "median" in aggregates:
        notes.append(NORMALIZED)
    if absent := [task for task in every if task not in tasks]:
        notes.append(f"Tasks without a run: {len(absent)} of {len(every)} ({join_names(absent)}).")
    numeric = frozenset(range(2, len(columns) - 1))
    return Table(tables[0].title, columns, rows, [*citations, *notes], numeric)


def _published(row: PublishedRow, column: str) -> str:
    value = row.values.get(column)
    return ABSENT if value is None else f"{value:g}".replace("-", "−")


def _scores(mine: Mapping[str, ArmRuns], tasks: Sequence[str]) -> list[str]:
    """Our score in each task."""
    cells = []
    for arm in map(mine.get, tasks):
        found = {} if arm is None else spreads(arm)
        key = next((key for key in ("return", "training_return") if key in found), None)
        if arm is None or key is None:
            cells.append(ABSENT if arm is None else "no score yet")
            continue
        shown = found[key].format(key)
        shown = shown if len(tasks) <= FEW_TASKS else shown.partition(" (")[0]
        cells.append(shown + " in training" * (key == "training_return") + " so far" * (not arm.complete))
    return cells


def _provenance(mine: Mapping[str, ArmRuns], collection: Collection) -> list[str]:
    """Number of tasks, their seeds, and how many of the protocol's steps our runs took."""
    seeds, taken = [], []
    for arm in mine.values():
        found = spreads(arm)
        key = next((key for key in ("return", "training_return") if key in found), None)
        runs = arm.counted if key is None else found[key].runs
        used = len({run.seed for run in runs})
        text = f"{used} of {len(arm.seeds)}" if used < len(arm.seeds) else str(used)
        is_missing = any(run.evaluation_gap == "missing" for run in arm.counted)
        seeds.append(f"{text}, evaluation missing" if is_missing else text)
        taken.append(_protocol_steps(runs, collection))
    return [str(len(mine)), *(join_names(dict.fromkeys(texts), 3, "; ") for texts in (seeds, taken))]


def _protocol_steps(runs: Sequence[Run], collection: Collection) -> str:
    """Steps taken of the protocol's, in pre-training and with task reward."""
    views = dict.fromkeys(run.other_sight for run in runs if run.other_sight)
    if views:
        return f"another protocol: {join_names(views)}"
    started = [source_of(run, collection.runs) for run in runs]
    parts = []
    if any(run.cell and run.cell.source and not found for run, found in zip(runs, started, strict=True)):
        parts.append("pre-training unknown")
    elif known := [source for source in started if source is not None]:
        parts.append(_taken(known))
    parts.append(_taken(runs))
    return ", ".join(filter(None, parts)) or "unknown"


def _taken(runs: Sequence[Run]) -> str:
    protocols = [run.protocol_steps for run in runs if run.protocol_steps]
    taken = step_range(run.final_steps for run in runs)
    return f"{taken} of {step_range(protocols)} {PHASE_NAMES[runs[0].phase]}" if protocols else ""


def _aggregates(
    mine: Mapping[str, ArmRuns], names: Sequence[str], ours: Ours, tables: Sequence[Published]
) -> list[str]:
    """Our aggregates over the 26 games, or the 57 where others than the 26 were run."""
    games = {env: known_game(env) for env in mine}
    summaries = {
        "": atari_summary([mine[env] for env, game in games.items() if game in GAMES_26]),
        "57": atari_summary([*mine.values()]) if {*games.values()} - {None, *GAMES_26} else None,
    }
    cells = []
    for name in names:
        statistic, _, of = name.partition(" of ")
        is_ratio = name == RAM_RATIO
        cells.append(_ram_ratio(mine, ours, tables) if is_ratio else _aggregate(statistic, summaries[of]))
    return cells


def _aggregate(statistic: str, summary: Summary | None) -> str:
    if summary is None:
        return ABSENT
    value = summary.intervals[statistic]
    if statistic == "above_human":
        return f"{value.point:g} of {len(summary.games)}"
    interval = "" if summary.is_flat else f" [{100 * value.low:.1f}, {100 * value.high:.1f}]"
    return f"{100 * value.point:.1f}{interval}".replace("-", "−")


def _ram_ratio(mine: Mapping[str, ArmRuns], ours: Ours, tables: Sequence[Published]) -> str:
    """RAM states relative to those of the method whose published ratio is 1."""
    rows = (row for table in tables for row in table.rows)
    baseline = next((ours[r.name] for r in rows if r.values.get(RAM_RATIO) == 1 and r.name in ours), {})
    for env in mine.keys() & baseline.keys():
        found, base = (spreads(arms[env]).get("coverage/ram") for arms in (mine, baseline))
        if found and base and base.mean:
            return f"{found.mean / base.mean:.2f}"
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
        [label, str(summary.runs), *(_aggregate(name, summary) for name in statistics)]
        for label, summary in summaries.items()
    ]
    note = (
        "In percent: 0 is random play, 100 a human. Brackets are 95% bootstrap intervals over the seeds of "
        "each game; a game with one seed adds no width."
    )
    columns = ["", "runs", "IQM", "median", "mean", "games above human"]
    return Table("Human-normalized scores over games", columns, rows, [note], frozenset(range(1, 6)))
