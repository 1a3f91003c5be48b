"""`voidrl demo`: the whole idea in minutes on two CPU cores, from pixels.

It runs the experiment `demo` (experiments/demo.toml) and adds a table and a figure: a random agent and APT
explore one maze without any reward. Then a reward appears at one distant cell, and APT's agent and a new
one learn to reach it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from voidrl.envs.ids import parse_id
from voidrl.envs.maze import PixelMazeVector
from voidrl.experiments.demo_figure import EXPLORERS, Curve, DemoResult, draw
from voidrl.experiments.executors.local import Options
from voidrl.experiments.experiment import FAILED, do_plan, show_results, unattended
from voidrl.experiments.format import read_experiment
from voidrl.experiments.plan import Plan
from voidrl.experiments.planner import make_plan
from voidrl.experiments.request import ExperimentRequest
from voidrl.report.figures import import_pyplot
from voidrl.runs import checkpoint
from voidrl.runs.evaluations import FILE_NAME, read_evaluation
from voidrl.runs.metrics import read_metrics
from voidrl.system.terminal.tables import print_table

LEARNERS = ("finetuned", "scratch")


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
    task = plan.experiment.tasks[0].env
    maze = PixelMazeVector(num_envs=1, **parse_id(task)[1])
    size = len(maze.walls)

    def visits(run: str) -> np.ndarray:
        saved = checkpoint.latest(runs[run] / "checkpoints", print).tensors("loop.safetensors")["visits"]
        return torch.nn.functional.pad(saved, (0, size * size - len(saved))).numpy().reshape(size, size)

    def curve(run: str, key: str, scale: float = 1.0) -> Curve:
        return [(row["step"], row[key] * scale) for row in read_metrics(runs[run]) if key in row]

    def success(folder: Path) -> float:
        return float(np.mean(read_evaluation(folder / FILE_NAME)["successes"]))

    curves = {f"coverage_{run}": curve(run, "coverage/cells", 1 / maze.num_open_cells) for run in EXPLORERS}
    curves |= {f"success_{run}": curve(run, "eval/success") for run in LEARNERS}
    final = {f"success_{run}": success(runs[run]) for run in LEARNERS}
    return DemoResult(seed, maze, {run: visits(run) for run in EXPLORERS}, curves, final)


def print_numbers(results: Sequence[DemoResult], steps: Mapping[str, int]) -> None:
    """Print the four numbers: means over the seeds, with the range where there are several."""
    summaries = [result.summary() for result in results]

    def percent(name: str) -> str:
        values = [summary[name] for summary in summaries]
        spread = f" ({min(values):.0%} to {max(values):.0%})" if len(values) > 1 else ""
        return f"{np.mean(values):.0%}{spread}"

    seen, reached = f"maze seen in {steps['apt']} steps", f"goal reached after {steps['finetuned']} steps"
    print()
    print_table(("", "random", "APT"), [(seen, percent("coverage_random"), percent("coverage_apt"))])
    print()
    tuned = [(reached, percent("success_scratch"), percent("success_finetuned"))]
    print_table(("", "from scratch", "fine-tuned from APT"), tuned)
