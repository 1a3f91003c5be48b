"""The same report for papers: Markdown with its tables, and CSV with a row for each run."""

from __future__ import annotations

from collections.abc import Sequence

from voidrl import __version__
from voidrl.report.groups import Arm
from voidrl.report.outcomes import MEASURES, evaluated_by, outcome
from voidrl.report.provenance import commands, commit, field, hardware, runs_table, versions_table
from voidrl.report.published import atari_table, printed_tables
from voidrl.report.read import Collection
from voidrl.report.results import make_results
from voidrl.report.settings import settings_table
from voidrl.report.summary import caveats, what_came_out, what_was_run
from voidrl.report.tables import Table, escape_markdown, write_csv


def as_markdown(collection: Collection, arms: Sequence[Arm], title: str) -> str:
    """Summary, results, published tables, settings, runs, versions and commands."""
    parts = [f"# {escape_markdown(title)}"]
    parts += map(escape_markdown, what_was_run(collection, arms))
    parts.append("\n".join(f"- {escape_markdown(found)}" for found in what_came_out(arms)))
    warned = caveats(collection, arms)
    if warned:
        lines = ["## Keep in mind", ""]
        for caveat in warned:
            lines.append(f"- **{escape_markdown(caveat.text)}**")
            lines += [f"  - {escape_markdown(detail)}" for detail in caveat.details]
        parts.append("\n".join(lines))
    parts.append("## Results")
    parts += [_section(result.table(), "###") for result in make_results(arms)]
    over_games = atari_table(arms)
    if over_games is not None:
        parts.append(_section(over_games, "###"))
    printed = printed_tables(collection, arms)
    if printed:
        parts.append("## Beside published numbers")
        parts += [_section(table, "###") for table in printed]
    parts.append(_section(settings_table(arms), "##"))
    parts.append(_section(runs_table(arms), "##"))
    parts.append(_section(versions_table(collection.runs), "##"))
    typed = commands(collection)
    if typed:
        parts.append("## Commands")
        parts += [f"{escape_markdown(name)}:\n\n{_fenced(command)}" for name, command in typed]
    parts.append(f"Made by voidrl {__version__} from the run folders.")
    return "\n\n".join(filter(None, parts)) + "\n"


def _section(table: Table, level: str) -> str:
    parts = [f"{level} {escape_markdown(table.title)}"]
    if table.rows:
        parts.append(table.markdown())
    parts += map(escape_markdown, table.notes)
    return "\n\n".join(parts)


def _fenced(command: str) -> str:
    """A block of code that the command itself cannot end."""
    fence = "```"
    while fence in command:
        fence += "`"
    return f"{fence}\n{command}\n{fence}"


def as_csv(arms: Sequence[Arm]) -> str:
    """One row for each run, numbers in full."""
    found = {id(run): outcome(run) for arm in arms for run in arm.runs}
    keys = [key for key in MEASURES if any(key in numbers for numbers in found.values())]
    keys += sorted({key for numbers in found.values() for key in numbers} - {*keys})
    columns = ["folder", "experiment", "environment", "arm", "method", "phase", "seed", "status"]
    columns += ["steps", "steps_asked", "steps_protocol"]
    columns += [key.replace("coverage/", "coverage_") for key in keys]
    columns += ["measured_by", "date", "voidrl", "torch", "commit", "hardware", "command"]
    rows: list[list[object]] = []
    for arm in arms:
        for run in arm.runs:
            numbers = found[id(run)]
            rows.append(
                [
                    run.name,
                    None if run.experiment is None else run.experiment.name,
                    run.env,
                    arm.label,
                    run.method,
                    run.phase,
                    run.seed,
                    run.status,
                    run.steps,
                    run.asked_steps,
                    run.protocol_steps,
                    *(numbers.get(key) for key in keys),
                    evaluated_by(run),
                    field(run, "date"),
                    field(run, "versions", "voidrl"),
                    field(run, "versions", "torch"),
                    commit(run),
                    hardware(run),
                    field(run, "command"),
                ]
            )
    return write_csv(columns, rows)
