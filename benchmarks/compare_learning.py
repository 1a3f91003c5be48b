"""Do two versions of voidrl learn the same? The same runs of both, compared seed by seed.

    mkdir -p build/old && git archive OLD_COMMIT src | tar -x -C build/old
    python benchmarks/compare_learning.py build/old/src src --out build/learning --seeds 1 2 3 4 \
        -- dmc/walker --preset urlb-states --steps 100k --env.count-states True --log.log-every-steps 10000
    python benchmarks/compare_learning.py --load FILE.jsonl.gz

After `--` come the arguments of `voidrl pretrain`, of which `--env.count-states True` logs `coverage/bins`.
Runs of one seed begin alike in both versions, so that differences are taken within seeds: their mean, its
standard error, in how many seeds the new version is lower, and p, the fraction of all ways to exchange the
versions within seeds whose mean difference is at least as large. With four seeds p is never below 0.125, with
six never below 0.031. Decide beforehand which row counts: among many rows some p are small. A large p does
not prove that versions are equal; differences of two to three standard errors could have been missed.

Runs that are done are not repeated and those that were stopped are resumed, so that seeds can be added later.
`--minutes` stops all runs, with a checkpoint, and compares the steps that both versions have.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from compare_commits import VERSIONS, environment, require_sources

from voidrl.runs.metrics import read_metrics
from voidrl.runs.status import read_status
from voidrl.system.terminal.tables import print_table

METRICS = ("train/reward_mean", "coverage/bins")
MOST_SEEDS = 20  # all 2**20 ways to exchange versions are counted
STOP_SECONDS = 60  # for a checkpoint

Rows = dict[int, dict[str, Any]]
"""The rows of a run by the step at which they were due."""


def main() -> None:
    """Train what is missing, then print a table for each metric."""
    words = [*sys.argv[1:], "--"]
    own, arguments = words[: words.index("--")], words[words.index("--") + 1 : -1]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", type=Path, nargs="*", help="the folders `src` of the old and new version")
    parser.add_argument("--seeds", type=int, nargs="+", help="by default 1 to 4, or all that were saved")
    parser.add_argument("--out", type=Path, help="where run folders go: old-1, new-1, …")
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="until runs are stopped")
    parser.add_argument("--metrics", nargs="+", default=[*METRICS], help="names in metrics.jsonl")
    parser.add_argument("--rows", type=int, default=5, help="of each table")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write all rows of all runs, as .jsonl.gz")
    parser.add_argument("--load", type=Path, metavar="FILE", help="compare what was saved; trains nothing")
    options = parser.parse_args(own)
    runs = load(options.load) if options.load else {}
    options.seeds = options.seeds or sorted({seed_of(name) for name in runs}) or [1, 2, 3, 4]
    if options.at_once < 1 or options.rows < 1:
        parser.error("--at-once and --rows are 1 or more")
    if len({*options.seeds}) < len(options.seeds) or len(options.seeds) > MOST_SEEDS:
        parser.error(f"--seeds {options.seeds}: expected different seeds, at most {MOST_SEEDS}")
    failed: list[str] = []
    names = [f"{version}-{seed}" for seed in options.seeds for version in VERSIONS]
    if options.load:
        runs = {name: rows for name, rows in runs.items() if name in names}
    else:
        if len(options.sources) != len(VERSIONS) or options.out is None or not arguments:
            parser.error("expected OLD/src NEW/src --out DIR -- ENV …, or --load FILE")
        require_sources(options.sources, parser)
        if options.save and not options.save.absolute().parent.is_dir():
            parser.error(f"--save {options.save}: there is no such folder")
        if taken := {"--seed", "--seeds", "--out", "--overwrite"} & {*arguments}:
            parser.error(f"{', '.join(sorted(taken))} after --: seeds and folders are chosen by this script")
        claim(options.out, options.sources, arguments, parser)
        failed = train(options, arguments)
        runs = {name: rows_of(options.out / name) for name in names}
        if options.save:
            save(options.save, runs)
    compared = [metric for metric in options.metrics if compare(metric, runs, options.rows)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; their logs are in {options.out}")
    if not compared:
        known = sorted({key for rows in runs.values() for row in rows.values() for key in row})
        sys.exit(f"nothing to compare; seeds: {options.seeds}, metrics: {', '.join(known) or 'none'}")


# Training


def claim(out: Path, sources: Sequence[Path], arguments: list[str], parser: argparse.ArgumentParser) -> None:
    """Refuse a folder with runs of other versions or arguments, which would be taken for these."""
    wanted = {"arguments": arguments, "sources": [digest(source) for source in sources]}
    file = out / "comparison.json"
    before = json.loads(file.read_text()) if file.exists() else None
    if before != wanted and any(out.glob("*/status.json")):
        parser.error(f"{out} has runs of other versions or with other arguments: choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(wanted, indent=1))


def digest(source: Path) -> str:
    """Of all code of a version."""
    code = hashlib.sha256()
    for file in sorted((source / "voidrl").rglob("*.py")):
        code.update(file.relative_to(source).as_posix().encode() + file.read_bytes())
    return code.hexdigest()


def train(options: argparse.Namespace, arguments: list[str]) -> list[str]:
    """Train all runs that are not done; returns the names of those that failed."""
    until = time.monotonic() + 60 * options.minutes
    waiting = [(version, seed) for seed in options.seeds for version in VERSIONS]
    waiting = [each for each in waiting if state(options.out / "{}-{}".format(*each)) != "done"]
    working: dict[str, subprocess.Popen[bytes]] = {}
    failed = []
    try:
        while (waiting or working) and time.monotonic() < until:
            while waiting and len(working) < options.at_once:
                version, seed = waiting.pop(0)
                working[f"{version}-{seed}"] = start(version, seed, options, arguments)
            time.sleep(0.2)
            for name in [name for name, process in working.items() if process.poll() is not None]:
                said = state(options.out / name)
                if working.pop(name).returncode:
                    failed.append(name)
                    said = (options.out / f"{name}.log").read_text().strip().rpartition("\n")[2]
                print(f"{name}: {said}", flush=True)
    finally:
        for process in working.values():
            process.terminate()
        for name, process in working.items():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                failed.append(name)
    return failed


def start(
    version: str, seed: int, options: argparse.Namespace, arguments: list[str]
) -> subprocess.Popen[bytes]:
    """A process that trains one run, or resumes it where there is a checkpoint."""
    source, folder = options.sources[VERSIONS.index(version)], options.out / f"{version}-{seed}"
    command = [sys.executable, "-P", "-m", "voidrl"]  # -P: not the voidrl of the present folder
    status = read_status(folder)
    if status is not None and status.checkpoint and status.state != "failed":
        command += ["resume", str(folder)]
    else:
        command += ["pretrain", *arguments, "--seed", str(seed), "--out", str(folder)]
        command += ["--overwrite"] if folder.exists() else []
    with (options.out / f"{folder.name}.log").open("ab") as log:
        return subprocess.Popen(command, env=environment(source), stdout=log, stderr=log)


def state(folder: Path) -> str:
    """`done`, `stopped` and so on; empty if there is no run."""
    status = read_status(folder)
    return status.state if status is not None else ""


# Rows


def rows_of(folder: Path) -> Rows:
    """What a run has logged so far."""
    if not (folder / "metrics.jsonl").exists():
        return {}
    every = json.loads((folder / "config.json").read_text())["log"]["log_every_steps"]
    rows: Rows = {}
    for row in read_metrics(folder):  # some steps late where all environments take a step at a time
        rows.setdefault(row["step"] // every * every, row)  # the first: one more is logged where a run stops
    return rows


def save(file: Path, runs: dict[str, Rows]) -> None:
    """Write all rows, with the name of their run and the step at which they were due."""
    with gzip.open(file, "wt") as lines:
        for name, rows in runs.items():
            lines.writelines(json.dumps({"run": name, "due": due, **row}) + "\n" for due, row in rows.items())


def load(file: Path) -> dict[str, Rows]:
    """Rows that were saved."""
    runs: dict[str, Rows] = {}
    try:
        with gzip.open(file, "rt") as lines:
            for row in map(json.loads, lines):
                runs.setdefault(row["run"], {})[row.get("due", row["step"])] = row
    except (OSError, EOFError, ValueError, KeyError) as error:
        sys.exit(f"--load {file}: expected what --save has written ({type(error).__name__}: {error})")
    return runs


def seed_of(name: str) -> int:
    """That of `old-1` is 1."""
    return int(name.rpartition("-")[2])


# The comparison


def compare(metric: str, runs: dict[str, Rows], count: int) -> bool:
    """Print a metric at some steps, the last among them, of seeds that have it in both; False if none has."""
    pairs = paired(metric, runs)
    if not pairs:
        print(f"\n{metric}: not logged by both versions in any seed")
        return False
    cells = []
    for step in spread_out([*pairs], count):
        old, new = zip(*pairs[step], strict=True)
        differences = [after - before for before, after in pairs[step]]
        error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else None
        cells.append(
            (
                f"{step:,}",
                f"{len(differences)}",
                *(f"{number(statistics.fmean(each))} {value_range(each)}" for each in (old, new)),
                f"{number(statistics.fmean(differences), '+')}{f' ± {number(error)}' if error else ''}",
                f"{sum(d < 0 for d in differences)}",
                f"{sign_flip_p(differences):.3f}",
            )
        )
    print()
    print_table((f"{metric}, step", "seeds", "old [range]", "new [range]", "new − old", "lower", "p"), cells)
    return True


def spread_out(steps: Sequence[int], count: int) -> list[int]:
    """So many of them, from the first to the last; all if there are no more, and of one the last."""
    if count == 1:
        return [steps[-1]]
    count = min(count, len(steps))
    return [steps[round(i * (len(steps) - 1) / max(1, count - 1))] for i in range(count)]


def paired(metric: str, runs: dict[str, Rows]) -> dict[int, list[tuple[float, float]]]:
    """By step, (old, new) of each seed that has the metric in both versions."""
    found: dict[int, list[tuple[float, float]]] = {}
    for name in sorted(name for name in runs if name.startswith("old-")):
        old, new = runs[name], runs.get(name.replace("old-", "new-", 1), {})
        for step in old.keys() & new.keys():
            both = old[step].get(metric), new[step].get(metric)
            if all(isinstance(value, int | float) for value in both):
                found.setdefault(step, []).append(both)  # type: ignore[arg-type]
    return dict(sorted(found.items()))


def sign_flip_p(differences: Sequence[float]) -> float:
    """The fraction of all choices of signs with which the sum is at least as far from 0."""
    least = abs(sum(differences)) - 1e-12 * sum(map(abs, differences))  # whatever the rounding of equal sums
    first, *others = differences  # whose sign may stay: all signs the other way round are as far from 0
    far: int = sum(
        abs(first + sum(sign * each for sign, each in zip(signs, others, strict=True))) >= least
        for signs in product((1, -1), repeat=len(others))
    )
    return far / 2 ** len(others)


def value_range(values: Sequence[float]) -> str:
    """The smallest and the largest."""
    return f"[{number(min(values))}, {number(max(values))}]"


def number(value: float, sign: str = "") -> str:
    """With three digits, or all of a large one."""
    return f"{value:{sign},.0f}" if abs(value) >= 100 else f"{value:{sign}.3g}"


if __name__ == "__main__":
    main()
