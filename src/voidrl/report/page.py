"""The report itself: one HTML page that needs nothing but a browser, or the same as Markdown or CSV."""

from __future__ import annotations

import base64
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from voidrl import __version__
from voidrl.errors import ConfigError, RunFolderError
from voidrl.report import gallery, markdown
from voidrl.report.charts import chart_data
from voidrl.report.formatting import count, seeds, sentence
from voidrl.report.gallery import Gallery, Heat, Map
from voidrl.report.groups import PHASE_NAMES, STAGES, Arm, make_arms
from voidrl.report.outcomes import LAST_SHARE, measure_of
from voidrl.report.provenance import commands, runs_table, versions_table
from voidrl.report.published import atari_table, printed_tables
from voidrl.report.read import Collection, read_all
from voidrl.report.results import Results, make_results, show_cell
from voidrl.report.settings import settings_table
from voidrl.report.summary import caveats, title_of, what_came_out, what_was_run

FORMATS = {".html": "html", ".htm": "html", ".md": "md", ".csv": "csv"}
SCRIPTS = ("charts.js", "pictures.js", "page.js")
MOST_COMMANDS = 60  # shown; a page of hundreds of them would be read by nobody
MOST_OPEN_RUNS = 24  # a longer table of runs is folded


def write_report(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    title: str | None = None,
    media: bool = True,
    form: str | None = None,
    figures: str | Path | None = None,
    figure_formats: Sequence[str] = ("png", "pdf"),
    say: Callable[[str], None] | None = None,
) -> Path:
    """Read all runs under `paths` and write a report of them; returns where it lies.

    Args:
        paths: Run folders, or folders that hold some at any depth.
        out: The file; what is there is replaced at once when the new one is complete.
        title: By default that of the experiment, or the environments.
        media: Whether to make videos and maps of the representation, which takes a while.
        form: `html`, `md` or `csv`; by default what the name of `out` ends with.
        figures: A folder for the curves and heat maps as matplotlib draws them; none by default.
        figure_formats: `png`, `pdf` or whatever else matplotlib writes.
        say: Is told what is skipped and what takes time; by default stderr is.
    """
    say = say or (lambda text: print(text, file=sys.stderr, flush=True))
    path = Path(out).expanduser()
    _require_writable(path)
    form = form or _form_of(path)
    if form not in FORMATS.values():
        raise ConfigError(f"format {form!r} cannot be written: expected html, md or csv")
    if figures is not None:
        from voidrl.report.figures import require_matplotlib

        require_matplotlib(figure_formats)
    collection = read_all(paths, say)
    arms = make_arms(collection.runs)
    wants_heats = form == "html" or figures is not None
    pictures = (
        gallery.make_gallery(collection, arms, say, media=media and form == "html")
        if wants_heats
        else Gallery()
    )
    title = title or title_of(collection)
    if form == "html":
        text = render(collection, arms, pictures, title, paths, media=media)
    elif form == "md":
        text = markdown.as_markdown(collection, arms, title)
    else:
        text = markdown.as_csv(arms)
    write_atomic(path, text)
    if figures is not None:
        from voidrl.report.figures import write_figures

        drawn = write_figures(arms, pictures.heats, Path(figures).expanduser(), figure_formats)
        say(f"{count(len(drawn))} files of figures: {figures}")
    return path


def _form_of(path: Path) -> str:
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(
            f"{path} cannot be written: expected a name that ends with .html, .md or .csv, or --format"
        )
    return FORMATS[path.suffix.lower()]


def _require_writable(path: Path) -> None:
    """Known before minutes are spent on what cannot be written."""
    folder = path.parent
    if path.is_dir():
        raise RunFolderError(
            f"{path} is a folder: name a file for the report, such as {path / 'report.html'}"
        )
    if not folder.is_dir():
        raise RunFolderError(
            f"the report cannot be written to {path}: there is no folder {folder}; make it first"
        )
    if not os.access(folder, os.W_OK):
        raise RunFolderError(
            f"the report cannot be written to {path}: {folder} is read-only; choose another place with -o"
        )


def write_atomic(path: Path, text: str) -> None:
    """A reader sees the old file or the new one."""
    tmp = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        tmp.write_text(text, encoding="utf-8")
        tmp.replace(path)
    except OSError as error:
        with suppress(OSError):
            tmp.unlink(missing_ok=True)
        raise RunFolderError(
            f"the report cannot be written to {path} ({error.strerror or error}): choose another with -o"
        ) from error


