"""The figure of the demo: visits of each agent, coverage over time, and success in fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voidrl.errors import MissingExtraError

Curve = list[tuple[int, float]]
RANDOM, APT, SCRATCH = "#8a8f98", "#c8352b", "#3b6ea8"


@dataclass(frozen=True)
class DemoResult:
    """The result of one seed."""

    seed: int
    walls: np.ndarray  # (size, size)
    start_cell: tuple[int, int]
    goal_cell: tuple[int, int]
    random_visits: np.ndarray  # (size, size)
    apt_visits: np.ndarray
    random_coverage: Curve
    apt_coverage: Curve
    finetuned_success: Curve
    scratch_success: Curve

    def summary(self) -> dict[str, float]:
        """The four numbers of the table."""
        return {
            "coverage_random": self.random_coverage[-1][1],
            "coverage_apt": self.apt_coverage[-1][1],
            "success_finetuned": self.finetuned_success[-1][1],
            "success_scratch": self.scratch_success[-1][1],
        }


def draw(results: Sequence[DemoResult], path: Path) -> Path:
    """Draw heat maps of the first seed, and curves as mean and range over all seeds."""
    plt = import_pyplot()
    figure, axes = plt.subplots(
        1, 4, figsize=(14, 3.9), layout="constrained", width_ratios=[1, 1, 1.25, 1.25]
    )
    first = results[0]
    seen = [f"{curve[-1][1]:.0%} of the maze seen" for curve in (first.random_coverage, first.apt_coverage)]
    _heat_map(axes[0], first, first.random_visits, f"Random actions\n{seen[0]}")
    _heat_map(axes[1], first, first.apt_visits, f"APT, without any reward\n{seen[1]}")
    _curves(axes[2], [r.apt_coverage for r in results], APT, "APT")
    _curves(axes[2], [r.random_coverage for r in results], RANDOM, "random")
    axes[2].set(
        title="Exploration, no reward",
        xlabel="environment steps",
        ylabel="share of cells visited",
        ylim=(0, 1.03),
    )
    _curves(axes[3], [r.finetuned_success for r in results], APT, "fine-tuned from APT")
    _curves(axes[3], [r.scratch_success for r in results], SCRATCH, "from scratch")
    axes[3].set(
        title="Then a reward at G alone",
        xlabel="environment steps with reward",
        ylabel="episodes that reach it",
        ylim=(-0.03, 1.03),
    )
    for axis in axes[2:]:
        axis.set_xlim(left=0)
        axis.legend(frameon=False, loc="upper left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x else "0")
        axis.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def import_pyplot() -> Any:
    """Import matplotlib for drawing to files; an error that says how to install it."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "the picture of the demo") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt


def _heat_map(axis: Any, result: DemoResult, visits: np.ndarray, title: str) -> None:
    shown = np.where(visits > 0, np.log1p(visits), np.nan)  # most visits are near the start
    axis.imshow(np.where(result.walls, 0.22, 0.93), cmap="gray", vmin=0, vmax=1)
    axis.imshow(shown, cmap="YlOrRd", vmin=0, vmax=np.log1p(visits).max())
    for (row, column), name, color in (
        (result.start_cell, "S", "black"),
        (result.goal_cell, "G", "#1a7f37"),
    ):
        disc = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": color}
        axis.text(
            column, row, name, ha="center", va="center", fontsize=8, weight="bold", color=color, bbox=disc
        )
    axis.set_title(title, fontsize=10)
    axis.axis("off")


def _curves(axis: Any, curves: Sequence[Sequence[tuple[int, float]]], color: str, label: str) -> None:
    length = min(map(len, curves))
    steps = [step for step, _ in curves[0][:length]]
    values = np.array([[value for _, value in curve[:length]] for curve in curves])  # (seeds, points)
    axis.plot(steps, values.mean(0), color=color, label=label, linewidth=2)
    if len(curves) > 1:
        axis.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.18, linewidth=0)
