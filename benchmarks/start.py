"""How long a run takes to start: seconds until its first update, and until updates run at full speed.

python benchmarks/start.py                                    # compile: urlb-states, atari-fast, urlb-pixels
python benchmarks/start.py urlb-states --engines graph compile --json start.json
python benchmarks/start.py urlb-states --device cpu --small   # a tiny batch, to try it on a CPU

Each start is a process of its own, first with empty cache folders (`cold`) and then twice with what it left
there (`warm`). The updates are those of `updates.py` on a replay of random steps, so that no
environment is needed; filling that replay is not counted, and neither are a run's warm-up steps. `first` ends
with the first update and `full` with the 64th, when the bursts of updates have been captured. `tracing`,
`guards` and `backend` are parts of compiling: Dynamo's, and what Inductor compiles or loads from the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

WORKLOADS = ("urlb-states", "atari-fast", "urlb-pixels")
REPLAY_STEPS = 256  # per environment
FULL_SPEED = 64  # updates until every graph has been captured
SMALL = {"learner.batch_size": 16, "learner.hidden_dim": 32}
COLUMNS = ("torch", "voidrl", "device", "agent", "engine", "tracing", "guards", "backend", "first", "full")
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "OMP_NUM_THREADS")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One start in this process."""
    marks = {"start": options.began}

    def mark(name: str) -> None:
        marks[name] = time.time()

    import torch

    mark("torch")
    import updates
    from updates import random_replay, synchronize
    from workloads import WORKLOADS as KNOWN

    from voidrl.agent import Agent
    from voidrl.engine.engine import Engine
    from voidrl.system.device import pick_device
    from voidrl.training.build import build_config

    mark("voidrl")
    device = pick_device(options.device)
    torch.ones(64, 64, device=device).mm(torch.ones(64, 64, device=device)).sum().item()
    mark("device")
    workload, name = KNOWN[options.workloads[0]], options.engines[0]
    layers = [*workload.layers, {"engine": name}, *([SMALL] if options.small else [])]
    config = build_config(workload.spec, layers)
    agent = Agent(workload.spec, config, device)
    mark("agent")
    updates.REPLAY_STEPS[device.type] = REPLAY_STEPS
    replay = random_replay(
        workload.spec, device, agent.method.skill_dim, print, config.replay, agent.note_dim
    )
    synchronize(device)
    mark("replay")
    engine = Engine(agent, replay, print)
    mark("engine")
    engine.update(0, 1)
    synchronize(device)
    mark("first")
    engine.update(1, FULL_SPEED - 1)
    synchronize(device)
    mark("full")
    engine.update(FULL_SPEED, FULL_SPEED)
    synchronize(device)
    mark("after")
    names = [*marks]
    phases = {name: marks[name] - marks[before] for before, name in pairwise(names)}
    return {
        "workload": options.workloads[0],
        "engine": engine.mode,
        "first_seconds": marks["first"] - marks["start"] - phases["replay"],
        "full_seconds": marks["full"] - marks["start"] - phases["replay"],
        "updates_per_second": FULL_SPEED / phases["after"],
        "phases": phases,
        **_compiling(),
    }


def _compiling() -> dict[str, Any]:
    """Seconds and cache hits of what was compiled, by torch's own count."""
    from torch._dynamo.utils import compilation_time_metrics, counters

    def total(name: str) -> float:
        return float(sum(compilation_time_metrics.get(name, ())))

    backend, guards = total("OutputGraph.call_user_compiler"), total("build_guards")
    tracing = total("_compile.compile_inner") - backend - guards
    return {
        "compiling": {"tracing": tracing, "guards": guards, "backend": backend},
        "times": {name: [sum(each), len(each)] for name, each in compilation_time_metrics.items()},
        "graphs": counters["stats"]["unique_graphs"],
        "hits": counters["aot_autograd"]["autograd_cache_hit"],
        "misses": counters["aot_autograd"]["autograd_cache_miss"],
        "bypassed": counters["aot_autograd"]["autograd_cache_bypass"],
    }


def start(workload: str, engine: str, options: argparse.Namespace, home: Path) -> dict[str, Any]:
    """One start in a new process, with its caches in `home`."""
    environment = {name: value for name, value in os.environ.items() if name not in CACHES}
    environment |= {"XDG_CACHE_HOME": str(home), "TRITON_HOME": str(home)}
    command = [sys.executable, __file__, workload, "--engines", engine, "--device", options.device]
    command += ["--small"] * options.small + ["--began", repr(time.time())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{workload} with engine {engine} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure all of them and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=[*WORKLOADS], help="by default all")
    parser.add_argument("--engines", nargs="+", default=["compile"], choices=["eager", "graph", "compile"])
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--warm", type=int, default=2, metavar="N", help="starts after the first (default: 2)"
    )
    parser.add_argument("--small", action="store_true", help="a tiny batch and narrow networks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to a file")
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)  # measure in this process
    options = parser.parse_args()
    if options.began is not None:
        print(json.dumps(measure(options)))
        return
    widths = [max(6, len(name)) for name in COLUMNS]
    heads = " ".join(f"{name:>{width}}" for name, width in zip(COLUMNS, widths, strict=True))
    print(f"{'workload':<12} {'engine':<8} {'cache':<6} {heads} graphs hits bypassed updates/s")
    rows = []
    for workload in options.workloads:
        for engine in options.engines:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
                for number in range(1 + options.warm):
                    row = start(workload, engine, options, Path(home))
                    row["cache"] = "warm" if number else "cold"
                    row["cache_bytes"] = sum(f.stat().st_size for f in Path(home).rglob("*") if f.is_file())
                    rows.append(row)
                    _print(row, widths)
    if options.json:
        from voidrl.runs.folder import environment_info

        options.json.write_text(json.dumps({**environment_info(), "rows": rows}, indent=1) + "\n")


def _print(row: dict[str, Any], widths: list[int]) -> None:
    seconds = row["phases"] | row["compiling"]
    seconds |= {"first": row["first_seconds"], "full": row["full_seconds"]}
    cells = " ".join(f"{seconds[name]:>{width}.2f}" for name, width in zip(COLUMNS, widths, strict=True))
    counts = f"{row['graphs']:>6} {row['hits']:>4} {row['bypassed']:>8} {row['updates_per_second']:>9.0f}"
    print(f"{row['workload']:<12} {row['engine']:<8} {row['cache']:<6} {cells} {counts}", flush=True)


if __name__ == "__main__":
    main()
