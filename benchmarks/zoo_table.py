"""Coverage of the maze by method: a Markdown table and a picture, from run folders.

    voidrl experiment zoo --jobs 2                                       # or bring its folder from elsewhere
    python benchmarks/zoo_table.py runs/zoo --picture docs/images/zoo_maze.png --markdown zoo.md

Folders are those of any pre-trainings in one environment that counts coverage. A row has the method, its
family, the mean coverage and that of each seed, and the mean training time of a run in seconds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from voidrl.report.figures import DPI, draw_ranking, require_matplotlib
from voidrl.report.groups import make_arms
from voidrl.report.ranking import coverage_rankings
from voidrl.report.read import read_all


def main() -> None:
    """Read, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="run folders, or folders that hold some")
    parser.add_argument("--picture", type=Path, metavar="PNG")
    parser.add_argument("--markdown", type=Path, metavar="MD", help="write the table to a file too")
    parser.add_argument("--title", help="of the picture")
    options = parser.parse_args()
    collection = read_all(options.runs, lambda text: print(text, file=sys.stderr))
    for run in collection.runs:
        if run.status != "complete":
            print(f"{run.name}: {run.status_note or run.status}", file=sys.stderr)
    rankings = coverage_rankings(make_arms(collection.runs), least_arms=1)
    if len(rankings) != 1:
        parser.error(f"expected pre-trainings with coverage in one environment, found {len(rankings)}")
    text = rankings[0].table().markdown()
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    if options.picture:
        plt = require_matplotlib(["png"])
        draw_ranking(plt, rankings[0], options.title).savefig(options.picture, dpi=DPI)


if __name__ == "__main__":
    main()
