"""Curves and heat maps as matplotlib draws them, for papers: a file for each metric of an environment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voidrl.errors import ConfigError, MissingExtraError, RunFolderError
from voidrl.report.curves import SHARES, arm_curve, group_of, metrics_of, name_of
from voidrl.report.formatting import steps
from voidrl.report.gallery import Heat
from voidrl.report.groups import STAGES, Arm, stages_of

COLORS = ("#0067a8", "#c04c00", "#00795a", "#a3407f", "#7a6400", "#5b50c4", "#4c5661", "#b0203f")
DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (4, 2)), (0, (1, 3)), (0, (5, 2, 1, 2, 1, 2)))
DRAWN = ("Task", "Coverage")  # kinds of metrics; others are for looking, not for papers
MAX_POINTS = 400
DPI = 200


def require_matplotlib(formats: Sequence[str]) -> Any:
    """Return pyplot, drawing to files, or a sentence that says how to install it or what it cannot write."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "drawing figures") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    known = plt.figure().canvas.get_supported_filetypes()
    plt.close("all")
    for form in formats:
        if form not in known:
            raise ConfigError(
                f"figure format {form!r} cannot be written: expected some of {', '.join(known)}"
            )
    return plt


def write_figures(
    arms: Sequence[Arm], heats: Sequence[Heat], folder: Path, formats: Sequence[str]
) -> list[Path]:
    """Draw every task and coverage metric, and the heat maps of each maze; returns the files."""
    plt = require_matplotlib(formats)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"figures cannot be written to {folder} ({error.strerror or error}); choose another folder"
        ) from error
    written: list[Path] = []
    for stage, by_env in stages_of(arms).items():
        for found in by_env.values():
            for metric in metrics_of(found):
                if group_of(metric) in DRAWN:
                    figure = _curves(plt, found, metric, f"{found[0].env_name}\n{STAGES[stage].lower()}")
                    name = f"{stage}_{found[0].env_name}_{metric}"
                    written += _save(plt, figure, folder, name, formats)
    for env in dict.fromkeys(heat.env_name for heat in heats):
        figure = _mazes(plt, [heat for heat in heats if heat.env_name == env])
        written += _save(plt, figure, folder, f"visits_{env}", formats)
    return written


def _save(plt: Any, figure: Any, folder: Path, name: str, formats: Sequence[str]) -> list[Path]:
    paths = [folder / f"{re.sub(r'[^A-Za-z0-9.=-]+', '_', name).strip('_')}.{form}" for form in formats]
    for path in paths:
        try:
            figure.savefig(path, dpi=DPI)
        except OSError as error:
            raise RunFolderError(
                f"figures cannot be written to {folder} ({error.strerror or error}); choose another folder"
            ) from error
    plt.close(figure)
    return paths


def _curves(plt: Any, arms: Sequence[Arm], metric: str, title: str) -> Any:
    figure, axis = plt.subplots(figsize=(4.4, 3.1), layout="constrained")
    for arm in arms:
        curve = arm_curve(arm, metric, MAX_POINTS)
        if curve is None:
            continue
        color, dash = COLORS[arm.style % len(COLORS)], DASHES[arm.style % len(DASHES)]
        seeds = f"{len(arm.seeds)} seed{'s' * (len(arm.seeds) > 1)}"
        label = f"{arm.label} ({seeds})".replace("$", r"\$")
        axis.plot(curve.steps, curve.mean, color=color, linestyle=dash, linewidth=1.8, label=label)
        if len(arm.runs) > 1:
            axis.fill_between(curve.steps, curve.low, curve.high, color=color, alpha=0.16, linewidth=0)
    axis.set_title(title.replace("$", r"\$"), fontsize=9)
    axis.set_xlabel("environment steps", fontsize=8)
    axis.set_ylabel(name_of(metric).replace("$", r"\$"), fontsize=8)
    axis.set_xlim(left=0)
    if metric in SHARES:
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.xaxis.set_major_formatter(lambda value, _: steps(value) if value >= 0 else "")
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    axis.legend(frameon=False, fontsize=7.5)
    return figure


def _mazes(plt: Any, heats: Sequence[Heat]) -> Any:
    columns = min(4, len(heats))
    rows = -(-len(heats) // columns)
    shape = {"figsize": (2.1 * columns, 2.4 * rows), "layout": "constrained", "squeeze": False}
    figure, axes = plt.subplots(rows, columns, **shape)
    for axis, heat in zip(axes.flat, heats, strict=False):
        walls = np.zeros(heat.size**2, bool)
        walls[heat.walls] = True
        visits = np.array(heat.visits, float)
        shown = np.where(visits > 0, np.log1p(visits), np.nan).reshape(heat.size, heat.size)
        axis.imshow(np.where(walls, 0.2, 0.94).reshape(heat.size, heat.size), cmap="gray", vmin=0, vmax=1)
        axis.imshow(shown, cmap="YlOrRd", vmin=0, vmax=max(float(np.log1p(visits).max()), 1e-9))
        for cell, letter in ((heat.start, "S"), (heat.goal, "G")):
            if cell is not None:
                row, column = divmod(cell, heat.size)
                axis.text(column, row, letter, ha="center", va="center", fontsize=7, weight="bold")
        name = heat.label.replace("$", r"\$")
        axis.set_title(f"{name}, seed {heat.seed}\n{heat.seen:.0%} seen", fontsize=8)
    for axis in axes.flat:
        axis.axis("off")
    return figure
