"""The report as Markdown, and its runs as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from voidrl import __version__
from voidrl.report.formatting import Section, Table, escape_markdown
from voidrl.report.grids import grid_sections
from voidrl.report.groups import ArmRuns
from voidrl.report.outcomes import MEASURES, outcome, return_source
from voidrl.report.panel import panel_sections
from voidrl.report.probes import probe_tables
from voidrl.report.provenance import (
    commands,
    commit,
    field,
    hardware,
    runs_table,
    settings_table,
    versions_table,
)
from voidrl.report.published import atari_table, published_tables
from voidrl.report.ranking import coverage_rankings
from voidrl.report.read import Collection
from voidrl.report.results import make_results
from voidrl.report.stages import stage_table
from voidrl.report.summary import caveats, findings, overview
from voidrl.report.urlb import urlb_sections


def as_markdown(collection: Collection, arms: Sequence[ArmRuns], title: str) -> str:
    """Summary, results, probes, published tables, settings, runs, versions and commands."""
    parts = [f"# {escape_markdown(title)}"]
    lines = [f"**{name}:** {escape_markdown(value)}" for name, value in overview(collection, arms)]
    lines += map(escape_markdown, findings(arms))
    parts.append("\n".join(f"- {line}" for line in lines))
    lines = []
    for caveat in caveats(collection, arms):
        lines.append(f"- **{escape_markdown(caveat.title)}**")
        lines += [f"  - {escape_markdown(detail)}" for detail in caveat.details]
    if lines:
        parts += ["## Caveats", "\n".join(lines)]
    parts.append("## Results")
    before_after = stage_table(collection, arms)
    if before_after is not None:
        parts.append(_section(before_after, "###"))
    parts += [_section(result.table(), "###") for result in make_results(arms)]
    over_games = atari_table(arms)
    if over_games is not None:
        parts.append(_section(over_games, "###"))
    for section in (*panel_sections(collection), *grid_sections(collection)):
        parts += _with_sentences(section)
    parts += [_section(ranking.table(), "###") for ranking in coverage_rankings(arms)]
    for section in urlb_sections(collection, arms):
        parts += _with_sentences(section)
    probes = probe_tables(collection.runs)
    if probes:
        parts.append("## Probes")
        parts += [_section(table, "###") for table in probes]
    published = published_tables(collection, arms)
    if published:
        parts.append("## Published numbers")
        parts += [_section(table, "###") for table in published]
    for table in (settings_table(arms), runs_table(arms), versions_table(collection.runs)):
        parts.append(_section(table, "##"))
    typed = commands(collection)
    if typed:
        parts.append("## Commands")
    for name, command in typed:
        fence = "```"
        while fence in command:
            fence += "`"
        parts.append(f"{escape_markdown(name)}:\n\n{fence}\n{command}\n{fence}")
    parts.append(f"Made by voidrl {__version__} from the run folders.")
    return "\n\n".join(parts) + "\n"


def _with_sentences(section: Section) -> list[str]:
    lines = [*section.findings, *section.missing]
    found = "\n".join(f"- {escape_markdown(line)}" for line in lines)
    tables = [_section(table, "###") for table in section.tables]
    return [f"## {escape_markdown(section.title)}", *filter(None, [found]), *tables]


def _section(table: Table, level: str) -> str:
    parts = [f"{level} {escape_markdown(table.title)}", *([table.markdown()] if table.rows else [])]
    return "\n\n".join([*parts, *map(escape_markdown, table.notes)])


def as_csv(arms: Sequence[ArmRuns]) -> str:
    """One row for each run, with numbers in full precision."""
    runs = [(arm, run, outcome(run)) for arm in arms for run in arm.runs]
    found = {key for *_, numbers in runs for key in numbers}
    keys = [key for key in (*MEASURES, *sorted(found - {*MEASURES})) if key in found]
    columns = ["folder", "experiment", "environment", "arm", "method", "phase", "seed"]
    columns += ["status", "steps", "steps_asked", "steps_protocol", *(key.replace("/", "_") for key in keys)]
    columns += ["return_source", "date", "command", "voidrl", "torch", "commit", "hardware"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for arm, run, numbers in runs:
        experiment = run.experiment and run.experiment.name
        row: list[object] = [run.name, experiment, run.env, arm.label, run.method, run.phase, run.seed]
        row += [run.status, run.steps, run.asked_steps, run.protocol_steps, *map(numbers.get, keys)]
        row += [return_source(run), field(run, "date"), field(run, "command")]
        row += [field(run, "versions", name) for name in ("voidrl", "torch")]
        writer.writerow([*row, commit(run), hardware(run)])
    return out.getvalue()
