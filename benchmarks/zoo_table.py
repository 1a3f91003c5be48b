"""Coverage of the maze by method: a Markdown table and a picture, from run folders and saved results.

    voidrl experiment zoo --jobs 2                                       # or bring its folder from elsewhere
    python benchmarks/zoo_table.py runs/zoo --picture zoo_maze.png --markdown zoo.md

A row has the method, its family, the mean coverage and that of each seed. Folders are those of any
pre-trainings in one environment that counts coverage. `--json` keeps every curve: runs in the folders replace
those of the same method and seed in the file, the others stay, so that one method can be run again alone.
This redraws everything that docs/methods/index.md shows, also without folders:

    python benchmarks/zoo_table.py runs/zoo --json results/zoo/maze.json --picture docs/images/zoo_maze.png
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markdown_table import as_markdown

from voidrl.config import registry
from voidrl.experiments.format import read_experiment
from voidrl.report.figures import COLORS, DPI, import_pyplot
from voidrl.report.formatting import Table
from voidrl.report.groups import make_arms, stages_of
from voidrl.report.outcomes import maze_of, measure_of, outcome
from voidrl.report.provenance import commit, hardware
from voidrl.report.read import Run, read_all

CELLS = "coverage/cells"
FAMILIES = {"knowledge": 0, "data": 1, "competence": 2, "baseline": 6, "": 4}
"""Families in the order of legends, and the number of their color."""


@dataclass(frozen=True)
class Method:
    """One method: a row of the table, and a line of the picture."""

    label: str
    family: str
    values: dict[int, float]
    """Coverage by seed; where a seed was run twice, the last run."""
    is_reference: bool
    """Whether it is random play, the baseline."""

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return sum(self.values.values()) / len(self.values)


def main() -> None:
    """Read, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", help="run folders, or folders that hold some")
    parser.add_argument("--json", type=Path, metavar="JSON", help="saved results, to which these are added")
    parser.add_argument("--picture", type=Path, metavar="PNG")
    parser.add_argument("--markdown", type=Path, metavar="MD", help="write the table to a file too")
    parser.add_argument("--title", help="of the picture")
    options = parser.parse_args()
    runs = read_runs(options.runs) if options.runs else []
    if options.json:
        saved = json.loads(options.json.read_text())
        if runs:
            saved = updated(saved, runs)
            options.json.write_text(as_text(saved))
        methods = saved_methods(saved)
    else:
        methods = run_methods(runs)
        if not methods:
            parser.error("expected pre-trainings with coverage in one maze")
    methods.sort(key=lambda method: -method.mean)
    text = as_markdown(make_table(methods))
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    if options.picture:
        draw(methods, options.title).savefig(options.picture, dpi=DPI)


def read_runs(paths: Sequence[str]) -> list[Run]:
    """All runs; those that are not complete are named."""
    found = read_all(paths, lambda text: print(text, file=sys.stderr)).runs
    for run in found:
        if run.status != "done":
            print(f"{run.name}: {run.status}, {run.progress}", file=sys.stderr)
    return found


