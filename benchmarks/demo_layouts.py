"""The demo's exploration in other mazes: coverage of APT and of random actions, by layout.

    python benchmarks/demo_layouts.py --out runs/demo-layouts --jobs 14

The demo's settings were tuned on the maze with layout_seed 3. This is its experiment with other layouts,
without fine-tuning: each run a process with one thread. The same command resumes what is missing. It prints a
table and writes `layouts.json`: coverage as a fraction of the open cells, by layout, method and seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from pathlib import Path

import numpy as np

from voidrl.envs.ids import parse_id
from voidrl.envs.maze import PixelMazeVector
from voidrl.experiments.experiment import do_plan, unattended
from voidrl.experiments.format import read_experiment
from voidrl.experiments.plan import Plan, make_plan
from voidrl.experiments.request import ExperimentRequest
from voidrl.experiments.tasks import NamedEnv, Task
from voidrl.runs.metrics import read_metrics

METHODS = ("random", "apt")


def plan_layouts(args: argparse.Namespace) -> Plan:
    """The demo's experiment with one task for each layout."""
    demo = read_experiment("demo")
    env = demo.tasks[0].pretrain.env
    tasks = []
    for layout in args.layouts:
        there = re.sub(r"layout_seed=\d+", f"layout_seed={layout}", env)
        tasks.append(Task(f"layout{layout}", there, NamedEnv(f"layout{layout}", there)))
    experiment = dataclasses.replace(demo, tasks=tuple(tasks))
    request = ExperimentRequest(
        methods=METHODS, seeds=args.seeds, steps_scale=args.steps_scale, device=args.device
    )
    return make_plan(experiment, request, args.out)


def read_layouts(plan: Plan) -> dict[str, dict[str, dict[str, float]]]:
    """Final coverage by layout, method and seed."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for cell in plan.cells:
        maze = PixelMazeVector(num_envs=1, **parse_id(cell.task)[1])
        cells = [row["coverage/cells"] for row in read_metrics(plan.path(cell)) if "coverage/cells" in row]
        layout = str(parse_id(cell.task)[1]["layout_seed"])
        coverage = round(cells[-1] / maze.num_open_cells, 4)
        found.setdefault(layout, {}).setdefault(cell.arm.name, {})[str(cell.seed)] = coverage
    return found


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """A row for each layout."""
    lines = ["| layout_seed | open cells | farthest | random | APT |", "|---|---|---|---|---|"]
    for layout, by_method in found.items():
        options = parse_id(read_experiment("demo").tasks[0].pretrain.env)[1]
        maze = PixelMazeVector(num_envs=1, **{**options, "layout_seed": int(layout)})
        shown = [", ".join(f"{value:.0%}" for value in by_method[method].values()) for method in METHODS]
        row = [layout, maze.num_open_cells, f"{maze.shortest_path_lengths().max()} steps", *shown]
        lines.append(f"| {' | '.join(map(str, row))} |")
    means = [np.mean([v for m in found.values() for v in m[method].values()]) for method in METHODS]
    lines.append(f"| mean | | | {' | '.join(f'{mean:.0%}' for mean in means)} |")
    return "\n".join(lines)


def main() -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo-layouts"))
    parser.add_argument("--layouts", nargs="+", type=int, default=[11, 12, 13, 14, 15])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--steps-scale", type=float, default=1.0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    plan = plan_layouts(args)
    with unattended(plan, sys.argv):
        outcome = do_plan(plan, jobs=args.jobs, command=sys.argv)
    if not outcome.ok:
        return 1
    found = read_layouts(plan)
    (plan.out / "layouts.json").write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
