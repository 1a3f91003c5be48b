"""Published tables next to our numbers, with our seeds and steps, and aggregates over Atari games."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from voidrl.errors import VoidrlError
from voidrl.report.formatting import Table, join_names, step_range
from voidrl.report.groups import PHASE_NAMES, ArmRuns, source_of
from voidrl.report.outcomes import known_game, outcome, spreads
from voidrl.report.read import Collection, Run
from voidrl.scores.statistics import Summary, summarize
from voidrl.suites.atari import GAMES_26
from voidrl.suites.published import RAM_RATIO, Published, PublishedRow, numbers

ABSENT = "–"
MOST_SIDE_BY_SIDE = 3  # with more methods, they are the rows and tasks the columns


def published_tables(collection: Collection, arms: Sequence[ArmRuns]) -> list[Table]:
    """For each experiment that reproduces a published table: its tasks, then aggregates over them."""
    tables = []
    for experiment in collection.experiments:
        if experiment.published is None:
            continue
        try:
            published = numbers(experiment.published)
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
        ours = {row.name: found for row in published.rows if (found := _arms_of(row, mine))}
        if published.tasks:
            tables.append(_task_table(published, ours, collection, notes))
        if published.aggregates:
            tables.append(_aggregate_table(published, ours, notes))
    return tables


def _row_label(arm: ArmRuns) -> str:
    """The experiment's label, without what distinguishes it from other experiments or lengths."""
    cell = arm.runs[0].cell
    return arm.label if cell is None else cell.label


def _arms_of(row: PublishedRow, arms: Sequence[ArmRuns]) -> dict[str, ArmRuns]:
    """Our arms for a row, by environment: those with task reward, or if there are none, pre-training."""
    mine = [arm for arm in arms if _row_label(arm) == row.ours]
    mine = [arm for arm in mine if arm.stage == "task"] or mine
    longest_last = sorted(mine, key=lambda arm: (bool(arm.complete), arm.runs[0].asked_steps))
    return {arm.env: arm for arm in longest_last}


def _task_table(
    table: Published, ours: dict[str, dict[str, ArmRuns]], collection: Collection, notes: list[str]
) -> Table:
    matched = [row for row in table.rows if row.name in ours]
    if len(matched) > MOST_SIDE_BY_SIDE:
        return _method_table(table, ours, collection, notes)
    tasks = [task for task in table.tasks if any(task in mine for mine in ours.values())]
    others = [row for row in table.rows if row not in matched and any(task in row.values for task in tasks)]
    columns = ["task"]
    for row in matched:
        columns += [f"{row.label}, published", f"{row.ours}, ours", "seeds", "protocol steps"]
    columns += [row.label for row in others]
    rows = []
    for task in tasks:
        cells = [task]
        for row in matched:
            cells += [_published(row, task), *_our_cells(ours[row.name].get(task), collection)]
        rows.append([*cells, *(_published(row, task) for row in others)])
    notes = _task_notes(table, ours, tasks, notes)
    return Table(table.title, columns, rows, notes, frozenset(range(1, len(columns))))


def _method_table(
    table: Published, ours: dict[str, dict[str, ArmRuns]], collection: Collection, notes: list[str]
) -> Table:
    """A line for the published numbers of each method and one for ours, with tasks as columns."""
    tasks = [task for task in table.tasks if any(task in mine for mine in ours.values())]
    columns = ["method", "", *(task.rpartition("/")[2].replace("_", " ") for task in tasks)]
    columns.append("seeds")
    rows = []
    lengths: dict[str, list[str]] = {}
    for row in table.rows:
        rows.append([row.label, "published", *(_published(row, task) for task in tasks), ""])
        if row.name not in ours:
            continue
        cells = [_our_cells(ours[row.name].get(task), collection) for task in tasks]
        _, seeds, taken = ([*dict.fromkeys(texts)] for texts in zip(*cells, strict=True))
        shown = [text.partition(" (")[0] for text, *_ in cells]
        rows.append([str(row.ours), "ours", *shown, join_names(filter(ABSENT.__ne__, seeds), 3, "; ")])
        length = join_names(filter(ABSENT.__ne__, taken), 3, "; ")
        lengths.setdefault(length, []).append(str(row.ours))
    notes = _task_notes(table, ours, tasks, notes)
    notes += [f"Ours, {length} steps: {join_names(labels, len(rows))}." for length, labels in lengths.items()]
    return Table(table.title, columns, rows, notes, frozenset(range(2, len(columns))))


def _task_notes(
    table: Published, ours: dict[str, dict[str, ArmRuns]], tasks: Sequence[str], notes: Sequence[str]
) -> list[str]:
    found = [f"Published: {table.source}; {table.measure}.", *table.notes, *notes]
    absent = [task for task in table.tasks if task not in tasks]
    if absent:
        found.append(f"Tasks without a run: {len(absent)} of {len(table.tasks)} ({join_names(absent)}).")
    without = [row.ours for row in table.rows if row.ours is not None and row.name not in ours]
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


def _aggregate_table(table: Published, ours: dict[str, dict[str, ArmRuns]], notes: list[str]) -> Table:
    columns = ["method"]
    for name in table.aggregates:
        columns += [f"{name.replace('_', ' ')}, published", "ours"]
    columns += ["games, ours", "seeds, ours"]
    baseline = next(
        (ours[row.name] for row in table.rows if row.values.get(RAM_RATIO) == 1 and row.name in ours), {}
    )
    rows = []
    for row in table.rows:
        mine = ours.get(row.name, {})
        games = {env: known_game(env) for env in mine}
        summaries = {
            "26": atari_summary([mine[env] for env, game in games.items() if game in GAMES_26]),
            "57": atari_summary([*mine.values()]) if {*games.values()} - {None, *GAMES_26} else None,
        }
        cells = [row.label if row.ours in (None, row.label) else f"{row.label} (ours: {row.ours})"]
        for name in table.aggregates:
            cells.append(_published(row, name))
            if name == RAM_RATIO:
                cells.append(_ram_ratio(mine, baseline))
            else:
                statistic, _, of = name.partition(" of ")
                cells.append(_aggregate(statistic, summaries[of or "26"]))
        summary = summaries["57"] or summaries["26"]
        if summary is None:
            cells += [ABSENT, ABSENT]
        else:
            seeds = {len(game.scores) for game in summary.games.values()}
            cells += [str(len(summary.games)), " to ".join(map(str, dict.fromkeys([min(seeds), max(seeds)])))]
        rows.append(cells)
    notes = [f"Published: {table.source}.", *notes]
    if "median" in table.aggregates:
        notes.append(
            "Human-normalized, in percent. Ours are over the games that were run, so they are comparable "
            "only if these are all games of the table: the 26, or the 57 in columns that say so."
        )
    return Table(f"{table.title}: aggregates", columns, rows, notes, frozenset(range(1, len(columns))))


def _aggregate(statistic: str, summary: Summary | None) -> str:
    if summary is None:
        return ABSENT
    value = summary.intervals[statistic]
    if statistic == "above_human":
        return f"{value.point:g} of {len(summary.games)}"
    interval = "" if summary.flat else f" [{100 * value.low:.1f}, {100 * value.high:.1f}]"
    return f"{100 * value.point:.1f}{interval}"


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
