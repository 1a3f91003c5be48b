"""The report as one self-contained HTML page, or as Markdown or CSV."""

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
from voidrl.errors import ConfigError, RunFolderError
from voidrl.report import gallery, markdown
from voidrl.report.curves import chart_data
from voidrl.report.figures import grid_uri, import_pyplot, write_figures
from voidrl.report.formatting import count
from voidrl.report.gallery import Gallery, Picture
from voidrl.report.grids import find_grids, grid_sections
from voidrl.report.groups import STAGES, ArmRuns, make_arms
from voidrl.report.outcomes import LAST_FRACTION, measure_of
from voidrl.report.panel import find_panels, panel_sections
from voidrl.report.probes import probe_tables
from voidrl.report.provenance import commands, runs_table, settings_table, versions_table
from voidrl.report.published import atari_table, published_tables
from voidrl.report.ranking import coverage_rankings
from voidrl.report.read import Collection, read_all
from voidrl.report.results import make_results
from voidrl.report.stages import stage_table
from voidrl.report.summary import caveats, default_title, findings, overview
from voidrl.report.urlb import urlb_sections
from voidrl.runs.checkpoint import write_text_atomic
from voidrl.system.files import user_path
from voidrl.system.terminal import output

FORMATS = {".html": "html", ".htm": "html", ".md": "md", ".csv": "csv"}
REFRESH_SECONDS = 10.0
SCRIPTS = ("charts.js", "pictures.js", "page.js")
MOST_COMMANDS = 60  # on the page
MOST_OPEN_RUNS = 24  # a longer table of runs is folded


def write_report(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    title: str | None = None,
    media: bool = True,
    figures: str | Path | None = None,
    refresh_seconds: float | None = None,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Read all runs under `paths` and write a report about them; returns its path.

    Args:
        paths: Run folders, or folders that contain some at any depth.
        out: The file to write. An existing file is replaced once the new one is complete.
        title: By default the experiment's title, or the environments.
        media: Whether to make videos, which takes most of the time.
        figures: A folder for curves drawn by matplotlib; none by default.
        refresh_seconds: The page reloads itself after this time; never by default.
        say: Called with progress messages and notes about skipped parts; by default they go to stderr.
    """
    say = say or output.say
    path = user_path(out)
    form = _checked_format(path)
    if figures is not None:
        import_pyplot()
    collection = read_all(paths, say)
    arms = make_arms(collection.runs)
    pictures = Gallery()
    if form == "html" or figures is not None:
        pictures = gallery.make_gallery(collection, arms, say, with_media=media and form == "html")
    title = title or default_title(collection)
    if form == "html":
        text = render(collection, arms, pictures, title, paths, media=media, refresh_seconds=refresh_seconds)
    else:
        text = markdown.as_markdown(collection, arms, title) if form == "md" else markdown.as_csv(arms)
    write_text_atomic(path, text)
    if figures is not None:
        panels, grids = find_panels(collection), find_grids(collection)
        drawn = write_figures(arms, pictures.heats, panels, grids, user_path(figures))
        say(f"figures: {count(len(drawn))} files in {figures}")
    return path


def watch_report(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    title: str | None = None,
    media: bool = True,
    figures: str | Path | None = None,
    seconds: float = REFRESH_SECONDS,
) -> Path:
    """Write the report again whenever runs have changed, until none is running; the last time with media."""
    say, before = output.say, None
    while True:
        collection = read_all(paths, lambda text: None)
        is_over = not any(run.status == "running" for run in collection.runs)
        now = [(run.path, run.status, run.steps) for run in collection.runs]
        if is_over or now != before:
            options = {"media": media, "figures": figures} if is_over else {"refresh_seconds": seconds}
            path = write_report(paths, out, title=title, say=lambda text: None, **{"media": False} | options)
            say(f"report: {path}" + (", complete" if is_over else ""))
        if is_over:
            return path
        before = now
        time.sleep(seconds)


def _checked_format(path: Path) -> str:
    """The format to write; fails before minutes are spent on a report that cannot be written."""
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
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        raise ConfigError(f"{path} cannot be written: expected a name that ends with .html, .md or .csv")
    return form


def render(
    collection: Collection,
    arms: Sequence[ArmRuns],
    pictures: Gallery,
    title: str,
    paths: Sequence[str | Path],
    *,
    media: bool,
    refresh_seconds: float | None = None,
) -> str:
    """The page as text."""
    charts = chart_data(arms)
    typed = commands(collection)
    clips = [clip for _, row in pictures.scenes for clip in row]
    data = charts | {
        "heats": [vars(h) | {"name": f"{h.label}, seed {h.seed}, in {h.env_name}"} for h in pictures.heats],
        "clips": [base64.b64encode(clip.content).decode() for clip in clips if clip.content],
    }
    return render_template(
        "page.html",
        title=title,
        overview=overview(collection, arms),
        findings=findings(arms),
        caveats=caveats(collection, arms),
        statuses={
            **Counter(run.status for run in collection.runs),
            "not started": len(collection.missing_cells()),
            "skipped": len(collection.skipped),
        },
        results=make_results(arms),
        atari=atari_table(arms),
        before_after=stage_table(collection, arms),
        panels=panel_sections(collection),
        grids=grid_sections(collection, grid_uri),
        urlb=urlb_sections(collection, arms),
        rankings=[ranking.table() for ranking in coverage_rankings(arms)],
        stages={panel["stage"]: STAGES[panel["stage"]] for panel in charts["panels"]},
        covered=_coverage_charts(charts),
        thinned=charts["thinned"],
        pictures=pictures,
        media=media,
        refresh_seconds=refresh_seconds,
        missing={"videos": _reasons(clips)},
        probes=probe_tables(collection.runs),
        published=published_tables(collection, arms),
        settings=settings_table(arms),
        runs=runs_table(arms),
        runs_open=len(collection.runs) <= MOST_OPEN_RUNS,
        versions=versions_table(collection.runs),
        commands=typed[:MOST_COMMANDS],
        more_commands=max(0, len(typed) - MOST_COMMANDS),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        again=shlex.join(["voidrl", "report", *map(str, paths), "-o", "report.html"]),
        version=__version__,
        limits=gallery,
        last_fraction=f"{LAST_FRACTION:.0%}",
        measure_of=measure_of,
        count=count,
        css=_template("style.css"),
        script="\n".join(map(_template, SCRIPTS)),
        data=_embedded(data),
    )


def render_template(name: str, **values: Any) -> str:
    """Fill a template; values are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("voidrl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name).render(**values)


def _template(name: str) -> str:
    return files("voidrl.report").joinpath("templates", name).read_text(encoding="utf-8")


def _embedded(data: Any) -> str:
    """JSON that cannot close its script element, whatever its strings contain."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _coverage_charts(charts: dict[str, Any]) -> tuple[str, list[list[str]]] | None:
    """The first stage with coverage metrics, and those metrics, which one chart shows."""
    for stage in STAGES:
        logged = {name for panel in charts["panels"] if panel["stage"] == stage for name in panel["curves"]}
        found = [name for name in charts["metrics"] if name.startswith("coverage/") and name in logged]
        if found:
            return stage, [found]
    return None


def _reasons(pictures: Sequence[Picture]) -> dict[str, list[str]]:
    """Why pictures are missing: each reason once, with its runs."""
    reasons: dict[str, dict[str, None]] = {}
    for each in pictures:
        if each.why_not:
            reasons.setdefault(each.why_not, {})[each.run] = None
    return {why: [*runs] for why, runs in reasons.items()}
