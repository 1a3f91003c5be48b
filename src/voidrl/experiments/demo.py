"""`voidrl demo`: the whole idea in minutes on two CPU cores, from pixels.

It runs the experiment `demo` (experiments/demo.toml) and adds a table and a figure: a random agent and APT
explore one maze without any reward. Then a reward appears at one distant cell, and APT's agent and a new one
learn to reach it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from voidrl.envs.ids import parse_id
from voidrl.envs.maze import PixelMazeVector
from voidrl.experiments.executors.local import Options
from voidrl.experiments.experiment import FAILED, do_plan, show_results, unattended
from voidrl.experiments.format import read_experiment
from voidrl.experiments.planner import Plan, make_plan
from voidrl.experiments.request import ExperimentRequest
from voidrl.report.figures import fill_maze, import_pyplot
from voidrl.runs import checkpoint
from voidrl.runs.evaluations import FILE_NAME, read_evaluation
from voidrl.runs.metrics import read_metrics
from voidrl.system.terminal.tables import print_table

EXPLORERS = {"random": "Random actions", "apt": "APT, without any reward"}
# Run, label and color of each curve in the two diagrams.
RED, GRAY, BLUE = "#c8352b", "#8a8f98", "#3b6ea8"
COVERAGE = (("apt", "APT", RED), ("random", "random", GRAY))
SUCCESS = (("finetuned", "fine-tuned from APT", RED), ("scratch", "from scratch", BLUE))


class DemoResult(NamedTuple):
    """The result of one seed."""

    maze: PixelMazeVector
    visits: dict[str, np.ndarray]
    """Visits of each cell, (size, size), by run."""
    curves: dict[str, list[tuple[int, float]]]
    """Coverage or success by step, by run."""
    final: dict[str, float]
    """Coverage or success of each run after the last step, as in reports."""


def run_demo(
    out: str | Path,
    *,
    seeds: Sequence[int] = (2,),
    scale: float = 1.0,
    jobs: int = 1,
    device: str = "auto",
    report: bool = True,
    command: Sequence[str] = ("voidrl", "demo"),
) -> int:
    """Do the four runs of each seed, as far as they are missing, print the table and draw `demo.png`."""
    import_pyplot()  # fails now, rather than after training, if it is missing
    request = ExperimentRequest(seeds=seeds, steps_scale=scale, device=device)
    plan = make_plan(read_experiment("demo"), request, out)
    with unattended(plan, command):
        if not do_plan(plan, "local", Options(jobs=jobs), command=command).ok:
            return FAILED
        results = [read_demo(plan, seed) for seed in seeds]
        print_numbers(results, {cell.arm.name: cell.config.steps for cell in plan.cells})
        print(f"\npicture: {draw(results, plan.out / 'demo.png')}")
        return 0 if not report or show_results(plan, with_tables=False) else FAILED


def read_demo(plan: Plan, seed: int) -> DemoResult:
    """Read the result of a seed from its four run folders."""
    runs = {cell.arm.name: plan.path(cell) for cell in plan.cells if cell.seed == seed}
    maze = PixelMazeVector(num_envs=1, **parse_id(plan.experiment.tasks[0].env)[1])
    size = len(maze.walls)

    def visits(run: str) -> np.ndarray:
        saved = checkpoint.latest(runs[run] / "checkpoints", print).tensors("loop.safetensors")["visits"]
        return torch.nn.functional.pad(saved, (0, size * size - len(saved))).numpy().reshape(size, size)

    def curve(run: str, key: str, scale: float = 1.0) -> list[tuple[int, float]]:
        return [(row["step"], row[key] * scale) for row in read_metrics(runs[run]) if key in row]

    curves = {run: curve(run, "coverage/cells", 1 / maze.num_open_cells) for run in EXPLORERS}
    final = {run: values[-1][1] for run, values in curves.items()}
    for run, _, _ in SUCCESS:
        curves[run] = curve(run, "eval/success")
        final[run] = float(np.mean(read_evaluation(runs[run] / FILE_NAME)["successes"]))
    return DemoResult(maze, {run: visits(run) for run in EXPLORERS}, curves, final)


def print_numbers(results: Sequence[DemoResult], steps: Mapping[str, int]) -> None:
    """Print the four numbers: means over the seeds, with the range where there are several."""

    def percent(run: str) -> str:
        values = [result.final[run] for result in results]
        spread = f" ({min(values):.0%} to {max(values):.0%})" if len(values) > 1 else ""
        return f"{np.mean(values):.0%}{spread}"

    seen, reached = f"maze seen in {steps['apt']} steps", f"goal reached after {steps['finetuned']} steps"
    print()
    print_table(("", "random", "APT"), [(seen, percent("random"), percent("apt"))])
    print()
    row = (reached, percent("scratch"), percent("finetuned"))
    print_table(("", "from scratch", "fine-tuned from APT"), [row])


def draw(results: Sequence[DemoResult], path: Path) -> Path:
    """Draw heat maps of the first seed, and curves as mean and range over all seeds."""
    plt = import_pyplot()
    widths = [1, 1, 1.25, 1.25]
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.9), layout="constrained", width_ratios=widths)
    first = results[0]
    assert first.maze.goal_cell is not None
    marks = {"S": first.maze.start_cell, "G": first.maze.goal_cell}
    for axis, (run, title) in zip(axes, EXPLORERS.items(), strict=False):
        fill_maze(axis, first.maze.walls, first.visits[run], marks)
        axis.set_title(f"{title}\n{first.final[run]:.0%} of the maze seen", fontsize=10)
    for axis, lines in ((axes[2], COVERAGE), (axes[3], SUCCESS)):
        for run, label, color in lines:
            curves = [result.curves[run] for result in results]
            steps = [step for step, _ in min(curves, key=len)]
            values = np.array(
                [[value for _, value in curve[: len(steps)]] for curve in curves]
            )  # (seeds, points)
            axis.plot(steps, values.mean(0), color=color, label=label, linewidth=2)
            axis.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.18, linewidth=0)
        axis.set(xlim=(0, None), ylim=(-0.03, 1.03))
        axis.legend(frameon=False, loc="upper left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x else "0")
        axis.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
    axes[2].set(title="Exploration, no reward", xlabel="environment steps", ylabel="share of cells visited")
    axes[3].set(title="Then a reward at G alone", xlabel="environment steps with reward")
    axes[3].set(ylabel="episodes that reach it")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
