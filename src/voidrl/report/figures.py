"""Figures for papers, drawn by matplotlib: one function for each kind."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from voidrl.errors import MissingExtraError, RunFolderError
from voidrl.report.curves import FRACTIONS, NAMES, arm_curve, group_of, metrics_of
from voidrl.report.formatting import steps
from voidrl.report.gallery import HeatMap
from voidrl.report.grids import grid_measure
from voidrl.report.groups import STAGES, ArmRuns, stages_of
from voidrl.report.outcomes import measure_of
from voidrl.report.ranking import FAMILIES, Ranking, coverage_rankings
from voidrl.report.scores.grids import GridResult
from voidrl.report.scores.panel import Panel, signed
from voidrl.system.units import value_text

COLORS = ("#0067a8", "#c04c00", "#00795a", "#a3407f", "#7a6400", "#5b50c4", "#4c5661", "#b0203f")
DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (4, 2)), (0, (1, 3)), (0, (5, 2, 1, 2, 1, 2)))
DRAWN = ("Task", "Coverage")  # groups of metrics that belong in a paper
FORMATS = ("png", "pdf")
MAX_POINTS = 400
DPI = 200


def import_pyplot() -> Any:
    """Import pyplot for drawing to files; an error that says how to install it."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "drawing figures") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt


def write_figures(
    arms: Sequence[ArmRuns],
    heats: Sequence[HeatMap],
    panels: Mapping[str, Panel],
    grids: Mapping[str, GridResult],
    folder: Path,
) -> list[Path]:
    """Draw task and coverage metrics, panels, fields of grids, and maps of each maze; returns the files."""
    plt = import_pyplot()
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in _figures(arms, heats, panels, grids):
            stem = re.sub(r"[^A-Za-z0-9.=-]+", "_", name).strip("_")
            for form in FORMATS:
                written.append(folder / f"{stem}.{form}")
                figure.savefig(written[-1], dpi=DPI)
            plt.close(figure)
    except OSError as error:
        raise RunFolderError(
            f"figures cannot be written to {folder} ({error.strerror or error}); choose another folder"
        ) from error
    return written


def _figures(
    arms: Sequence[ArmRuns],
    heats: Sequence[HeatMap],
    panels: Mapping[str, Panel],
    grids: Mapping[str, GridResult],
) -> Iterator[tuple[str, Any]]:
    for name, panel in panels.items():
        yield f"panel_{name}", draw_panel(panel)
    for name, grid in grids.items():
        if grid.effects:
            yield f"grid_{name}", draw_grid(grid)
    for stage, by_env in stages_of(arms).items():
        for members in by_env.values():
            env = members[0].env_name
            for metric in metrics_of(members):
                if group_of(metric) in DRAWN:
                    yield f"{stage}_{env}_{metric}", draw_curves(members, metric)
    for ranking in coverage_rankings(arms):
        yield f"ranking_{ranking.env_name}_{ranking.key}", draw_ranking(ranking)
    for env in dict.fromkeys(heat.env_name for heat in heats):
        yield f"visits_{env}", draw_mazes([heat for heat in heats if heat.env_name == env])


def grid_uri(result: GridResult) -> str:
    """The figure of a grid as a data URI, for a page."""
    plt = import_pyplot()
    with plt.rc_context({"svg.hashsalt": "voidrl"}):
        figure, text = draw_grid(result), io.BytesIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        plt.close(figure)
    return f"data:image/svg+xml;base64,{base64.b64encode(text.getvalue()).decode()}"


def _escape(text: str) -> str:
    return text.replace("$", r"\$")  # matplotlib would read math


def _tidy(axis: Any, *, only: str = "both") -> None:
    """Remove the frame and draw light grid lines; with `only="x"`, of a plot whose rows are names."""
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right", *(["left"] if only == "x" else [])]].set_visible(False)
    axis.grid(axis=only, alpha=0.25)
    if only == "x":
        axis.tick_params(axis="y", length=0, labelsize=9)


