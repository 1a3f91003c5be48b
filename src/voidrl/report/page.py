"""The report as one self-contained HTML page, or as JSON."""

from __future__ import annotations

import base64
import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from voidrl import __version__
from voidrl.errors import ConfigError, RunFolderError, printable, printable_lines
from voidrl.report import gallery, provenance, summary
from voidrl.report.contents import HEADINGS, Report
from voidrl.report.curves import chart_data
from voidrl.report.formatting import ONE_SEED
from voidrl.report.gallery import Gallery, make_gallery
from voidrl.report.groups import STAGES
from voidrl.report.outcomes import LAST_FRACTION
from voidrl.runs.checkpoint import write_text_atomic
from voidrl.system.files import user_path
from voidrl.system.terminal import output

REFRESH_SECONDS = 10.0
SCRIPTS = ("charts.js", "page.js")
MOST_COMMANDS = 60  # on the page
MOST_OPEN_RUNS = 24  # a longer table of runs is folded


def write_report(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    title: str | None = None,
    media: bool = True,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Read all runs under `paths` and write a report about them; returns its path.

    Args:
        paths: Run folders, or folders that contain some at any depth.
        out: The file to write: .html, or .json for a record of each run. An existing file is replaced once
            the new one is complete.
        title: By default the experiment's title, or the environments.
        media: Whether to make videos, which takes most of the time.
        say: Called with progress messages and notes about skipped parts; by default they go to stderr.
    """
    say = say or output.say
    path = user_path(out)
    require_writable(path)
    return write_page(Report.read(paths, say, title), path, media=media, say=say)


def write_page(
    report: Report,
    path: Path,
    *,
    say: Callable[[str], None],
    media: bool = True,
    refresh_seconds: float | None = None,
) -> Path:
    """Write a report of runs that have been read already."""
    if path.suffix.lower() == ".html":
        pictures = make_gallery(report.collection, report.arms, say, with_media=media)
        write_text_atomic(path, render(report, pictures, media=media, refresh_seconds=refresh_seconds))
    else:
        write_text_atomic(path, report.as_json())
    return path


def watch_report(
    paths: Sequence[str | Path], out: str | Path, *, title: str | None = None, media: bool = True
) -> Path:
    """Write the report again whenever runs have changed, until none is running; the last time with media."""
    path, before = user_path(out), None
    require_writable(path)
    while True:
        report = Report.read(paths, lambda text: None, title)
        is_over = not any(run.status == "running" for run in report.collection.runs)
        now = [(run.path, run.status, run.steps) for run in report.collection.runs]
        if is_over or now != before:
            refresh = None if is_over else REFRESH_SECONDS
            write_page(report, path, say=lambda text: None, media=media and is_over, refresh_seconds=refresh)
            output.say(f"report: {path}" + (", complete" if is_over else ""))
        if is_over:
            return path
        before = now
        time.sleep(REFRESH_SECONDS)


def require_writable(path: Path) -> None:
    """Fail before minutes are spent on a report that cannot be written."""
    folder = path.parent
    if path.is_dir():
        raise RunFolderError(f"{path} is a folder: name a file, such as {path / 'report.html'}")
    if not folder.is_dir():
        raise RunFolderError(
            f"the report cannot be written to {path}: there is no folder {folder}; create it first"
        )
    if not os.access(folder, os.W_OK):
        raise RunFolderError(
            f"the report cannot be written to {path}: {folder} is read-only; choose another path with -o"
        )
    if path.suffix.lower() not in (".html", ".json"):
        raise ConfigError(f"{path} cannot be written: expected a name that ends with .html or .json")


def render(report: Report, pictures: Gallery, *, media: bool, refresh_seconds: float | None = None) -> str:
    """The page as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("voidrl.report"),
        autoescape=True,
        finalize=lambda value: value if hasattr(value, "__html__") else printable_lines(value),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts, runs = chart_data(report.arms), report.collection.runs
    clips = [clip for _, row in pictures.scenes for clip in row]
    data = charts | {
        "heats": pictures.heats,
        "clips": [base64.b64encode(clip.content).decode() for clip in clips if clip.content],
    }
    missing: dict[str, dict[str, None]] = {}  # each reason once, with its runs
    for clip in clips:
        if clip.why_not:
            missing.setdefault(clip.why_not, {})[clip.run] = None
    commands = provenance.commands(report.collection)
    return environment.get_template("page.html").render(
        report=report,
        overview=summary.overview(report.collection, report.arms),
        headings={
            name: text for name, text in HEADINGS.items() if any(s.name == name for s in report.sections)
        },
        settings=provenance.settings_table(report.arms),
        runs=provenance.runs_table(report.arms),
        versions=provenance.versions_table(runs),
        statuses=", ".join(
            f"{number} {status}"
            for status, number in {
                **Counter(run.status for run in runs),
                "not started": len(report.collection.missing),
                "skipped": len(report.collection.skipped),
            }.items()
            if number
        ),
        stages={panel["stage"]: STAGES[panel["stage"]] for panel in charts["panels"]},
        covered=_covered(charts),
        points=charts["points"],
        pictures=pictures,
        media=media,
        refresh_seconds=refresh_seconds,
        missing=missing,
        runs_open=len(runs) <= MOST_OPEN_RUNS,
        commands=commands[:MOST_COMMANDS],
        more_commands=max(0, len(commands) - MOST_COMMANDS),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        again=shlex.join(["voidrl", "report", *map(str, report.paths), "-o", "report.html"]),
        version=__version__,
        limits=gallery,
        last_fraction=f"{LAST_FRACTION:.0%}",
        one_seed=ONE_SEED,
        css=_template("style.css"),
        script="\n".join(map(_template, SCRIPTS)),
        data=_embedded(data),
    )


def _template(name: str) -> str:
    return files("voidrl.report").joinpath("templates", name).read_text(encoding="utf-8")


def _embedded(data: Any) -> str:
    """JSON that cannot close its script element, whatever its strings contain."""
    text = printable(json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _covered(charts: dict[str, Any]) -> tuple[str, list[str]] | None:
    """The first stage with coverage metrics, and those metrics, which one chart shows."""
    for stage in STAGES:
        logged = {name for panel in charts["panels"] if panel["stage"] == stage for name in panel["curves"]}
        found = [name for name in charts["metrics"] if name.startswith("coverage/") and name in logged]
        if found:
            return stage, found
    return None
