"""How far each run came, where and when it was made, and how to make it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voidrl.report.formatting import count, listed, seeds
from voidrl.report.groups import PHASE_NAMES, Arm
from voidrl.report.outcomes import evaluated_by
from voidrl.report.read import Collection, Run
from voidrl.report.tables import Table
from voidrl.units import human_seconds

FLAGS = {"failed": "failed", "incomplete": "warn", "running": "running"}


def field(run: Run, *names: str) -> Any:
    """Something of the run's environment.json, which may have been written by anybody; None where missing."""
    value: Any = run.machine
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def hardware(run: Run) -> str:
    """The machine in a few words: the GPU unless the run was told to leave it alone, and the processor."""
    gpus = field(run, "gpus")
    names = [str(gpu.get("name")) for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    used = dict.fromkeys(names) if run.config.get("device") != "cpu" else {}
    cpu, cores = field(run, "cpu", "model"), field(run, "cpu", "count")
    return ", ".join([*used, *([f"{cpu}, {cores} cores"] if cpu else [])])


def commit(run: Run) -> str:
    """What of git is known: the commit, and whether files differed from it."""
    found = field(run, "git", "commit")
    return f"{str(found)[:10]}{', changed' if field(run, 'git', 'dirty') else ''}" if found else "unknown"


def runs_table(arms: Sequence[Arm]) -> Table:
    """Every run with its status: the failed ones as visible as the others."""
    rows: list[list[str]] = []
    flags: dict[tuple[int, int], str] = {}
    for arm in arms:
        for run in arm.runs:
            is_missing = run.evaluation_gap == "missing"
            if run.status in FLAGS or is_missing:
                flags[len(rows), 5] = FLAGS.get(run.status, "warn")
            took = run.training_seconds
            rows.append(
                [
                    run.name,
                    arm.env_name,
                    arm.label,
                    PHASE_NAMES[run.phase],
                    str(run.seed),
                    f"{run.status}, evaluation missing" if is_missing else run.status,
                    count(run.steps)
                    if run.took_all_steps
                    else f"{count(run.steps)} of {count(run.asked_steps)}",
                    "" if took is None else human_seconds(took),
                    evaluated_by(run),
                    str(field(run, "date") or "")[:16].replace("T", " "),
                ]
            )
    columns = ["folder", "environment", "arm", "phase", "seed", "status", "steps", "training time"]
    columns += ["its return is of", "begun (UTC)"]
    return Table("All runs", columns, rows, numeric=frozenset({4, 6, 7}), flags=flags)


def versions_table(runs: Sequence[Run]) -> Table:
    """Versions and machines, and how many runs share them."""
    together: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        versions = [
            str(field(run, "versions", name) or "?") for name in ("voidrl", "torch", "python", "numpy")
        ]
        together.setdefault((*versions, commit(run), hardware(run) or "unknown"), []).append(run)
    rows = [
        [*key, str(len(found)), _dates(found), seeds([run.seed for run in found])]
        for key, found in together.items()
    ]
    columns = ["voidrl", "torch", "Python", "numpy", "git commit", "hardware", "runs", "dates", "seeds"]
    return Table("Versions and hardware", columns, rows, numeric=frozenset({6}))


def _dates(runs: Sequence[Run]) -> str:
    days = sorted({str(field(run, "date") or "")[:10] for run in runs} - {""})
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "unknown"


def commands(collection: Collection) -> list[tuple[str, str]]:
    """What was typed, and for which runs: experiments first, then each command line once."""
    found = [
        (f"experiment {experiment.name}", command)
        for experiment in collection.experiments
        for command in (*experiment.earlier_commands, experiment.command)
        if command
    ]
    by_command: dict[str, list[str]] = {}
    for run in collection.runs:
        typed = field(run, "command")
        if typed:
            by_command.setdefault(str(typed), []).append(run.name)
    return found + [(listed(names, most=4), typed) for typed, names in by_command.items()]
