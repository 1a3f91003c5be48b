"""Provenance of runs: settings, status, versions, machines and commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from voidrl.report.formatting import ABSENT, Table, count, join_names, seed_list
from voidrl.report.groups import PHASE_NAMES, ArmRuns, format_value, used_settings
from voidrl.report.outcomes import measure_of, outcome, return_source, sort_keys
from voidrl.report.read import Collection, Run
from voidrl.system.units import human_seconds

MOST_VALUES = 4  # of a setting in one cell


def field(run: Run, *names: str) -> Any:
    """An entry of the run's environment.json; None if it is missing or the file has another structure."""
    value: Any = run.machine
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def hardware(run: Run) -> str:
    """GPUs, unless the run was on the CPU, and processor."""
    gpus = field(run, "gpus") if run.config.get("device") != "cpu" else None
    names = [str(gpu.get("name")) for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    if cpu := field(run, "cpu", "model"):
        names.append(f"{cpu}, {field(run, 'cpu', 'count')} cores")
    return ", ".join(dict.fromkeys(names))


def commit(run: Run) -> str:
    """The git commit of the folder in which the run was started."""
    return str(field(run, "git", "commit") or "unknown")[:10]


def dates(runs: Iterable[Run]) -> str:
    """The first and the last day on which runs started; empty if unknown."""
    days = sorted({str(field(run, "date") or "")[:10] for run in runs} - {""})
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else ""


def settings_table(arms: Sequence[ArmRuns]) -> Table:
    """A row for each setting that differs between runs, a column for each method and phase."""
    columns: dict[str, list[dict[str, str]]] = {}
    for arm in arms:
        label = arm.grid_label or arm.label  # points differ only in the fields of the grid
        title = f"{label}, {arm.phase_hint}" if arm.phase_hint else label
        used = ({k: format_value(v) for k, v in used_settings(run).items()} for run in arm.runs)
        columns.setdefault(title, []).extend(used)
    values: dict[str, set[str]] = {}
    for settings in chain(*columns.values()):
        for name in settings.keys() - {"seed", "phase"}:  # shown elsewhere
            values.setdefault(name, set()).add(settings[name])
    rows = []
    for name in sorted(name for name, found in values.items() if len(found) > 1):
        rows.append([name])
        for members in columns.values():
            shown = dict.fromkeys(settings.get(name, ABSENT) for settings in members)
            rows[-1].append("; ".join(shown) if len(shown) <= MOST_VALUES else f"{count(len(shown))} values")
    note = (
        f"{count(len(values) - len(rows))} of {count(len(values))} settings are the same in all runs and are "
        f"not shown. {ABSENT} marks a setting that a run does not use."
    )
    return Table("Settings that differ", ["setting", *columns], rows, [note])


def runs_table(arms: Sequence[ArmRuns]) -> Table:
    """Every run with its status; failed runs are highlighted."""
    rows: list[list[str]] = []
    for arm in arms:
        for run in arm.runs:
            status = run.status + (", evaluation missing" if run.evaluation_gap == "missing" else "")
            taken = count(run.steps) + ("" if run.took_all_steps else f" of {count(run.asked_steps)}")
            time = "" if run.training_seconds is None else human_seconds(run.training_seconds)
            started = str(field(run, "date") or "")[:16].replace("T", " ")
            found, main = outcome(run), ABSENT
            for key in sort_keys(found)[:1]:
                main = f"{measure_of(key).name} {measure_of(key).format(found[key])}"
            row = [run.name, arm.env_name, arm.label, PHASE_NAMES[run.phase], str(run.seed), status, taken]
            rows.append([*row, time, main, return_source(run), started])
    columns = ["folder", "environment", "arm", "phase", "seed", "status", "steps", "training time"]
    columns += ["result", "return measured on", "started (UTC)"]
    return Table("All runs", columns, rows, numeric=frozenset({4, 6, 7}), status_column=5)


def versions_table(runs: Sequence[Run]) -> Table:
    """Versions and machines, with the runs that share them."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        names = ("voidrl", "torch", "python", "numpy")
        versions = (str(field(run, "versions", name) or "?") for name in names)
        groups.setdefault((*versions, commit(run), hardware(run) or "unknown"), []).append(run)
    rows = [
        [*key, str(len(found)), dates(found) or "unknown", seed_list(run.seed for run in found)]
        for key, found in groups.items()
    ]
    columns = ["voidrl", "torch", "Python", "numpy", "git commit", "hardware", "runs", "dates", "seeds"]
    return Table("Versions and hardware", columns, rows, numeric=frozenset({6}))


def commands(collection: Collection) -> list[tuple[str, str]]:
    """Runs and the command that made them: experiments first, then each distinct command."""
    found = [
        (f"experiment {experiment.name}", command)
        for experiment in collection.experiments
        for command in (*experiment.earlier_commands, experiment.command)
        if command
    ]
    listed = {command for _, command in found}
    by_command: dict[str, list[str]] = {}
    for run in collection.runs:
        if (typed := field(run, "command")) and typed not in listed:
            by_command.setdefault(str(typed), []).append(run.name)
    return found + [(join_names(names, most=4), typed) for typed, names in by_command.items()]
