"""Curves and heat maps for papers, drawn by matplotlib: a file for each metric of an environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from voidrl.errors import ConfigError, MissingExtraError, RunFolderError
from voidrl.report.curves import FRACTIONS, NAMES, arm_curve, group_of, metrics_of
from voidrl.report.formatting import steps
from voidrl.report.gallery import HeatMap
from voidrl.report.grids import GridSection
from voidrl.report.groups import STAGES, ArmRuns, stages_of
from voidrl.report.outcomes import measure_of
from voidrl.report.panel import PanelSection
from voidrl.report.ranking import FAMILIES, Ranking, coverage_rankings
from voidrl.system.units import value_text

COLORS = ("#0067a8", "#c04c00", "#00795a", "#a3407f", "#7a6400", "#5b50c4", "#4c5661", "#b0203f")
DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (4, 2)), (0, (1, 3)), (0, (5, 2, 1, 2, 1, 2)))
DRAWN = ("Task", "Coverage")  # groups of metrics that belong in a paper
MAX_POINTS = 400
DPI = 200


def require_matplotlib(formats: Sequence[str]) -> Any:
    """Pyplot with a file backend.

    Raises:
        MissingExtraError: If matplotlib is not installed.
        ConfigError: If it cannot write one of the formats.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "drawing figures") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.backend_bases import FigureCanvasBase

    for form in formats:
        if form not in FigureCanvasBase.filetypes:
            known = ", ".join(FigureCanvasBase.filetypes)
            raise ConfigError(f"figure format {form!r} cannot be written: expected some of {known}")
    return plt


def write_figures(
    arms: Sequence[ArmRuns],
    heats: Sequence[HeatMap],
    folder: Path,
    formats: Sequence[str],
    panels: Sequence[PanelSection] = (),
    grids: Sequence[GridSection] = (),
) -> list[Path]:
    """Draw task and coverage metrics, panels, fields of grids, and maps of each maze; returns the files."""
    plt = require_matplotlib(formats)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawn = [(f"panel_{each.name}", draw_panel(plt, each)) for each in panels]
        drawn += [
            (f"grid_{each.experiment}_{each.result.label}_{each.env_name}", draw_grid(plt, each))
            for each in grids
            if each.result.effects
        ]
        for name, figure in (*drawn, *_figures(plt, arms, heats)):
            stem = re.sub(r"[^A-Za-z0-9.=-]+", "_", name).strip("_")
            for form in formats:
                written.append(folder / f"{stem}.{form}")
                figure.savefig(written[-1], dpi=DPI)
            plt.close(figure)
    except OSError as error:
        raise RunFolderError(
            f"figures cannot be written to {folder} ({error.strerror or error}); choose another folder"
        ) from error
    return written


def _figures(plt: Any, arms: Sequence[ArmRuns], heats: Sequence[HeatMap]) -> Iterator[tuple[str, Any]]:
    for stage, by_env in stages_of(arms).items():
        for members in by_env.values():
            env = members[0].env_name
            for metric in metrics_of(members):
                if group_of(metric) in DRAWN:
                    title = f"{env}\n{STAGES[stage].lower()}"
                    yield f"{stage}_{env}_{metric}", _draw_curves(plt, members, metric, title)
    for ranking in coverage_rankings(arms):
        yield f"ranking_{ranking.env_name}_{ranking.key}", draw_ranking(plt, ranking)
    for env in dict.fromkeys(heat.env_name for heat in heats):
        yield f"visits_{env}", _draw_mazes(plt, [heat for heat in heats if heat.env_name == env])


def _escape(text: str) -> str:
    return text.replace("$", r"\$")  # matplotlib would read math


