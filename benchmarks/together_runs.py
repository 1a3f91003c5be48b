"""Whole runs of several seeds in one process, next to one run alone: steps and updates per second.

    python benchmarks/together_runs.py dmc/walker --preset urlb-states --engine compile --seeds 8 --steps 30k

Both are trained without evaluations and checkpoints on the way, in a temporary folder. Rates are medians over
rows of metrics.jsonl in the last two thirds of a run, when everything is captured; of several seeds they are
summed. `seconds` is the time from the first call to the last return, with building and compiling.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import voidrl
from voidrl.runs.folder import environment_info
from voidrl.runs.metrics import read_metrics
from voidrl.terminal.tables import print_table
from voidrl.units import parse_count

ROWS = 30
RATES = ("time/steps_per_second", "time/updates_per_second")
WAITS = "time/learner_waits"


def measure(seeds: range, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train these seeds and return the sums of their rates."""
    steps = parse_count(options.steps)
    log = {"log_every_steps": max(1, steps // ROWS), "checkpoint_every_steps": steps, "eval_every_steps": 0}
    config = {"engine": options.engine, "log": {**log, "tensorboard": False, "keep_replay": False}}
    start = partial(
        voidrl.pretrain, options.env, steps=steps, preset=options.preset, device=options.device, config=config
    )
    began = time.perf_counter()
    voidrl.together({f"seed {s}": partial(start, seed=s, out=folder / f"seed-{s}") for s in seeds})
    seconds = time.perf_counter() - began
    found = {"seeds": len(seeds), "seconds": seconds, **dict.fromkeys(RATES, 0.0)}
    waits = []
    for seed in seeds:
        rows = [row for row in read_metrics(folder / f"seed-{seed}") if row["step"] > steps / 3]
        for name in RATES:
            found[name] += statistics.median(row[name] for row in rows if name in row)
        waits += [row[WAITS] for row in rows if WAITS in row]
    return {**found, WAITS: statistics.median(waits)}


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("env", nargs="?", default="dmc/walker")
    parser.add_argument("--preset", default="urlb-states")
    parser.add_argument("--engine", default="compile")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[8], help="numbers of seeds, next to one")
    parser.add_argument("--steps", default="30k", help="of each run")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = [1, *options.seeds]
        found = [measure(range(1, n + 1), Path(folder, f"{n}-seeds"), options) for n in counts]
    header = ("seeds", "steps/s", "updates/s", "gain", "learner waits", "seconds")
    rows = []
    for row in found:
        row["gain"] = row[RATES[0]] / found[0][RATES[0]]
        rates = [f"{row[name]:.0f}" for name in RATES]
        rows.append(
            (row["seeds"], *rates, f"{row['gain']:.2f}", f"{100 * row[WAITS]:.0f} %", f"{row['seconds']:.0f}")
        )
    print_table(header, rows)
    if options.json:
        record = {"environment": environment_info(), "options": vars(options) | {"json": ""}, "rows": found}
        options.json.write_text(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
