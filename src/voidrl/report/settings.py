"""The settings in which runs differ; what all of them share is not shown."""

from __future__ import annotations

from collections.abc import Sequence

from voidrl.config import flat
from voidrl.report.formatting import count
from voidrl.report.groups import PHASE_NAMES, Arm, is_used, show
from voidrl.report.read import Run
from voidrl.report.tables import Table

MOST_VALUES = 4  # named in one cell
ABSENT = "–"
_SHOWN_ELSEWHERE = {"seed", "phase"}


def settings_table(arms: Sequence[Arm]) -> Table:
    """A row for each setting that differs, a column for each label and phase."""
    columns: dict[tuple[str, str], list[Run]] = {}
    for arm in arms:
        columns.setdefault((arm.label, arm.phase), []).extend(arm.runs)
    used = {id(run): _used(run) for runs in columns.values() for run in runs}
    names = sorted({name for settings in used.values() for name in settings} - _SHOWN_ELSEWHERE)
    differ = [name for name in names if len({show(each[name]) for each in used.values() if name in each}) > 1]
    rows = [
        [name, *(_values([used[id(run)] for run in runs], name) for runs in columns.values())]
        for name in differ
    ]
    titles = [f"{label}, {PHASE_NAMES[phase]}" for label, phase in columns]
    note = (
        f"Of {count(len(names))} settings, {count(len(names) - len(rows))} are the same in all runs that use "
        f"them and are not shown. {ABSENT} marks a setting that a run does not use."
    )
    return Table("Settings that differ", ["setting", *titles], rows, [note])


def _used(run: Run) -> dict[str, object]:
    return {name: value for name, value in flat(run.config).items() if is_used(name, run.phase)}


def _values(settings: Sequence[dict[str, object]], name: str) -> str:
    found = dict.fromkeys(show(each[name]) if name in each else ABSENT for each in settings)
    if len(found) > MOST_VALUES:
        return f"{count(len(found))} values"
    return "; ".join(found)
