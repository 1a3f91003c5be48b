"""Runs that share a machine, each with all of its cores and each with its share of them.

python benchmarks/shared_machine.py                                   # 4, 8 and 12 Atari runs of 100K steps
python benchmarks/shared_machine.py --runs 2 --steps 500 --episodes 2 --num-envs 2 --device cpu --engine eager

Each run is a process that trains from scratch with one update a step and a batch of 32, then evaluates. They
start together, as those of `voidrl experiment --jobs N` do, on a GPU under CUDA's multi-process service.

`steps/s` counts the steps of all runs, from their start to the end of the last training, so that slow starts
count. `load` is the mean number of runnable threads on the machine, read from /proc/loadavg twice a second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from voidrl.experiments.executors.mps import Mps, MpsError
from voidrl.system.device import pick_device
from voidrl.system.machine import CORES, usable_cores
from voidrl.system.units import parse_count

GAMES = ("krull", "ms_pacman")  # games that end by themselves: a young policy in breakout never serves
LOOK_SECONDS = 0.5
COLUMNS = ("runs", "cores each", "steps/s in all", "load", "seconds per evaluation")


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Measure and print the table; returns its rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, nargs="+", default=[4, 8, 12])
    parser.add_argument("--steps", type=parse_count, default=100_000)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engine", default="graph")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(one_run(**json.loads(options.one))))
        return []
    rows = []
    print(" | ".join(COLUMNS))
    with ExitStack() as stack:
        variables = {}
        if pick_device(options.device).type == "cuda":
            try:
                mps = Mps()
                stack.callback(mps.close)
                variables = mps.variables
            except MpsError as error:
                print(f"without CUDA's multi-process service: {error}", file=sys.stderr)
        for count in options.runs:
            for cores in (usable_cores(), max(1, usable_cores() // count)):
                rows.append(measure(count, cores, options, variables))
                print(" | ".join(f"{rows[-1][name]:g}" for name in COLUMNS), flush=True)
                if options.json:
                    options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def measure(count: int, cores: int, options: argparse.Namespace, variables: dict[str, str]) -> dict[str, Any]:
    """Train and evaluate so many runs at once, each of which takes so many cores."""
    with tempfile.TemporaryDirectory(prefix="voidrl-shared-") as folder:
        began, children = time.time(), []
        for i in range(count):
            given = {
                "game": GAMES[i % len(GAMES)],
                "seed": i,
                "out": f"{folder}/{i}",
                **{
                    name: getattr(options, name)
                    for name in ("steps", "num_envs", "episodes", "device", "engine")
                },
            }
            children.append(
                subprocess.Popen(
                    [sys.executable, __file__, "--one", json.dumps(given)],
                    env={**os.environ, **variables, CORES: str(cores)},
                    stdout=subprocess.PIPE,
                )
            )
        loads = []
        while any(child.poll() is None for child in children):
            loads.append(int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]))
            time.sleep(LOOK_SECONDS)
        results = [json.loads(child.communicate()[0].splitlines()[-1]) for child in children]
    trained = max(result["trained"] for result in results) - began
    numbers = (
        count,
        cores,
        round(count * options.steps / trained, 1),
        round(statistics.mean(loads), 1),
        round(statistics.median(result["evaluation_seconds"] for result in results), 1),
    )
    return dict(zip(COLUMNS, numbers, strict=True))


def one_run(
    game: str, seed: int, out: str, steps: int, num_envs: int, episodes: int, device: str, engine: str
) -> dict[str, float]:
    """Train and evaluate one run, in its own process."""
    import voidrl

    config = {
        "engine": engine,
        "env.num_envs": num_envs,
        "updates_per_step": 1.0,
        "learner.batch_size": 32,
        "warmup_steps": min(1600, steps // 4),
        "log.tensorboard": False,
        "log.eval_every_steps": 0,
    }
    voidrl.train(f"atari/{game}", steps=steps, seed=seed, device=device, out=out, config=config)
    trained = time.time()
    voidrl.evaluate(out, episodes=episodes, device=device)
    return {"trained": trained, "evaluation_seconds": time.time() - trained}


if __name__ == "__main__":
    main()
