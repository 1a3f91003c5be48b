"""Updates per second of one agent on ranks: what it costs to be one of them, and what two gain or lose.

    python benchmarks/ranks.py discrete --device cuda --seconds 10 --json ranks.json
    python benchmarks/ranks.py vectors --device cpu --seconds 1 --rounds 1

Three ways to update the same agent with the same batch: a process on its own, one that torchrun has started
as the only rank, and two ranks on the same device with half of the batch each, whose gradients go by gloo.
The second over the first is the overhead of being started by torchrun; with `--engine eager`, the third over
the first is what exchanging by the host costs, less what half a batch saves. Rounds alternate between the
three, and ratios are those of medians. Environments are not stepped.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from updates import MULTIPLE, WARMUP, random_replay, synchronize, time_run
from workloads import WORKLOADS

from voidrl import dist
from voidrl.agent import Agent
from voidrl.engine.engine import Engine
from voidrl.runs.folder import environment_info
from voidrl.system.device import pick_device
from voidrl.training.build import build_config

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
WAYS = {"alone": (sys.executable,), "one rank": (*TORCHRUN, "1"), "two ranks": (*TORCHRUN, "2")}
TORCHRUN_SETS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
MARK = "updates per second: "


def main() -> None:
    """Print a table, and write its numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("workload", nargs="?", default="vectors", choices=WORKLOADS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engine", default="auto", choices=("auto", "eager", "graph", "compile"))
    parser.add_argument("--seconds", type=float, default=5.0, help="of updates in each process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options)
        return
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            rates[way].append(rate_of(way, options))
    median = {way: statistics.median(found) for way, found in rates.items()}
    print(f"{'way':<12}{'updates/s':>12}{'range':>20}{'of alone':>10}")
    for way, found in rates.items():
        span = f"{min(found):.1f} to {max(found):.1f}"
        print(f"{way:<12}{median[way]:>12.1f}{span:>20}{median[way] / median['alone']:>10.3f}")
    if options.json:
        figures = {
            "workload": options.workload,
            "device": options.device,
            "engine": options.engine,
            "updates_per_second": rates,
            "ratio": {way: value / median["alone"] for way, value in median.items()},
            "environment": environment_info(),
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def rate_of(way: str, options: argparse.Namespace) -> float:
    """Updates per second in a new process, or in two of them."""
    given = [options.workload, "--device", options.device, "--engine", options.engine]
    command = [*WAYS[way], __file__, *given, "--seconds", str(options.seconds), "--measure"]
    env = {name: value for name, value in os.environ.items() if name not in TORCHRUN_SETS}
    env["OMP_NUM_THREADS"] = "1"  # as torchrun has it for several
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        sys.exit(f"{way} failed:\n{done.stderr}")
    return float(lines[0].removeprefix(MARK))


def measure(options: argparse.Namespace) -> None:
    """As one rank, or on its own: print the rate of updates."""
    device = pick_device(options.device)
    workload = WORKLOADS[options.workload]
    spec = workload.spec
    config = build_config(spec, [*workload.layers, {"engine": options.engine}])
    with dist.process_group(device) as group:
        agent = Agent(spec, config, device)
        dist.broadcast_([*agent.tensors().values()])
        size = agent.method.skill_dim, print, config.replay, agent.note_dim
        replay = random_replay(spec, device, *size)
        engine = Engine(agent, replay, print)
        kind = device.type
        engine.update(0, WARMUP[kind])
        synchronize(device)

        def run(count: int) -> None:
            engine.update(0, count)

        multiple = MULTIPLE[kind]
        once = time_run(run, multiple, device) / multiple
        # All ranks take as many updates: the first one's clock decides.
        count = dist.broadcast_object(max(1, round(options.seconds / once / multiple)) * multiple)
        seconds = time_run(run, count, device)
        if group.is_main:
            print(f"{MARK}{count / seconds}", flush=True)
        engine.close()


if __name__ == "__main__":
    main()
