"""The demo's exploration in other mazes: coverage of APT and of random actions, by layout.

    python benchmarks/demo_layouts.py --out runs/demo-layouts --jobs 14

The demo's settings were tuned on the maze with layout_seed 3. This is its experiment with other layouts,
without fine-tuning: each run a process with one thread. The same command resumes what is missing. It prints a
table and writes `layouts.json`: cells seen by layout, method and seed. `--show` does so for the runs that are
done, and runs nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from voidrl.envs.ids import parse_id
from voidrl.envs.maze import PixelMazeVector
from voidrl.experiments.executors.local import Options
from voidrl.experiments.experiment import do_plan, unattended
from voidrl.experiments.format import read_experiment
from voidrl.experiments.plan import Plan
from voidrl.experiments.planner import make_plan
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


def read_layouts(plan: Plan) -> dict[str, dict[str, Any]]:
    """Open cells of each layout, and cells seen by method and seed in the runs that are done."""
    found: dict[str, dict[str, Any]] = {}
    for cell in plan.cells:
        options = parse_id(cell.task)[1]
        maze = PixelMazeVector(num_envs=1, **options)
        sizes = {"open": maze.num_open_cells, "farthest": int(maze.shortest_path_lengths().max())}
        layout = found.setdefault(str(options["layout_seed"]), sizes | {name: {} for name in METHODS})
        path = plan.path(cell)
        rows = read_metrics(path) if path.exists() else []
        seen = [(row["step"], int(row["coverage/cells"])) for row in rows if "coverage/cells" in row]
        if seen and seen[-1][0] >= cell.config.steps:
            layout[cell.arm.name][str(cell.seed)] = seen[-1][1]
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """A row for each layout: the share of its open cells that each run saw."""
    lines = ["| layout_seed | open cells | farthest | random | APT |", "|---|---|---|---|---|"]
    shares: dict[str, list[float]] = {name: [] for name in METHODS}
    for number, layout in found.items():
        row = [number, str(layout["open"]), f"{layout['farthest']} steps"]
        for name in METHODS:
            mine = [seen / layout["open"] for _, seen in sorted(layout[name].items())]
            shares[name] += mine
            row.append(", ".join(f"{share:.0%}" for share in mine) or "–")
        lines.append(f"| {' | '.join(row)} |")
    spread = [
        f"{np.mean(mine):.0%} ({min(mine):.0%} to {max(mine):.0%})" if mine else "–"
        for mine in shares.values()
    ]
    lines.append(f"| mean (range) | | | {' | '.join(spread)} |")
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
    parser.add_argument("--show", action="store_true", help="run nothing, show what is done")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    plan = plan_layouts(args)
    ok = True
    if not args.show:
        with unattended(plan, sys.argv):
            ok = do_plan(plan, "local", Options(jobs=args.jobs), command=sys.argv).ok
    found = read_layouts(plan)
    (plan.out / "layouts.json").write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
