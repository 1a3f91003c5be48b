"""Published tables with our numbers beside the printed ones, and how far ours are from the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from voidrl.envs.ids import atari_game
from voidrl.errors import VoidrlError
from voidrl.report.formatting import between, count, listed
from voidrl.report.groups import Arm
from voidrl.report.outcomes import behind, measure_of, outcome, seeds_behind, show_spread, spreads
from voidrl.report.read import Collection, Run
from voidrl.report.tables import Table
from voidrl.runs.experiment_record import ExperimentRecord
from voidrl.scores.statistics import Summary, summarize
from voidrl.suites.atari import GAMES, GAMES_26, find_game

if TYPE_CHECKING:
    from voidrl.suites.published import Published, Row

NOTHING = "–"
RAM = "times the RAM states"
OF_57 = " of 57"


def printed_tables(collection: Collection, arms: Sequence[Arm]) -> list[Table]:
    """For each experiment that has published numbers: tasks, then aggregates over them."""
    from voidrl.suites import published

    tables = []
    for experiment in collection.experiments:
        if experiment.published is None:
            continue
        mine = [arm for arm in arms if arm.runs[0].experiment is experiment]
        try:
            table = published.numbers(experiment.published)
        except VoidrlError as error:
            tables.append(
                Table(f"Published table {experiment.published}", [], [], [f"It is not shown: {error}"])
            )
            continue
        shown = _compare(table, mine, collection)
        for each in shown:
            each.notes.extend(_own_notes(experiment, mine))
        tables += shown
    return tables


def _own_notes(experiment: ExperimentRecord, arms: Sequence[Arm]) -> list[str]:
    """What in our runs keeps them from being those of the table."""
    notes = [f"Ours: {experiment.departure}."] if experiment.departure else []
    sights = dict.fromkeys(run.other_sight for arm in arms for run in arm.runs if run.other_sight)
    if sights:
        notes.append(f"Our agents see {listed(sights)}: their numbers are not those of the table's protocol.")
    lengths: dict[tuple[str, str, str], int] = {}
    for arm in arms:
        key = _row_name(arm), arm.env, arm.phase
        lengths[key] = lengths.get(key, 0) + 1
    if any(number > 1 for number in lengths.values()):
        notes.append(
            "Of an arm that was run for several numbers of steps, the longest complete one is shown."
        )
    return notes


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
    mine = [arm for arm in arms if _row_name(arm) == row.ours]
    mine = [arm for arm in mine if arm.stage == "task"] or mine
    best: dict[str, Arm] = {}
    for arm in sorted(mine, key=lambda arm: (bool(arm.complete), arm.runs[0].asked_steps)):
        best[arm.env] = arm
    return [arm for arm in mine if best[arm.env] is arm]


def _row_name(arm: Arm) -> str:
    """As the experiment has it, before other experiments or lengths were told apart."""
    cell = arm.runs[0].cell
    return arm.label if cell is None else cell.label


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
    numbers = seeds_behind(arm, key)
    seeds = str(len(numbers))
    if len(numbers) < len(arm.seeds):
        seeds += f" of {len(arm.seeds)}"
    if any(run.evaluation_gap == "missing" for run in arm.counted):
        seeds += ", evaluation missing"
    return [shown, seeds, _share(arm.counted if key is None else behind(arm, key), collection)]


def _share(runs: Sequence[Run], collection: Collection) -> str:
    """Of these runs and of those whose agents they took over."""
    sights = dict.fromkeys(run.other_sight for run in runs if run.other_sight)
    if sights:
        return f"another protocol: {listed(sights)}"
    sources = [source_of(run, collection.runs) for run in runs]
    known = [source for source in sources if source is not None]
    before = _part(known, "without reward")
    if any(
        run.cell and run.cell.source and source is None for run, source in zip(runs, sources, strict=True)
    ):
        before = "unknown without reward"
    after = _part(runs, "without reward" if runs[0].phase == "pretrain" else "with it")
    return ", ".join(filter(None, [before, after])) or "unknown"


def _part(runs: Sequence[Run], words: str) -> str:
    protocols = [run.protocol_steps for run in runs if run.protocol_steps]
    if not protocols:
        return ""
    return f"{between(run.final_steps for run in runs)} of {between(protocols)} {words}"


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
        of_26 = atari_summary([arm for arm in mine if _game(arm) in GAMES_26])
        has_others = any(_game(arm) in {*GAMES} - {*GAMES_26} for arm in mine)
        of_57 = atari if has_others else None
        cells = [row.label if row.ours in (None, row.label) else f"{row.label} (ours: {row.ours})"]
        for name in table.aggregates:
            found = of_57 if name.endswith(OF_57) else of_26
            cells += [_printed(row, name), _aggregate(name, found, mine, base, arms)]
        if atari is None:
            cells += [NOTHING, NOTHING]
        else:
            most = max(len(game.scores) for game in atari.games.values())
            fewest = atari.aggregate.seeds
            cells += [str(len(atari.games)), str(most) if most == fewest else f"{fewest} to {most}"]
        rows.append(cells)
    if any(name in ("median", "mean", "above_human") for name in table.aggregates):
        notes.append(
            "Human-normalized, in percent. Ours are over the games that were run; only where these are all "
            "of the table's can they be held against the printed ones. Columns of 57 are of all games run, "
            "where some of these are not among the 26; the others are of those among the 26."
        )
    numeric = frozenset(range(1, len(columns)))
    return Table(f"{table.title}: aggregates", columns, rows, notes, numeric)


def _title(name: str) -> str:
    return name.replace("_", " ")


def _game(arm: Arm) -> str | None:
    name = atari_game(arm.env)
    try:
        return None if name is None else find_game(name)
    except VoidrlError:
        return None  # not among the 57


def _aggregate(
    name: str, atari: Summary | None, mine: Sequence[Arm], base: Row | None, arms: Sequence[Arm]
) -> str:
    if name == RAM:
        return _ram_ratio(mine, _arms_of(base, arms) if base is not None else [])
    name = name.removesuffix(OF_57)
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
    """Human-normalized scores over the games of one arm, with intervals; None where it has none."""
    scores: dict[str, list[float]] = {}
    for arm in arms:
        for run in arm.counted:
            found = outcome(run)
            if "normalized" in found:
                scores.setdefault(arm.env, []).append(found["return"])
    try:
        return summarize(scores, resamples=2000) if scores else None
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
        show = measure_of("normalized").show
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
    return Table("Human-normalized, over games", columns, rows, [note], frozenset(range(1, 7)))
