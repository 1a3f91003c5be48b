"""Compares fine-tuned and from-scratch runs of URLB's tasks with published numbers: a table and a picture.

    voidrl evaluate RUN --episodes 10 --json > RUN/evaluation.json        # for each run with task reward
    python benchmarks/urlb_table.py --collect results/urlb/walker_states.json RUN …
    python benchmarks/urlb_table.py results/urlb/walker_states.json --picture results/urlb/walker_states.png
    python benchmarks/urlb_table.py --collect results/urlb/walker_methods.json RUN … --methods
    python benchmarks/urlb_table.py results/urlb/walker_methods.json --methods --picture methods.png

The first table has returns. With `--methods`, it has expert-normalized scores of each method in percent, by
family, next to the published mean over the same tasks. Runs may be of pre-training too: then the table says
how long it took. Collecting keeps the runs that are already in the file, unless the same run is given again.
`--also FILE` shows the runs of another file next to them.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from markdown_table import as_markdown

from voidrl.config import registry
from voidrl.envs.suites.published import numbers
from voidrl.report.formatting import Table, steps
from voidrl.report.published import interval_text
from voidrl.report.scores.scales import scales
from voidrl.report.scores.statistics import Interval, bootstrap
from voidrl.runs.metrics import read_metrics

EXPERT = {task.removeprefix("dmc/"): high for task, (_, high) in scales()[1].ends.items()}
FAMILIES = ["knowledge", "data", "competence", "baseline", ""]
FAMILY_COLORS = {"knowledge": "#0067a8", "data": "#c04c00", "competence": "#00795a", "": "#7a6400"}


@dataclass(frozen=True)
class MethodScores:
    """Expert-normalized scores of one method, ours and published."""

    label: str
    family: str
    scores: dict[str, list[float]]
    """One for each seed, by task."""
    published: dict[str, float]

    @cached_property
    def mean(self) -> Interval:
        """Mean over tasks, with its 95 % interval: seeds are resampled within each task."""
        return bootstrap(self.scores, "mean", resamples=2000)

    @property
    def published_mean(self) -> float | None:
        """The published mean over the same tasks; None where none of them is printed."""
        found = [self.published[task] for task in self.scores if task in self.published]
        return float(np.mean(found)) if found else None


def collect(run: Path) -> dict[str, Any]:
    """The description of a run from its folder, with its evaluation; of a pre-training, with its coverage."""
    config = json.loads((run / "config.json").read_text())
    if (run / "environment.json").is_file():
        environment = json.loads((run / "environment.json").read_text())
    else:  # machine, versions and command are unknown
        environment = {"date": json.loads((run / "status.json").read_text())["started"]}
    repeat = config["env"]["dmc"]["action_repeat"]
    words = [word.rpartition("/")[2] if "/" in word and "dmc/" not in word else word
             for word in environment.get("command", "").split()]  # fmt: skip
    found = {
        "run": run.name,
        "task": config["env"]["id"].removeprefix("dmc/"),
        "phase": config["phase"],
        "method": config["method"]["name"],
        "seed": config["seed"],
    }
    if config["phase"] == "pretrain":
        found |= pretraining(run, repeat)
    else:
        if not (run / "evaluation.json").is_file():
            raise SystemExit(
                f"{run} has no evaluation: voidrl evaluate {run} --episodes 10 --json > {run}/evaluation.json"
            )
        evaluation = json.loads((run / "evaluation.json").read_text())
        own = evaluation["agent"]["steps"]
        found |= {
            "pretrained_frames": (evaluation["agent"]["steps_with_pretraining"] - own) * repeat,
            "frames": config["steps"] * repeat,
            "returns": evaluation["returns"],
        }
    return found | {
        "command": " ".join(words),
        "date": environment["date"],
        "hardware": {key: environment.get(key) for key in ("cpu", "gpus", "versions", "git")},
        "config": config,
    }  # fmt: skip


def pretraining(run: Path, repeat: int) -> dict[str, Any]:
    """Frames, time and coverage of a pre-training, from its metrics."""
    rows = read_metrics(run)
    seconds = last = 0.0
    for row in rows:
        if row.get("time/steps_per_second"):
            seconds += (row["step"] - last) / row["time/steps_per_second"]
        last = row["step"]
    coverage = {key: value for row in rows for key, value in row.items() if key.startswith("coverage/")}
    return {"frames": int(last * repeat), "seconds": round(seconds), **coverage}


def means(runs: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """The mean return of each run, by kind of run and task."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if "returns" not in run:
            continue
        kind = "from scratch"
        if run["phase"] == "finetune":
            name = run["config"]["method"]["name"].upper()
            kind = f"{name}, {run['pretrained_frames'] / 1e6:.2f}M frames"
        found[kind][run["task"]].append(float(np.mean(run["returns"])))
    return found


def published(*names: str) -> dict[str, float]:
    """The first published row with one of these names, by our task names; by default that of APT."""
    rows = {row.name: row for row in numbers("urlb").rows}
    row = next((rows[name] for name in names or ("apt_icm",) if name in rows), None)
    if row is None:
        return {}
    return {env.removeprefix("dmc/"): value for env, value in row.values.items() if "/" in env}


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
    lines.append("| expert | " + " | ".join(f"{EXPERT[task]:g}" for task in tasks) + " |")
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