def render(
    collection: Collection,
    arms: Sequence[Arm],
    pictures: Gallery,
    title: str,
    paths: Sequence[str | Path],
    *,
    media: bool,
) -> str:
    """The page as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("voidrl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts = chart_data(arms)
    warned = caveats(collection, arms)
    found = commands(collection)
    data = charts | {
        "heats": [_heat_data(heat) for heat in pictures.heats],
        "maps": [_map_data(each) for each in pictures.maps if each.latents is not None],
        "clips": [_text(clip.data) for scene in pictures.scenes for clip in scene.clips if clip.data],
    }
    return environment.get_template("page.html").render(
        title=title,
        facts=_facts(collection, arms),
        told=what_was_run(collection, arms),
        findings=what_came_out(arms),
        caveats=warned,
        states=_states(collection),
        results=make_results(arms),
        atari=atari_table(arms),
        stages=[stage for stage in STAGES if any(panel["stage"] == stage for panel in charts["panels"])],
        stage_names=STAGES,
        phase_names=PHASE_NAMES,
        covered=_covered(charts),
        thinned=charts["thinned"],
        pictures=pictures,
        media=media,
        absent=_absences(pictures),
        printed=printed_tables(collection, arms),
        settings=settings_table(arms),
        runs=runs_table(arms),
        runs_open=len(collection.runs) <= MOST_OPEN_RUNS,
        versions=versions_table(collection.runs),
        commands=found[:MOST_COMMANDS],
        more_commands=max(0, len(found) - MOST_COMMANDS),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        again=shlex.join(["voidrl", "report", *map(str, paths), "-o", "report.html"]),
        version=__version__,
        limits=gallery,
        last_share=f"{LAST_SHARE:.0%}".replace("%", " %"),
        range_of=_range,
        show_cell=show_cell,
        measure_of=measure_of,
        sentence=sentence,
        count=count,
        css=_template("style.css"),
        script="\n".join(map(_template, SCRIPTS)),
        data=_embedded(data),
    )


def _template(name: str) -> str:
    return files("voidrl.report").joinpath("templates", name).read_text(encoding="utf-8")


def _embedded(data: Any) -> str:
    """JSON that cannot end the element it stands in, whatever the strings in it say."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _facts(collection: Collection, arms: Sequence[Arm]) -> list[str]:
    """A line under the title."""
    runs, envs = collection.runs, {arm.env for arm in arms}
    numbers = [run.seed for run in runs]
    return [
        f"{count(len(runs))} run{'s' * (len(runs) > 1)}",
        f"{count(len(envs))} environment{'s' * (len(envs) > 1)}",
        f"seed{'s' * (len(set(numbers)) > 1)} {seeds(numbers)}",
    ]


def _states(collection: Collection) -> dict[str, int]:
    states: dict[str, int] = {}
    for run in collection.runs:
        states[run.status] = states.get(run.status, 0) + 1
    others = {"not begun": len(collection.missing_cells()), "skipped": len(collection.skipped)}
    return states | {status: number for status, number in others.items() if number}


def _covered(charts: dict[str, Any]) -> dict[str, Any] | None:
    """Which stage has coverage, and its metrics: counts and entropy have a chart each."""
    for stage in STAGES:
        found = [
            metric
            for metric in charts["metrics"]
            if metric.startswith("coverage/")
            and any(panel["stage"] == stage and metric in panel["curves"] for panel in charts["panels"])
        ]
        counts, entropies = (
            [metric for metric in found if ("entropy" in metric) is wanted] for wanted in (False, True)
        )
        if found:
            return {"stage": stage, "charts": [each for each in (counts, entropies) if each]}
    return None


def _range(results: Results, row: Any) -> dict[str, str] | None:
    """Where the headline's range lies on the scale of its environment, in percent of its width."""
    key = results.headline
    if key is None or key not in row.spreads:
        return None
    low, high = results.scales[row.arm.env]
    wide = (high - low) or 1.0
    spread = row.spreads[key]
    return {
        name: f"{100 * (value - low) / wide:.1f}%"
        for name, value in (("low", spread.low), ("mean", spread.mean), ("high", spread.high))
    }


def _heat_data(heat: Heat) -> dict[str, Any]:
    return {
        "size": heat.size,
        "walls": heat.walls,
        "visits": heat.visits,
        "start": heat.start,
        "goal": heat.goal,
        "name": f"{heat.label}, seed {heat.seed}, in {heat.env_name}",
    }


def _map_data(each: Map) -> dict[str, Any]:
    found = each.latents
    assert found is not None
    return {
        "name": each.title,
        "xy": [[round(float(x), 4), round(float(y), 4)] for x, y in found.xy],
        "time": found.time.tolist(),
        "total": found.total_steps,
        "sprite": _text(found.sprite),
        "thumb": [*found.thumb_size],
        "columns": found.columns,
        "thumbs": found.thumbs,
    }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _absences(pictures: Gallery) -> dict[str, dict[str, list[str]]]:
    """Why videos and maps are missing: each reason once, with the runs that it holds for."""
    reasons: dict[str, dict[str, list[str]]] = {"videos": {}, "maps": {}}
    for scene in pictures.scenes:
        for clip in scene.clips:
            if clip.why_not and clip.run not in reasons["videos"].setdefault(clip.why_not, []):
                reasons["videos"][clip.why_not].append(clip.run)
    for each in pictures.maps:
        if each.why_not:
            reasons["maps"].setdefault(each.why_not, []).append(each.run)
    return reasons
