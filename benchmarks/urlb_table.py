"""Compares fine-tuned and from-scratch runs of URLB's tasks with published numbers: a table and a picture.

    voidrl evaluate RUN --episodes 10 --json > RUN/evaluation.json        # for each run
    python benchmarks/urlb_table.py --collect results/urlb/walker_states.json RUN …
    python benchmarks/urlb_table.py results/urlb/walker_states.json --picture results/urlb/walker_states.png

Collecting keeps the runs that are already in the file, unless the same run is given again.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from voidrl.suites.published import numbers

EXPERT = {  # returns that normalize scores, from URLB
    "walker_stand": 984, "walker_walk": 971, "walker_run": 796, "walker_flip": 799,
    "quadruped_stand": 920, "quadruped_walk": 866, "quadruped_run": 888, "quadruped_jump": 888,
    "jaco_reach_top_left": 191, "jaco_reach_top_right": 223,
    "jaco_reach_bottom_left": 193, "jaco_reach_bottom_right": 203,
}  # fmt: skip


def collect(run: Path) -> dict[str, Any]:
    """The description of a run from its folder, with its evaluation."""
    config = json.loads((run / "config.json").read_text())
    evaluation = json.loads((run / "evaluation.json").read_text())
    environment = json.loads((run / "environment.json").read_text())
    repeat = config["env"]["dmc"]["action_repeat"]
    words = [word.rpartition("/")[2] if "/" in word and "dmc/" not in word else word
             for word in environment["command"].split()]  # fmt: skip
    return {
        "run": run.name,
        "task": config["env"]["id"].removeprefix("dmc/"),
        "phase": config["phase"],
        "seed": config["seed"],
        "pretrained_frames": (evaluation["agent"]["steps_with_pretraining"] - config["steps"]) * repeat,
        "frames": config["steps"] * repeat,
        "returns": evaluation["returns"],
        "command": " ".join(words),
        "date": environment["date"],
        "hardware": {key: environment[key] for key in ("cpu", "gpus", "versions", "git")},
        "config": config,
    }  # fmt: skip


def means(runs: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """The mean return of each run, by kind of run and task."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        kind = "from scratch"
        if run["phase"] == "finetune":
            kind = f"APT, {run['pretrained_frames'] / 1e6:.2f}M frames"
        found[kind][run["task"]].append(float(np.mean(run["returns"])))
    return found


def published(method: str = "apt_icm") -> dict[str, float]:
    """The published row of a method, by our task names."""
    row = next(row for row in numbers("urlb").rows if row.name == method)
    return {env.removeprefix("dmc/"): value for env, value in row.values.items()}


def table(runs: list[dict[str, Any]]) -> str:
    """A Markdown table with a row per kind of run and a column per task."""
    kinds, printed = means(runs), published()
    tasks = sorted({run["task"] for run in runs}, key=[*EXPERT].index)
    lines = ["| | " + " | ".join(tasks) + " |", "|---" * (len(tasks) + 1) + "|"]
    for kind, by_task in kinds.items():
        cells = []
        for task in tasks:
            values = by_task.get(task, [])
            shown = ", ".join(f"{value:.0f}" for value in values)
            cells.append(
                f"{np.mean(values):.0f}" + (f" ({shown})" if len(values) > 1 else "") if values else ""
            )
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    lines.append(
        "| published APT, 2M frames | " + " | ".join(f"{printed.get(t, np.nan):.0f}" for t in tasks) + " |"
    )
    lines.append("| expert | " + " | ".join(str(EXPERT[task]) for task in tasks) + " |")
    return "\n".join(lines)


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Bars of normalized returns by task, a dot for each run."""
    import matplotlib.pyplot as plt

    kinds: dict[str, dict[str, list[float]]] = {**means(runs)}
    kinds["published APT, 2M frames"] = {task: [value] for task, value in published().items()}
    tasks = sorted({run["task"] for run in runs}, key=[*EXPERT].index)
    figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    colors = dict(zip(sorted(kinds), ("#2a6fbb", "#e08a2e", "#8a8a8a", "#5fa55a", "#8c6bb1"), strict=False))
    width = 0.8 / len(kinds)
    for i, (kind, by_task) in enumerate(sorted(kinds.items())):
        at = np.arange(len(tasks)) + (i - (len(kinds) - 1) / 2) * width
        shares = [[value / EXPERT[task] for value in by_task.get(task, [])] for task in tasks]
        heights = [np.mean(values) if values else 0 for values in shares]
        axes.bar(at, heights, width * 0.92, label=kind, color=colors[kind])
        if not kind.startswith("published"):
            for x, values in zip(at, shares, strict=True):
                axes.plot([x] * len(values), values, ".", color="black", markersize=4)
    axes.set_xticks(range(len(tasks)), [task.replace("_", " ") for task in tasks])
    axes.set(ylabel="return / expert's", ylim=(0, 1.05))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        frameon=False, fontsize=8, ncols=4, columnspacing=1.2, loc="lower center", bbox_to_anchor=(0.5, 1.0)
    )
    figure.savefig(path, dpi=150)


def main() -> None:
    """Collect, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="of collected runs")
    parser.add_argument("runs", type=Path, nargs="*", help="run folders, with --collect")
    parser.add_argument("--collect", action="store_true", help="add runs to the file")
    parser.add_argument("--picture", type=Path, metavar="PNG")
    options = parser.parse_args()
    known = json.loads(options.file.read_text()) if options.file.exists() else []
    if options.collect:
        new = [collect(run) for run in options.runs]
        known = [run for run in known if run["run"] not in {one["run"] for one in new}] + new
        options.file.write_text(json.dumps(known, indent=1) + "\n")
    print(table(known))
    if options.picture:
        draw(known, options.picture)


if __name__ == "__main__":
    main()