def draw_curves(arms: Sequence[ArmRuns], metric: str) -> Any:
    """Mean and range over seeds of a metric, a line for each arm of an environment."""
    figure, axis = import_pyplot().subplots(figsize=(4.4, 3.1), layout="constrained")
    for arm in arms:
        curve = arm_curve(arm, metric, MAX_POINTS)
        if curve is None:
            continue
        color, dash = COLORS[arm.style % len(COLORS)], DASHES[arm.style % len(DASHES)]
        label = _escape(f"{arm.label} (n = {len(arm.seeds)})")
        axis.plot(curve.steps, curve.mean, color=color, linestyle=dash, linewidth=1.8, label=label)
        if len(arm.runs) > 1:
            axis.fill_between(curve.steps, curve.low, curve.high, color=color, alpha=0.16, linewidth=0)
    axis.set_title(_escape(f"{arms[0].env_name}\n{STAGES[arms[0].stage].lower()}"), fontsize=9)
    axis.set_xlabel("environment steps", fontsize=8)
    axis.set_ylabel(_escape(NAMES.get(metric, metric)), fontsize=8)
    axis.set_xlim(left=0)
    if metric in FRACTIONS:
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.xaxis.set_major_formatter(lambda value, _: steps(value) if value >= 0 else "")
    _tidy(axis)
    axis.legend(frameon=False, fontsize=7.5)
    return figure


def draw_ranking(ranking: Ranking, title: str | None = None) -> Any:
    """A line for each method, the highest mean on top: its range, its seeds as dots, its mean as a bar.

    A dashed line goes through the mean of random play.
    """
    arms = ranking.arms
    size = (6.4, 1.2 + 0.27 * len(arms))
    figure, axis = import_pyplot().subplots(figsize=size, layout="constrained")
    for place, arm in enumerate(arms):
        if arm.is_reference:
            axis.axvline(arm.mean, color=COLORS[6], linewidth=1, linestyle=(0, (4, 3)), zorder=0)
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
    axis.set_yticks(range(len(arms)), [_escape(arm.label) for arm in arms])
    axis.set_ylim(len(arms) - 0.4, -0.6)
    is_fraction = measure_of(ranking.key).unit == "fraction"
    highest = max(value for arm in arms for value in arm.values.values())
    axis.set_xlim(0, 1.08 * (max(1.0, highest) if is_fraction else highest or 1.0))
    if is_fraction:
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}" if value <= 1 else "")
    axis.set_title(_escape(ranking.title if title is None else title), fontsize=10)
    _tidy(axis, only="x")
    if any(ranking.families):
        figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=len(FAMILIES))
    return figure


def draw_grid(result: GridResult) -> Any:
    """A plot for each field: the mean over all runs at each value, their range, and every point as a dot."""
    effects = result.effects
    size = (0.6 + 2.7 * len(effects), 2.8)
    figure, axes = import_pyplot().subplots(
        1, len(effects), figsize=size, layout="constrained", sharey=True, squeeze=False
    )
    for axis, effect in zip(axes.flat, effects, strict=True):

        def place(value: Any, effect: Any = effect) -> Any:
            return value if effect.is_numeric else value_text(value)

        dots = [(place(value), mean) for value, mean in effect.dots]
        axis.plot(*zip(*dots, strict=True), "o", color=COLORS[6], markersize=3, alpha=0.55)
        values, means = [place(each.value) for each in effect.means], [each.mean for each in effect.means]
        style = "-o" if effect.is_numeric else "o"  # a line between words would mean nothing
        axis.plot(values, means, style, color=COLORS[0], linewidth=1.8, markersize=5)
        low, high = [each.low for each in effect.means], [each.high for each in effect.means]
        if effect.is_numeric:
            axis.fill_between(values, low, high, color=COLORS[0], alpha=0.16, linewidth=0)
        if effect.log:
            axis.set_xscale("log")
        if values:
            axis.set_xticks(values, [value_text(each.value) for each in effect.means])
            axis.minorticks_off()
        share = "" if effect.share is None else f"\n{effect.share:.0%} of the variance"
        axis.set_title(_escape(effect.name + share), fontsize=9)
        _tidy(axis)
    measure = grid_measure(result)
    axes.flat[0].set_ylabel(_escape(measure.name), fontsize=8)
    if measure.unit == "fraction":
        axes.flat[0].yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    return figure


