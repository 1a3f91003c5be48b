"""The report as Markdown, and its runs as CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any

from voidrl import __version__
from voidrl.report.contents import Report
from voidrl.report.formatting import Table, escape_markdown
from voidrl.report.outcomes import outcome, return_source, sort_keys
from voidrl.report.provenance import commit, field, hardware


def as_markdown(report: Report) -> str:
    """Summary, results, probes, published tables, settings, runs, versions and commands."""
    overview = [f"**{name}:** {escape_markdown(value)}" for name, value in report.overview]
    parts = [f"# {escape_markdown(report.title)}", _list([*overview, *map(escape_markdown, report.findings)])]
    if report.caveats:
        parts.append("## Caveats")
    for caveat in report.caveats:
        parts += [f"**{escape_markdown(caveat.title)}**", _list(map(escape_markdown, caveat.details))]
    parts.append("## Results")
    tables = [report.before_after, *(result.table() for result in report.results), report.atari]
    parts += [_section(table, "###") for table in tables if table is not None]
    for section in (*report.panels, *report.grids, *report.urlb):
        sentences = [*section.findings, *section.missing]
        parts.append(f"## {escape_markdown(section.title)}")
        parts += [_list(map(escape_markdown, sentences))] if sentences else []
        parts += [_section(table, "###") for table in section.tables]
    parts += [_section(ranking, "##") for ranking in report.rankings]
    for title, group in (("Probes", report.probes), ("Published numbers", report.published)):
        if group:
            parts += [f"## {title}", *(_section(table, "###") for table in group)]
    parts += [_section(table, "##") for table in (report.settings, report.runs, report.versions)]
    if report.commands:
        parts.append("## Commands")
    for name, command in report.commands:
        fence = "```"
        while fence in command:
            fence += "`"
        parts.append(f"{escape_markdown(name)}:\n\n{fence}\n{command}\n{fence}")
    parts.append(f"Made by voidrl {__version__} from the run folders.")
    return "\n\n".join(parts) + "\n"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _section(table: Table, level: str) -> str:
    parts = [f"{level} {escape_markdown(table.title)}", *([table.markdown()] if table.rows else [])]
    return "\n\n".join([*parts, *map(escape_markdown, table.notes)])


def records(report: Report) -> list[dict[str, Any]]:
    """One record for each run, with numbers in full precision."""
    runs = [(arm, run, outcome(run)) for arm in report.arms for run in arm.runs]
    keys = sort_keys({key for *_, numbers in runs for key in numbers})
    return [
        {
            "folder": run.name,
            "experiment": run.experiment and run.experiment.name,
            "environment": run.env,
            "arm": arm.label,
            "method": run.method,
            "phase": run.phase,
            "seed": run.seed,
            "status": run.status,
            "steps": run.steps,
            "steps_asked": run.asked_steps,
            "steps_protocol": run.protocol_steps,
            **{key.replace("/", "_"): numbers.get(key) for key in keys},
            "return_source": return_source(run),
            "date": field(run, "date"),
            "command": field(run, "command"),
            "voidrl": field(run, "versions", "voidrl"),
            "torch": field(run, "versions", "torch"),
            "commit": commit(run),
            "hardware": hardware(run),
        }
        for arm, run, numbers in runs
    ]


def as_csv(report: Report) -> str:
    """The records as rows."""
    rows, out = records(report), io.StringIO()
    writer = csv.DictWriter(out, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_json(report: Report) -> str:
    """The records as JSON."""
    return json.dumps(records(report), indent=2, allow_nan=False) + "\n"