def updated(saved: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Saved results, with complete runs in place of those of the same method and seed."""
    entries = {(entry["method"], entry["seed"]): entry for entry in saved["runs"]}
    for run in runs:
        if run.took_all_steps and CELLS in run.series:
            entries[_method(run), run.seed] = {
                "method": _method(run),
                "family": family(run.method),
                "seed": run.seed,
                "steps": run.steps,
                "machine": hardware(run),
                "code": commit(run),
                "cells": [[int(step), int(cells)] for step, cells in zip(*run.series[CELLS], strict=True)],
            }
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return {**saved, "date": date, "runs": [entries[key] for key in sorted(entries)]}


def _method(run: Run) -> str:
    """Its name in the experiment's file, as `cbb_contrast`, or that of the method."""
    return run.method if run.cell is None or not run.cell.arm else run.cell.arm


def as_text(saved: dict[str, Any]) -> str:
    """JSON with a curve on one line."""
    curves = [entry["cells"] for entry in saved["runs"]]
    marked = [{**entry, "cells": [f"curve {i}"]} for i, entry in enumerate(saved["runs"])]
    text = json.dumps({**saved, "runs": marked}, indent=1, ensure_ascii=False)
    for i, curve in enumerate(curves):
        text = text.replace(f'"curve {i}"', json.dumps(curve)[1:-1])
    return text + "\n"


def family(method: str) -> str:
    """The family of a method; empty for one that does not say."""
    return str(registry.read_about(method).get("family", ""))


def run_methods(runs: Sequence[Run]) -> list[Method]:
    """The pre-trained methods of the only maze; none where there are several."""
    by_env = stages_of(make_arms(runs)).get("pretrain", {})
    found = []
    for arm in (arm for members in by_env.values() for arm in members if len(by_env) == 1):
        values = {run.seed: seen["maze"] for run in arm.counted if "maze" in (seen := outcome(run))}
        method = arm.runs[0].method
        found += [Method(arm.label, family(method), values, method == "random")] if values else []
    return found


def saved_methods(saved: dict[str, Any]) -> list[Method]:
    """Methods of saved runs, named as in the experiment's file."""
    experiment = read_experiment("zoo")
    maze = maze_of(experiment.tasks[0].env)
    assert maze is not None
    methods: dict[str, Method] = {}
    for entry in saved["runs"]:
        name = entry["method"]
        label = experiment.arms[name].label if name in experiment.arms else name
        new = Method(label, entry["family"], {}, is_reference=name == "random")
        values = methods.setdefault(name, new).values
        values[entry["seed"]] = entry["cells"][-1][1] / maze.num_open_cells
    return [*methods.values()]


def make_table(methods: Sequence[Method]) -> Table:
    """A row for each method with its seeds."""
    seeds, show = sorted({seed for method in methods for seed in method.values}), measure_of("maze").format
    columns = ["method", "family", "maze coverage, mean", *(f"seed {seed}" for seed in seeds)]
    rows = [
        [
            *(method.label, method.family or "–", show(method.mean)),
            *(show(method.values[seed]) if seed in method.values else "–" for seed in seeds),
        ]
        for method in methods
    ]
    return Table("", columns, rows, numeric=frozenset(range(2, len(columns))))


def draw(methods: Sequence[Method], title: str | None) -> Any:
    """A line for each method: its range, its seeds as dots, its mean as a bar; random play is dashed."""
    size = (6.4, 1.2 + 0.27 * len(methods))
    figure, axis = import_pyplot().subplots(figsize=size, layout="constrained")
    for place, method in enumerate(methods):
        if method.is_reference:
            axis.axvline(method.mean, color=COLORS[6], linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        color, values = COLORS[FAMILIES.get(method.family, 4)], [*method.values.values()]
        axis.plot([min(values), max(values)], [place, place], color=color, linewidth=6, alpha=0.28)
        axis.plot(values, [place] * len(values), "o", color=color, markersize=3.6, alpha=0.75)
        axis.plot([method.mean], [place], "|", color=color, markersize=15, markeredgewidth=2.6)
        axis.annotate(
            measure_of("maze").format(method.mean), (max(values), place), (8, 0), textcoords="offset points",
            va="center", fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
    for name in [name for name in FAMILIES if name and any(each.family == name for each in methods)]:
        axis.plot([], [], "s", color=COLORS[FAMILIES[name]], label=name)
    axis.set_yticks(range(len(methods)), [method.label for method in methods])
    axis.set_ylim(len(methods) - 0.4, -0.6)
    axis.set_xlim(0, 1.08)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}" if value <= 1 else "")
    axis.set_title(title or "Maze coverage", fontsize=10)
    axis.tick_params(labelsize=8)
    axis.tick_params(axis="y", length=0, labelsize=9)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.grid(axis="x", alpha=0.25)
    figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=len(FAMILIES))
    return figure


if __name__ == "__main__":
    main()
