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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from voidrl.experiments.format import read_experiment
from voidrl.report.figures import DPI, draw_ranking
from voidrl.report.groups import family_of, make_arms
from voidrl.report.outcomes import maze_of
from voidrl.report.provenance import commit, hardware
from voidrl.report.ranking import RankedArm, Ranking, coverage_rankings
from voidrl.report.read import Run, read_all

CELLS = "coverage/cells"


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
        ranking = saved_ranking(saved)
    else:
        rankings = coverage_rankings(make_arms(runs), least_arms=1)
        if len(rankings) != 1:
            parser.error(f"expected pre-trainings with coverage in one environment, found {len(rankings)}")
        ranking = rankings[0]
    text = ranking.table().markdown()
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    if options.picture:
        draw_ranking(ranking, options.title).savefig(options.picture, dpi=DPI)


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
                "family": family_of(run),
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


def saved_ranking(saved: dict[str, Any]) -> Ranking:
    """Methods by their mean coverage, named as in the experiment's file."""
    experiment = read_experiment("zoo")
    maze = maze_of(experiment.tasks[0].env)
    assert maze is not None
    arms: dict[str, RankedArm] = {}
    for entry in saved["runs"]:
        name = entry["method"]
        label = experiment.arms[name].label if name in experiment.arms else name
        new = RankedArm(label, entry["family"], {}, None, is_reference=name == "random")
        values = arms.setdefault(name, new).values
        values[entry["seed"]] = entry["cells"][-1][1] / maze.num_open_cells
    return Ranking("PixelMaze-v0", "maze", sorted(arms.values(), key=lambda arm: -arm.mean))


if __name__ == "__main__":
    main()