def draw_panel(panel: Panel) -> Any:
    """Human-normalized scores of every seed, and a forest plot of the differences, the pooled one last."""
    games, arms = panel.games, panel.arms.names
    size = (8.6, 1.6 + 0.52 * (len(games) + 1))
    figure, (left, right) = import_pyplot().subplots(
        1, 2, figsize=size, layout="constrained", width_ratios=(1.15, 1)
    )
    for number, arm in enumerate(arms):
        color, offset = COLORS[(6, 4, 1, 0)[-len(arms) :][number]], 0.17 * (number - (len(arms) - 1) / 2)
        for place, game in enumerate(games):
            for shape, values in zip(cycle("os^Dv"), panel.shares(arm, game), strict=False):
                heights = [place + offset] * len(values)
                left.plot(values, heights, shape, color=color, markersize=3.6, alpha=0.6)
            mean = panel.normalized(arm, game)
            if mean is not None:
                left.plot([mean], [place + offset], "|", color=color, markersize=10, markeredgewidth=2.4)
        left.plot([], [], "o", color=color, markersize=4, label=_escape(panel.label(arm)))
    left.set_title("human-normalized: seeds (shape: pre-training), mean", fontsize=9)
    left.legend(frameon=False, fontsize=7.5, loc="lower right", ncols=2)
    for place, (name, gain, _) in enumerate(panel.difference_rows()):
        if gain is None:
            continue
        color, marker = (COLORS[2], "D") if name == "pooled" else (COLORS[0], "o")
        right.plot([gain.low, gain.high], [place, place], color=color, linewidth=2.2)
        right.plot([gain.point], [place], marker, color=color, markersize=6)
        right.annotate(
            signed(gain.point),
            (gain.high, place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    right.axvline(0.0, color="#4c5661", linewidth=1)
    level = "" if panel.gain is None else f", {panel.gain.percent} intervals"
    right.set_title(_escape(f"{panel.title.partition(',')[0]}{level}"), fontsize=9)
    right.margins(x=0.16)
    for axis, names in ((left, games), (right, [*games, "pooled"])):
        axis.set_yticks(range(len(names)), [_escape(name) for name in names])
        axis.set_ylim(len(games) + 0.5, -0.6)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        _tidy(axis, only="x")
    return figure


def draw_mazes(heats: Sequence[HeatMap]) -> Any:
    """Visits of each cell of a maze, a map for each run."""
    columns = min(4, len(heats))
    rows = -(-len(heats) // columns)
    size = (2.1 * columns, 2.4 * rows)
    figure, axes = import_pyplot().subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis, heat in zip(axes.flat, heats, strict=False):
        walls = np.zeros(heat.size**2, bool)
        walls[heat.walls] = True
        shape = heat.size, heat.size
        cells = {letter: divmod(cell, heat.size) for letter, cell in (("S", heat.start), ("G", heat.goal))
                 if cell is not None}  # fmt: skip
        fill_maze(axis, walls.reshape(shape), np.array(heat.visits, float).reshape(shape), cells)
        axis.set_title(f"{_escape(heat.label)}, seed {heat.seed}\n{heat.coverage:.0%} visited", fontsize=8)
    for axis in axes.flat:
        axis.axis("off")
    return figure


def fill_maze(axis: Any, walls: np.ndarray, visits: np.ndarray, cells: Mapping[str, Sequence[int]]) -> None:
    """Draw a maze with its visits on a logarithmic color scale, and letters in some cells."""
    shown = np.where(visits > 0, np.log1p(visits), np.nan)  # most visits are near the start
    axis.imshow(np.where(walls, 0.22, 0.93), cmap="gray", vmin=0, vmax=1)
    axis.imshow(shown, cmap="YlOrRd", vmin=0, vmax=max(float(np.log1p(visits).max()), 1e-9))
    for letter, (row, column) in cells.items():
        disc = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": "black"}
        axis.text(column, row, letter, bbox=disc, ha="center", va="center", fontsize=7, weight="bold")
    axis.axis("off")
