"""The figure of the demo: visits of each agent, coverage over time, and success in fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from voidrl.envs.maze import PixelMazeVector
from voidrl.report.figures import fill_maze, import_pyplot

Curve = list[tuple[int, float]]
EXPLORERS = {"random": "Random actions", "apt": "APT, without any reward"}
RANDOM, APT, SCRATCH = "#8a8f98", "#c8352b", "#3b6ea8"


@dataclass(frozen=True)
class DemoResult:
    """The result of one seed."""

    seed: int
    maze: PixelMazeVector
    visits: dict[str, np.ndarray]
    """Visits of each cell, (size, size), by run."""
    curves: dict[str, Curve]
    """Coverage and success by step: `coverage_apt`, `success_scratch` and so on."""
    final_success: dict[str, float]
    """Success rates after the last step, as in reports: `success_scratch` and so on."""

    def summary(self) -> dict[str, float]:
        """The four numbers of the table."""
        return {name: curve[-1][1] for name, curve in self.curves.items()} | self.final_success


def draw(results: Sequence[DemoResult], path: Path) -> Path:
    """Draw heat maps of the first seed, and curves as mean and range over all seeds."""
    plt = import_pyplot()
    widths = [1, 1, 1.25, 1.25]
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.9), layout="constrained", width_ratios=widths)
    maze = results[0].maze
    assert maze.goal_cell is not None
    for axis, (run, title) in zip(axes, EXPLORERS.items(), strict=False):
        seen = results[0].summary()[f"coverage_{run}"]
        fill_maze(axis, maze.walls, results[0].visits[run], {"S": maze.start_cell, "G": maze.goal_cell})
        axis.set_title(f"{title}\n{seen:.0%} of the maze seen", fontsize=10)
    for axis, name, color, label in (
        (axes[2], "coverage_apt", APT, "APT"),
        (axes[2], "coverage_random", RANDOM, "random"),
        (axes[3], "success_finetuned", APT, "fine-tuned from APT"),
        (axes[3], "success_scratch", SCRATCH, "from scratch"),
    ):
        _curves(axis, [result.curves[name] for result in results], color, label)
    axes[2].set(title="Exploration, no reward", xlabel="environment steps", ylabel="share of cells visited")
    axes[3].set(title="Then a reward at G alone", xlabel="environment steps with reward")
    axes[3].set(ylabel="episodes that reach it")
    for axis in axes[2:]:
        axis.set(xlim=(0, None), ylim=(-0.03, 1.03))
        axis.legend(frameon=False, loc="upper left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x else "0")
        axis.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _curves(axis: Any, curves: Sequence[Sequence[tuple[int, float]]], color: str, label: str) -> None:
    length = min(map(len, curves))
    steps = [step for step, _ in curves[0][:length]]
    values = np.array([[value for _, value in curve[:length]] for curve in curves])  # (seeds, points)
    axis.plot(steps, values.mean(0), color=color, label=label, linewidth=2)
    if len(curves) > 1:
        axis.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.18, linewidth=0)
