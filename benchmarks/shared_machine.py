"""Runs that share a machine, each with all of its cores and each with its share of them.

python benchmarks/shared_machine.py                               # 4, 8 and 12 Atari runs of 100K steps
python benchmarks/shared_machine.py --before build/old/src        # compared with an older version's sources
python benchmarks/shared_machine.py --runs 2 --steps 500 --episodes 2 --num-envs 2 --device cpu --engine eager

Each run is a process that trains from scratch with one update a step and a batch of 32, then evaluates. They
start together, as those of `voidrl experiment --jobs N` do, on a GPU under CUDA's multi-process service.

`steps/s` counts the steps of all runs, from their start to the end of the last training, so that slow starts
count. Where a row takes longer than `--patience`, it counts the steps until then. `load` is the mean number
of runnable threads on the machine, read from /proc/loadavg twice a second.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

GAMES = ("ms_pacman",)  # whose games end soon, whatever a young policy does
LOOK_SECONDS = 0.5
COLUMNS = ("version", "runs", "cores each", "steps/s in all", "load", "seconds per evaluation")


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Measure and print the table; returns its rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, nargs="+", default=[4, 8, 12])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engine", default="graph")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--before", type=Path, help="an older version's `src`, for runs with all cores")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds for a row")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:  # of either version: it needs nothing from above
        print(json.dumps(one_run(**json.loads(options.one))))
        return []
    from voidrl.system.machine import usable_cores

    rows = []
    print(" | ".join(COLUMNS))
    with mps(options.device) as variables:
        for count in options.runs:
            for divided in (True, False):
                cores = max(1, usable_cores() // count) if divided else usable_cores()
                rows.append(measure(count, cores, options, variables, None if divided else options.before))
                print(" | ".join(str(rows[-1][name]) for name in COLUMNS), flush=True)
                if options.json:
                    options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


@contextmanager
def mps(device: str) -> Iterator[dict[str, str]]:
    """The variables of CUDA's multi-process service, which runs meanwhile; none where it cannot."""
    from voidrl.experiments.executors.mps import MpsError, mps_daemon
    from voidrl.system.device import pick_device

    with ExitStack() as stack:
        variables: dict[str, str] = {}
        if pick_device(device).type == "cuda":
            try:
                variables = stack.enter_context(mps_daemon())
            except MpsError as error:
                print(f"without CUDA's multi-process service: {error}", file=sys.stderr)
        yield variables


def measure(
    count: int, cores: int, options: argparse.Namespace, variables: dict[str, str], source: Path | None
) -> dict[str, Any]:
    """Train and evaluate so many runs at once, each of which takes so many cores."""
    environment = {**os.environ, **variables, "VOIDRL_CORES": str(cores)}
    if source:
        environment["PYTHONPATH"] = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
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
            words = [sys.executable, __file__, "--one", json.dumps(given)]
            with Path(folder, f"{i}.log").open("w") as log:
                children.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=log))
        loads = []
        while any(child.poll() is None for child in children) and time.time() < began + options.patience:
            loads.append(int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]))
            time.sleep(LOOK_SECONDS)
        unfinished = [i for i, child in enumerate(children) if child.poll() is None]
        seconds, steps = time.time() - began, [options.steps] * count
        for i in unfinished:
            children[i].kill()
            steps[i] = min(options.steps, steps_of(Path(folder, str(i))))
        for i in {*range(count)} - {*unfinished}:
            if children[i].returncode:
                sys.exit(f"run {i} failed:\n{Path(folder, f'{i}.log').read_text()[-2000:]}")
        outputs = [child.communicate()[0] for child in children]
    results = [json.loads(text.splitlines()[-1]) for i, text in enumerate(outputs) if i not in unfinished]
    if sum(steps) == count * options.steps and results:
        seconds = max(result["trained"] for result in results) - began
    evaluations = [result["evaluation_seconds"] for result in results]
    middle = statistics.median_high(evaluations + [math.inf for i in unfinished])
    numbers = (
        "before" if source else "now",
        count,
        cores,
        round(sum(steps) / seconds, 1),
        round(statistics.mean(loads), 1),
        None if math.isinf(middle) else round(middle, 1),  # most had not ended
    )
    return dict(zip(COLUMNS, numbers, strict=True))


def steps_of(run: Path) -> int:
    """The steps of a run that was ended, at its last heartbeat."""
    try:
        return int(json.loads((run / "status.json").read_text()).get("steps") or 0)
    except OSError:
        return 0


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