def method_scores(runs: list[dict[str, Any]]) -> list[MethodScores]:
    """Expert-normalized scores of each method; several lengths of pre-training are several methods."""
    lengths: dict[str, set[str]] = defaultdict(set)
    groups: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    config_of: dict[tuple[str, str], dict[str, Any]] = {}
    for run in (run for run in runs if "returns" in run):
        config, length = run["config"], ""
        name = "from scratch"
        if run["phase"] == "finetune":
            name = config["method"]["name"]
            name += " (raw states)" if (name, config["representation"]["name"]) == ("apt", "identity") else ""
            length = steps(float(f"{run['pretrained_frames']:.2g}"))
        lengths[name].add(length)
        config_of[name, length] = config
        share = float(np.mean(run["returns"])) / EXPERT[run["task"]]
        groups[name, length][run["task"]].append(share)
    found = []
    for (name, length), scores in groups.items():
        config = config_of[name, length]
        method, representation = config["method"]["name"], config["representation"]["name"]
        is_scratch = name == "from scratch"
        label = f"{name}, {length} frames" if len(lengths[name]) > 1 else name
        returns = {} if is_scratch else published(f"{method}_{representation}", method)
        printed = {task: value / EXPERT[task] for task, value in returns.items()}
        family = "" if is_scratch else registry.read_about(method).get("family", "")
        found.append(MethodScores(label, family, scores, printed))
    return found


def methods_table(runs: list[dict[str, Any]]) -> Table:
    """A row for each method: scores by task, their mean, the published mean, seeds and frames."""
    methods = method_scores(runs)
    tasks = sorted({task for each in methods for task in each.scores}, key=[*EXPERT].index)
    bodies = {task.partition("_")[0] for task in tasks}
    short = {task: task.partition("_")[2] if len(bodies) == 1 else task for task in tasks}
    columns = [
        "method",
        "family",
        *short.values(),
        "mean",
        "published mean",
        "seeds",
        "pre-training frames, time",
    ]
    rows = []
    for method in sorted(methods, key=lambda each: (FAMILIES.index(each.family), -each.mean.point)):
        printed = method.published_mean
        cells = [
            f"{100 * np.mean(method.scores[task]):.1f}" if task in method.scores else "–" for task in tasks
        ]
        seeds = {len(values) for values in method.scores.values()}
        rows.append([method.label, method.family or "–", *cells, interval_text(method.mean),
                     "–" if printed is None else f"{100 * printed:.1f}",
                     " to ".join(dict.fromkeys([str(min(seeds)), str(max(seeds))])),
                     pretrained(runs, method.label)])  # fmt: skip
    return Table("", columns, rows, numeric=frozenset(range(2, len(columns) - 1)))


def pretrained(runs: list[dict[str, Any]], label: str) -> str:
    """Frames of a method's pre-training, and the mean time of those that are in the file."""
    method = label.partition(",")[0].removesuffix(" (raw states)")
    frames = {run["pretrained_frames"] for run in runs if "returns" in run and run["phase"] == "finetune"
              and run["config"]["method"]["name"] == method}  # fmt: skip
    if method == "from scratch" or not frames:
        return "–"
    shown = label.rpartition(", ")[2].removesuffix(" frames") if ", " in label else steps(max(frames))
    times = [run["seconds"] for run in runs if run["phase"] == "pretrain" and run["method"] == method]
    return f"{shown}, {np.mean(times) / 60:.1f} min" if times else shown


def draw_methods(runs: list[dict[str, Any]], path: Path) -> None:
    """A line for each method, the highest mean on top: the mean, its tasks as dots, the published mean."""
    import matplotlib.pyplot as plt

    methods = method_scores(runs)
    methods.sort(key=lambda method: method.mean.point)
    figure, axes = plt.subplots(figsize=(6.6, 1.1 + 0.3 * len(methods)), layout="constrained")
    for place, method in enumerate(methods):
        printed = method.published_mean
        color = FAMILY_COLORS.get(method.family, FAMILY_COLORS[""])
        axes.barh(place, method.mean.point, 0.62, color=color, alpha=0.85)
        shares = [float(np.mean(method.scores[task])) for task in method.scores]
        axes.plot(shares, [place] * len(shares), ".", color="black", markersize=4)
        if printed is not None:
            axes.plot([printed] * 2, [place - 0.42, place + 0.42], color="black", linewidth=2)
    for family, color in FAMILY_COLORS.items():
        if any(method.family == family for method in methods):
            axes.plot([], [], "s", color=color, label=family or "from scratch")
    axes.plot([], [], "|", color="black", markersize=10, markeredgewidth=2, label="published, 2M frames")
    axes.plot([], [], ".", color="black", label="tasks")
    axes.set_yticks(range(len(methods)), [method.label for method in methods])
    axes.set(xlabel="return / expert's, mean over tasks", xlim=(0, 1.02))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.4, 1.0))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    """Collect, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="of collected runs")
    parser.add_argument("runs", type=Path, nargs="*", help="run folders, with --collect")
    parser.add_argument("--collect", action="store_true", help="add runs to the file")
    parser.add_argument(
        "--also", type=Path, action="append", default=[], metavar="JSON", help="other runs to show"
    )
    parser.add_argument("--methods", action="store_true", help="a row for each method, expert-normalized")
    parser.add_argument("--picture", type=Path, metavar="PNG")
    parser.add_argument("--markdown", type=Path, metavar="MD", help="write the table to a file too")
    options = parser.parse_intermixed_args()
    known = json.loads(options.file.read_text()) if options.file.exists() else []
    if options.collect:
        new = [collect(run) for run in options.runs]
        known = [run for run in known if run["run"] not in {one["run"] for one in new}] + new
        options.file.write_text(json.dumps(known, indent=1) + "\n")
    known = [run for file in options.also for run in json.loads(file.read_text())] + known
    text = as_markdown(methods_table(known)) if options.methods else table(known)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    if options.picture:
        (draw_methods if options.methods else draw)(known, options.picture)


if __name__ == "__main__":
    main()