def _draw_curves(plt: Any, arms: Sequence[ArmRuns], metric: str, title: str) -> Any:
    figure, axis = plt.subplots(figsize=(4.4, 3.1), layout="constrained")
    for arm in arms:
        curve = arm_curve(arm, metric, MAX_POINTS)
        if curve is None:
            continue
        color, dash = COLORS[arm.style % len(COLORS)], DASHES[arm.style % len(DASHES)]
        label = _escape(f"{arm.label} (n = {len(arm.seeds)})")
        axis.plot(curve.steps, curve.mean, color=color, linestyle=dash, linewidth=1.8, label=label)
        if len(arm.runs) > 1:
            axis.fill_between(curve.steps, curve.low, curve.high, color=color, alpha=0.16, linewidth=0)
    axis.set_title(_escape(title), fontsize=9)
    axis.set_xlabel("environment steps", fontsize=8)
    axis.set_ylabel(_escape(NAMES.get(metric, metric)), fontsize=8)
    axis.set_xlim(left=0)
    if metric in FRACTIONS:
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.xaxis.set_major_formatter(lambda value, _: steps(value) if value >= 0 else "")
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=7.5)
    return figure


def draw_ranking(plt: Any, ranking: Ranking, title: str | None = None) -> Any:
    """A line for each method, the highest mean on top: its range, its seeds as dots, its mean as a bar.

    A dashed line goes through the mean of random play.
    """
    arms = ranking.arms
    size = (6.4, 1.2 + 0.27 * len(arms))
    figure, axis = plt.subplots(figsize=size, layout="constrained")
    for arm in arms:
        if arm.is_reference:
            axis.axvline(arm.mean, color=COLORS[6], linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    for place, arm in enumerate(arms):
        color, values = COLORS[FAMILIES.get(arm.family, 4)], [*arm.values.values()]
        axis.plot([min(values), max(values)], [place, place], color=color, linewidth=6, alpha=0.28)
        axis.plot(values, [place] * len(values), "o", color=color, markersize=3.6, alpha=0.75)
        axis.plot([arm.mean], [place], "|", color=color, markersize=15, markeredgewidth=2.6)
        axis.annotate(
            ranking.format(arm.mean), (max(values), place), (8, 0), textcoords="offset points",
            va="center", fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
    for family in filter(None, ranking.families):
        axis.plot([], [], "s", color=COLORS[FAMILIES[family]], label=family)
    axis.set_yticks(range(len(arms)), [_escape(arm.label) for arm in arms], fontsize=9)
    axis.set_ylim(len(arms) - 0.4, -0.6)
    axis.set_xlim(0, 1.08 * ranking.scale)
    if measure_of(ranking.key).unit == "fraction":
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}" if value <= 1 else "")
    axis.set_title(_escape(ranking.title if title is None else title), fontsize=10)
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", labelsize=8)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.grid(axis="x", alpha=0.25)
    if any(ranking.families):
        figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=len(FAMILIES))
    return figure


def draw_grid(plt: Any, section: GridSection) -> Any:
    """A plot for each field: the mean over all runs at each value, their range, and every point as a dot."""
    effects = sorted(section.result.effects, key=lambda each: -(each.share or 0.0))
    size = (0.6 + 2.7 * len(effects), 2.8)
    figure, axes = plt.subplots(
        1, len(effects), figsize=size, layout="constrained", sharey=True, squeeze=False
    )
    for axis, effect in zip(axes.flat, effects, strict=True):
        order = {repr(each.value): number for number, each in enumerate(effect.means)}
        numeric = effect.is_numeric
        dots = [(value if numeric else order[repr(value)], mean) for value, mean in effect.dots]
        axis.plot(*zip(*dots, strict=True), "o", color=COLORS[6], markersize=3, alpha=0.55)
        places = [each.value if numeric else order[repr(each.value)] for each in effect.means]
        means = [each.mean for each in effect.means]
        if effect.curve:
            axis.plot(*zip(*effect.curve, strict=True), "-", color=COLORS[0], linewidth=1.8)
        joined = "-o" if numeric and not effect.curve else "o"
        axis.plot(places, means, joined, color=COLORS[0], linewidth=1.8, markersize=5)
        if numeric and len(places) > 1:
            low, high = [each.low for each in effect.means], [each.high for each in effect.means]
            axis.fill_between(places, low, high, color=COLORS[0], alpha=0.16, linewidth=0)
        if effect.log:
            axis.set_xscale("log")
        if places:
            axis.set_xticks(places, [value_text(each.value) for each in effect.means])
            axis.minorticks_off()
        share = "" if effect.share is None else f"\n{effect.share:.0%} of the variance"
        axis.set_title(_escape(effect.name + share), fontsize=9)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    axes.flat[0].set_ylabel(_escape(section.measure.name), fontsize=8)
    return figure


