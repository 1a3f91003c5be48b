"""Published tables with our numbers beside the printed ones, and how far ours are from the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from voidrl.errors import VoidrlError
from voidrl.report.groups import Arm
from voidrl.report.outcomes import measure_of, outcome, show_spread, spreads
from voidrl.report.read import Collection, Run
from voidrl.report.tables import Table
from voidrl.report.words import count, listed, steps
from voidrl.stats import Summary, summarise

if TYPE_CHECKING:
    from voidrl.experiments.published import Published, Row

NOTHING = "–"
RAM = "times the RAM states"


def printed_tables(collection: Collection, arms: Sequence[Arm]) -> list[Table]:
    """For each experiment that has published numbers: tasks, then aggregates over them."""
    from voidrl.experiments import published

    tables = []
    for experiment in collection.experiments:
        if experiment.published is None:
            continue
        mine = [arm for arm in arms if any(run.experiment is experiment for run in arm.runs)]
        try:
            table = published.numbers(experiment.published)
        except VoidrlError as error:
            tables.append(
                Table(f"Published table {experiment.published}", [], [], [f"It is not shown: {error}"])
            )
            continue
        tables += _compare(table, mine, collection)
    return tables


def _compare(table: Published, arms: Sequence[Arm], collection: Collection) -> list[Table]:
    held = [row for row in table.rows if row.ours is not None and _arms_of(row, arms)]
    tables = []
    if table.tasks:
        tables.append(_by_task(table, held, arms, collection))
    if table.aggregates:
        tables.append(_aggregates(table, held, arms))
    return tables


def _arms_of(row: Row, arms: Sequence[Arm]) -> list[Arm]:
    """Ours of that row: with a reward, or where it was never given one, without."""
    mine = [arm for arm in arms if arm.label == row.ours]
    return [arm for arm in mine if arm.stage == "task"] or mine


def _by_task(table: Published, held: list[Row], arms: Sequence[Arm], collection: Collection) -> Table:
    ours = {row.name: {arm.env: arm for arm in _arms_of(row, arms)} for row in held}
    tasks = [task for task in table.tasks if any(task in mine for mine in ours.values())]
    others = [row for row in table.rows if row not in held and any(task in row.values for task in tasks)]
    columns = ["task"]
    for row in held:
        columns += [f"{row.label}, printed", f"{row.ours}, ours", "seeds", "steps of the protocol"]
    columns += [row.label for row in others]
    rows = []
    for task in tasks:
        cells = [task]
        for row in held:
            arm = ours[row.name].get(task)
            cells += [_printed(row, task), *_ours(arm, collection)]
        rows.append([*cells, *(_printed(row, task) for row in others)])
    notes = [f"Printed: {table.source}; {table.measure}.", *table.notes]
    absent = [task for task in table.tasks if task not in tasks]
    if absent:
        notes.append(
            f"Of its {len(table.tasks)} tasks, {count(len(absent))} have no run here: {listed(absent)}."
        )
    without = [row.ours for row in table.rows if row.ours is not None and row not in held]
    if without:
        notes.append(f"Arms of the experiment without a run here: {listed(map(str, without))}.")
    numeric = frozenset(range(1, len(columns)))
    return Table(table.title, columns, rows, notes, numeric)


def _printed(row: Row, column: str) -> str:
    value = row.values.get(column)
    return NOTHING if value is None else f"{value:g}".replace("-", "−")


def _ours(arm: Arm | None, collection: Collection) -> list[str]:
    """Our number, how many seeds it is of, and how many of the protocol's steps it took."""
    if arm is None:
        return [NOTHING, NOTHING, NOTHING]
    found = spreads(arm)
    key = next((key for key in ("return", "training_return") if key in found), None)
    shown = "no score yet" if key is None else show_spread(key, found[key])
    if key == "training_return":
        shown += ", while training"
    if not arm.complete:
        shown += ", so far"
    return [shown, str(len({run.seed for run in arm.counted})), _share(arm.counted[0], collection)]


def _share(run: Run, collection: Collection) -> str:
    """Of this run and of the one whose agent it took over."""
    parts = []
    for each in (source_of(run, collection.runs), run):
        if each is None or each.cell is None or not each.cell.protocol_steps:
            continue
        words = {"pretrain": "without reward", "finetune": "with it", "train": "with it"}[each.phase]
        parts.append(f"{steps(each.steps)} of {steps(each.cell.protocol_steps)} {words}")
    return ", ".join(parts) or "unknown"


