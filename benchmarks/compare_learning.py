"""Do two versions of voidrl learn the same? The same runs of both, compared seed by seed.

    git archive OLD_COMMIT src | tar -x -C /some/folder
    python benchmarks/compare_learning.py /some/folder/src src --out build/learning --seeds 1 2 3 4 \
        -- dmc/walker --preset urlb-states --steps 100k --env.count-states True --log.log-every-steps 10000

Behind `--` are the arguments of `voidrl pretrain`. Runs of one seed begin alike in both versions, so that
differences are taken within seeds. p is the fraction of all ways to exchange the versions within seeds whose
mean difference is as large or larger: with four seeds it is never below 0.125, with six never below 0.031. A
larger p is no proof that versions are equal; the ranges show how large a difference could be missed.

Runs that are there already are not repeated, and those that were stopped are resumed, so that seeds can be
added later. `--minutes` stops all runs, with a checkpoint, and compares the steps that both versions have.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

VERSIONS = ("old", "new")
METRICS = ("train/reward_mean", "coverage/bins")
STOP_SECONDS = 60  # for a checkpoint
NEARLY = 0.98  # of a step: runs of other seeds may end some steps earlier


class Run(NamedTuple):
    """One seed of one version."""

    version: str
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.version}-{self.seed}"


def main() -> None:
    """Train what is missing, then print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="the folder `src` of the older version, with voidrl in it")
    parser.add_argument("new", type=Path, help="that of the newer version")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--out", type=Path, required=True, help="where run folders go: old-1, new-1, …")
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="until runs are stopped")
    parser.add_argument("--metrics", nargs="+", default=[*METRICS], help="names in metrics.jsonl")
    parser.add_argument("--rows", type=int, default=5, help="of each table, at equal distances")
    parser.add_argument("--save", type=Path, metavar="FILE", help="all rows of all runs, as .jsonl.gz")
    parser.add_argument("arguments", nargs="+", help="of `voidrl pretrain`, behind --")
    options = parser.parse_args()
    for folder in (options.old, options.new):
        if not (folder / "voidrl" / "__init__.py").is_file():
            parser.error(
                f"{folder} has no voidrl: expected a folder `src`, as `git archive COMMIT src` packs it"
            )
    runs = [Run(version, seed) for seed in options.seeds for version in VERSIONS]
    failed = train(runs, options)
    rows = {run: [*rows_of(options.out / run.name)] for run in runs}
    for metric in options.metrics:
        compare(metric, rows, options.seeds, options.rows)
    if options.save:
        with gzip.open(options.save, "wt") as file:
            for run in runs:
                file.writelines(json.dumps({"run": run.name, **row}) + "\n" for row in rows[run])
    if failed:
        sys.exit(f"failed: {', '.join(run.name for run in failed)}; their logs are in {options.out}")


def train(runs: Sequence[Run], options: argparse.Namespace) -> list[Run]:
    """Train all that are not done; returns those that failed."""
    until = time.monotonic() + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    waiting = [run for run in runs if status(options.out / run.name) != "done"]
    working: dict[Run, subprocess.Popen[bytes]] = {}
    failed = []
    try:
        while (waiting and time.monotonic() < until) or working:
            while waiting and len(working) < options.at_once and time.monotonic() < until:
                run = waiting.pop(0)
                working[run] = start(run, options)
            if time.monotonic() >= until:
                break
            time.sleep(0.2)
            for run in [run for run, process in working.items() if process.poll() is not None]:
                if working.pop(run).returncode:
                    failed.append(run)
                print(f"{run.name}: {status(options.out / run.name)}", flush=True)
    finally:
        for process in working.values():
            process.terminate()
        for process in working.values():
            process.wait(STOP_SECONDS)
    return failed


def start(run: Run, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """A process that trains one run, or resumes it where there is a checkpoint."""
    source, folder = getattr(options, run.version).resolve(), options.out / run.name
    command = [sys.executable, "-m", "voidrl"]
    if status(folder) == "stopped":
        command += ["resume", str(folder)]
    else:
        command += ["pretrain", *options.arguments, "--seed", str(run.seed), "--out", str(folder)]
        command += ["--overwrite"] if folder.exists() else []
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    with (options.out / f"{run.name}.log").open("ab") as log:
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=log, stderr=log)


def status(folder: Path) -> str:
    """The state of a run, empty if there is none."""
    try:
        return str(json.loads((folder / "status.json").read_text())["state"])
    except FileNotFoundError:
        return ""


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows that a run has logged."""
    file = folder / "metrics.jsonl"
    if file.exists():
        yield from (json.loads(line) for line in file.read_text().splitlines())


def compare(metric: str, rows: dict[Run, list[dict[str, Any]]], seeds: Sequence[int], parts: int) -> None:
    """Print a metric of both versions from the first row to the last that any seed has in both."""
    logged = {run: [row for row in each if row.get(metric) is not None] for run, each in rows.items()}
    ends = {seed: min(last_step(logged[Run(version, seed)]) for version in VERSIONS) for seed in seeds}
    end = max(ends.values())
    if not end:
        print(f"\n{metric}: not logged by both versions in any seed")
        return
    print(f"\n{metric:<18} {'seeds':>5} {'old: mean [range]':>26} {'new':>26} {'new − old':>10} {'p':>6}")
    first = min(row["step"] for each in logged.values() for row in each)
    for part in range(parts):
        step = first + (end - first) * part / max(1, parts - 1)
        found = [seed for seed in seeds if ends[seed] >= NEARLY * step]
        old, new = ([nearest(logged[Run(v, seed)], step)[metric] for seed in found] for v in VERSIONS)
        differences = [b - a for a, b in zip(old, new, strict=True)]
        cells = " ".join(f"{f'{statistics.fmean(values):.4g} {spread(values)}':>26}" for values in (old, new))
        difference = f"{statistics.fmean(differences):+.3g}"
        print(
            f"{f'{step:.0f} steps':<18} {len(found):>5} {cells} {difference:>10} {chance(differences):>6.3f}"
        )


def last_step(rows: Sequence[dict[str, Any]]) -> int:
    """The last step of some rows, 0 if there are none."""
    return int(rows[-1]["step"]) if rows else 0


def nearest(rows: Sequence[dict[str, Any]], step: float) -> dict[str, Any]:
    """The row that is nearest to a step: environments whose episodes end are logged some steps later."""
    return min(rows, key=lambda row: abs(row["step"] - step))


def spread(values: Sequence[float]) -> str:
    """The range."""
    return f"[{min(values):.4g}, {max(values):.4g}]"


def chance(differences: Sequence[float]) -> float:
    """How often exchanging versions within seeds gives a mean difference as large as this one (two-sided)."""
    observed = abs(sum(differences)) * (1 - 1e-12)  # equal sums count, whatever their rounding
    signs = product((1, -1), repeat=len(differences))
    exchanged = [
        abs(sum(sign * each for sign, each in zip(flips, differences, strict=True))) for flips in signs
    ]
    return statistics.fmean(total >= observed for total in exchanged)


if __name__ == "__main__":
    main()