def draw_panel(plt: Any, section: PanelSection, title: str | None = None) -> Any:
    """Human-normalized scores of every seed, and a forest plot of the differences, the pooled one last."""
    panel, lines = section.panel, section.lines()
    games, arms = panel.games, panel.arms.names
    size = (8.6, 1.6 + 0.52 * (len(games) + 1))
    figure, (left, right) = plt.subplots(1, 2, figsize=size, layout="constrained", width_ratios=(1.15, 1))
    for number, arm in enumerate(arms):
        color, offset = COLORS[(6, 4, 1, 0)[-len(arms) :][number]], 0.17 * (number - (len(arms) - 1) / 2)
        for place, game in enumerate(games):
            for shape, group in zip(cycle("os^Dv"), panel.groups(arm, game).values(), strict=False):
                values = [entry.human_normalized for entry in group]
                heights = [place + offset] * len(values)
                left.plot(values, heights, shape, color=color, markersize=3.6, alpha=0.6)
            mean = panel.normalized(arm, game)
            if mean is not None:
                left.plot([mean], [place + offset], "|", color=color, markersize=10, markeredgewidth=2.4)
        left.plot([], [], "o", color=color, markersize=4, label=_escape(panel.label(arm)))
    left.set_title("human-normalized: seeds (shape: pre-training), mean", fontsize=9)
    left.legend(frameon=False, fontsize=7.5, loc="lower right", ncols=2)
    places = {game: place for place, game in enumerate([*games, "pooled"])}
    for line in lines:
        place, last = places[line.name], line.name == "pooled"
        color = COLORS[2] if last else COLORS[0]
        interval, marker = line.interval, "D" if last else "o"
        right.plot([interval.low, interval.high], [place, place], color=color, linewidth=2.2)
        right.plot([interval.point], [place], marker, color=color, markersize=6)
        right.annotate(
            line.text, (interval.high, place), (6, 0), textcoords="offset points", va="center", fontsize=8
        )
    right.axvline(0.0, color="#4c5661", linewidth=1)
    level = "" if panel.gain is None else f", {panel.gain.percent} intervals"
    right.set_title(_escape(f"{section.title.partition(',')[0]}{level}"), fontsize=9)
    right.margins(x=0.16)
    for axis in (left, right):
        axis.set_yticks(range(len(places)), [_escape(name) for name in places], fontsize=9)
        axis.set_ylim(len(places) - 0.5, -0.6)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axis.tick_params(axis="x", labelsize=8)
        axis.tick_params(axis="y", length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.grid(axis="x", alpha=0.25)
    left.set_yticks(range(len(games)), [_escape(game) for game in games], fontsize=9)
    if title is not None:
        figure.suptitle(_escape(title), fontsize=10)
    return figure


def _draw_mazes(plt: Any, heats: Sequence[HeatMap]) -> Any:
    columns = min(4, len(heats))
    rows = -(-len(heats) // columns)
    size = (2.1 * columns, 2.4 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis, heat in zip(axes.flat, heats, strict=False):
        walls = np.zeros(heat.size**2, bool)
        walls[heat.walls] = True
        visits = np.log1p(np.array(heat.visits, float))
        shown = np.where(visits > 0, visits, np.nan).reshape(heat.size, heat.size)
        axis.imshow(np.where(walls, 0.2, 0.94).reshape(heat.size, heat.size), cmap="gray", vmin=0, vmax=1)
        axis.imshow(shown, cmap="YlOrRd", vmin=0, vmax=max(float(visits.max()), 1e-9))
        for cell, letter in ((heat.start, "S"), (heat.goal, "G")):
            if cell is not None:
                row, column = divmod(cell, heat.size)
                axis.text(column, row, letter, ha="center", va="center", fontsize=7, weight="bold")
        axis.set_title(f"{_escape(heat.label)}, seed {heat.seed}\n{heat.coverage:.0%} visited", fontsize=8)
    for axis in axes.flat:
        axis.axis("off")
    return figure