def source_of(run: Run, runs: Sequence[Run]) -> Run | None:
    """The pre-training whose agent a run was fine-tuned from.

    An experiment says which. Without one, it is the only run without reward of its method, seed and world.
    """
    if run.phase != "finetune":
        return None
    if run.cell is not None and run.experiment is not None:
        if run.cell.source is None:
            return None
        folder = (run.experiment.root / run.cell.source).resolve()
        return next((each for each in runs if each.path.resolve() == folder), None)
    same = [
        each
        for each in runs
        if each.phase == "pretrain"
        and (each.method, each.seed) == (run.method, run.seed)
        and _world(run.env).startswith(_world(each.env))
    ]
    return same[0] if len(same) == 1 else None


def _world(env: str) -> str:
    return env.partition("?")[0]


def _aggregates(table: Published, held: list[Row], arms: Sequence[Arm]) -> Table:
    columns = ["method"]
    for name in table.aggregates:
        columns += [f"{_title(name)}, printed", "ours"]
    columns += ["games, ours", "seeds, ours"]
    rows, notes = [], [f"Printed: {table.source}."]
    base = next((row for row in held if row.values.get(RAM) == 1), None)
    for row in table.rows:
        mine = _arms_of(row, arms) if row in held else []
        atari = atari_summary(mine)
        cells = [row.label if row.ours in (None, row.label) else f"{row.label} (ours: {row.ours})"]
        for name in table.aggregates:
            cells += [_printed(row, name), _aggregate(name, atari, mine, base, arms)]
        if atari is None:
            cells += [NOTHING, NOTHING]
        else:
            most = max(len(game.scores) for game in atari.games.values())
            fewest = atari.aggregate.seeds
            cells += [str(len(atari.games)), str(most) if most == fewest else f"{fewest} to {most}"]
        rows.append(cells)
    if any(name in ("median", "mean", "above_human") for name in table.aggregates):
        notes.append(
            "Human-normalised, in percent. Ours are over the games that were run; only where these are all "
            "of the table's can they be held against the printed ones."
        )
    numeric = frozenset(range(1, len(columns)))
    return Table(f"{table.title}: aggregates", columns, rows, notes, numeric)


def _title(name: str) -> str:
    return {"above_human": "above human", "above_human of 57": "above human of 57"}.get(name, name)


def _aggregate(
    name: str, atari: Summary | None, mine: Sequence[Arm], base: Row | None, arms: Sequence[Arm]
) -> str:
    if name == RAM:
        return _ram_ratio(mine, _arms_of(base, arms) if base is not None else [])
    if atari is None or name not in ("median", "mean", "above_human"):
        return NOTHING
    value = atari.intervals[name]
    if name == "above_human":
        return f"{value.point:g} of {len(atari.games)}"
    shown = f"{100 * value.point:.1f}"
    return shown if atari.flat else f"{shown} [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def _ram_ratio(mine: Sequence[Arm], base: Sequence[Arm]) -> str:
    for arm in mine:
        for other in base:
            ours, theirs = spreads(arm).get("coverage/ram"), spreads(other).get("coverage/ram")
            if arm.env == other.env and ours and theirs and theirs.mean:
                return f"{ours.mean / theirs.mean:.2f}"
    return NOTHING


def atari_summary(arms: Sequence[Arm]) -> Summary | None:
    """Human-normalised scores over the games of one arm, with intervals; None where it has none."""
    scores: dict[str, list[float]] = {}
    for arm in arms:
        for run in arm.counted:
            found = outcome(run)
            if "normalised" in found:
                scores.setdefault(arm.env, []).append(found["return"])
    try:
        return summarise(scores, resamples=2000) if scores else None
    except VoidrlError:
        return None  # two ids of one game, such as with and without sticky actions


def atari_table(arms: Sequence[Arm]) -> Table | None:
    """Aggregates over games for each label; only with several games does that say more than the games do."""
    rows, games = [], 0
    for label in dict.fromkeys(arm.label for arm in arms if arm.stage == "task"):
        found = atari_summary([arm for arm in arms if arm.stage == "task" and arm.label == label])
        if found is None:
            continue
        games = max(games, len(found.games))
        show = measure_of("normalised").show
        cells = [label, str(len(found.games)), str(found.aggregate.runs)]
        for name in ("iqm", "median", "mean"):
            value = found.intervals[name]
            interval = "" if found.flat else f" [{show(value.low)}, {show(value.high)}]"
            cells.append(show(value.point) + interval)
        rows.append([*cells, f"{found.aggregate.above_human} of {len(found.games)}"])
    if games < 2:
        return None
    columns = ["", "games", "runs", "IQM", "median", "mean", "above human"]
    note = (
        "0 % is random play, 100 % a human. In brackets 95 % intervals from resampling seeds within games: "
        "a game with one seed widens none of them."
    )
    return Table("Human-normalised, over games", columns, rows, [note], frozenset(range(1, 7)))
