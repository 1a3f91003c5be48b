"""Two versions of voidrl on one machine: updates alone and whole runs, each next to the other's.

    git archive OLD_COMMIT src | tar -x -C /some/folder
    python benchmarks/compare_commits.py /some/folder/src src \
        --updates vectors urlb-states --runs walker --engine compile --json compare.json

Compiling takes longer than measuring, so several processes, one for each version and workload, start at the
same time and share the cores. When they are ready, they measure one after the other, in rounds, while the
others sleep; those that are not ready after `--patience` seconds are left out. On 16 cores five were ready
after 100 to 130 s; of eight next to ten other programs, four were not after 200 s. Whole runs follow, one at
a time. Those of walker find compiled what the updates of `urlb-states` have compiled; those of a game with
other actions than a workload compile again, for about a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

RUNS = {  # names, and arguments of `voidrl bench train`
    "walker": ("dmc/walker", "--preset", "urlb-states", "--steps", "40k"),
    "walker-pixels": ("dmc/walker", "--preset", "urlb-pixels", "--steps", "8k"),
    "atari": ("atari/ms_pacman", "--preset", "atari-fast", "--steps", "160k"),
    "atari-128": ("atari/ms_pacman", "--preset", "atari-fast", "--steps", "200k", "--num-envs", "128"),
    "atari-lanes": (
        *("atari/ms_pacman", "--preset", "atari-fast", "--steps", "200k"),
        *("--num-envs", "128", "--lanes", "2"),
    ),
    "walker-16": ("dmc/walker", "--preset", "urlb-states", "--steps", "48k", "--num-envs", "16"),
}
VERSIONS = ("old", "new")
TIMEOUT_S = 300


def main() -> None:
    """Print a table, and write its numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path, help="the folder `src` of the older version")
    parser.add_argument("new", type=Path)
    parser.add_argument("--updates", nargs="*", default=[], metavar="WORKLOAD")
    parser.add_argument("--runs", nargs="*", default=[], choices=RUNS)
    parser.add_argument("--only-new", nargs="*", default=[], help="what the older version does not do")
    parser.add_argument("--engine", default="compile")
    parser.add_argument("--seconds", type=float, default=1.0, help="of updates in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=4, help="processes that start at the same time")
    parser.add_argument("--patience", type=float, default=240, help="seconds for these to compile")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", metavar="WORKLOAD", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.engine, options.seconds)
        return
    found: dict[str, Any] = {"updates": compare_updates(options) if options.updates else {}, "runs": {}}
    for name in options.runs:
        found["runs"][name] = {}
        for version in VERSIONS:
            if version == "new" or name not in options.only_new:
                found["runs"][name][version] = whole_run(
                    getattr(options, version), RUNS[name], options.engine
                )
        show(name, found["runs"][name], "steps_per_second")
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))


def compare_updates(options: argparse.Namespace) -> dict[str, Any]:
    """Updates per second of each workload with each version."""
    found: dict[str, Any] = {workload: {} for workload in options.updates}
    pairs = [
        (workload, version)
        for workload in options.updates
        for version in VERSIONS
        if version == "new" or workload not in options.only_new
    ]
    for first in range(0, len(pairs), options.at_once):
        for (workload, version), figures in measure_together(pairs[first : first + options.at_once], options):
            found[workload][version] = figures
        for workload in {workload for workload, _ in pairs[first : first + options.at_once]}:
            show(workload, found[workload], "updates_per_second")
        if options.json:
            options.json.write_text(json.dumps({"updates": found}, indent=1))
    return found


def measure_together(
    pairs: Sequence[tuple[str, str]], options: argparse.Namespace
) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Start a process for each workload and version, then measure one by one."""
    command = [sys.executable, __file__, str(options.old), str(options.new), "--engine", options.engine]
    threads = {"TORCHINDUCTOR_COMPILE_THREADS": str(max(1, (os.cpu_count() or 1) // len(pairs)))}
    children = {
        (workload, version): subprocess.Popen(
            [*command, "--seconds", str(options.seconds), "--measure", workload],
            env=environment(getattr(options, version)) | threads,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for workload, version in pairs
    }
    until = time.monotonic() + options.patience
    ready = {pair: _line(child, until) for pair, child in children.items()}
    rates: dict[tuple[str, str], list[float]] = {pair: [] for pair, line in ready.items() if line}
    for _ in range(options.rounds):
        for pair, measured in rates.items():
            children[pair].stdin.write("go\n")
            children[pair].stdin.flush()
            measured.append(float(children[pair].stdout.readline()))
    for pair, child in children.items():
        child.stdin.close()
        if pair not in rates:
            child.kill()
            print(f"{', '.join(pair)}: not ready after {options.patience:.0f} s, or failed", flush=True)
            continue
        child.wait(TIMEOUT_S)
        figures = {"rates": rates[pair], "updates_per_second": statistics.median(rates[pair])}
        yield pair, {**json.loads(ready[pair]), **figures}


def _line(child: subprocess.Popen, until: float) -> str:
    """The next line of output, empty if there is none by then."""
    ready, _, _ = select.select([child.stdout], [], [], max(0.0, until - time.monotonic()))
    return child.stdout.readline() if ready else ""


def environment(source: Path) -> dict[str, str]:
    """Variables of a process that imports this version."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source.resolve()), os.environ.get("PYTHONPATH", "")]),
    }


def measure(name: str, engine: str, seconds: float) -> None:
    """One line when ready; then one line with updates per second for each line of input."""
    import torch

    from voidrl.agent import Agent
    from voidrl.bench.data import random_replay
    from voidrl.bench.roofline import find_peaks
    from voidrl.bench.timing import time_run
    from voidrl.bench.update import MULTIPLE, Subject, _update_floor
    from voidrl.bench.workloads import find_workload
    from voidrl.build import build_config
    from voidrl.device import pick_device, seeded

    output, sys.stdout = sys.stdout, sys.stderr
    device = pick_device("auto")
    work = find_workload(name)
    assert work.spec is not None
    config = build_config(work.spec, [*work.layers, {"engine": engine}])
    with seeded(0, device):
        counted = Agent(work.spec, config, device)
        sizes = {"config": config.replay, "note_dim": counted.note_dim}
        replay = random_replay(work.spec, device, counted.method.skill_dim, print, **sizes)
        subject = Subject(work.spec, config, replay, device, print)
        floor = _update_floor(counted, replay, find_peaks(device)).seconds
        multiple = MULTIPLE[device.type]
        took = time_run(subject.run, 4 * multiple, device) / 4
        count = max(1, round(seconds / took)) * multiple
        torch.cuda.synchronize() if device.type == "cuda" else None
        ready = {"start_seconds": subject.start_seconds, "peak_mib": subject.peak_mib, "floor_seconds": floor}
        print(json.dumps(ready), file=output, flush=True)
        for _ in sys.stdin:
            subject.run(multiple)
            print(count / time_run(subject.run, count, device), file=output, flush=True)


def whole_run(source: Path, arguments: tuple[str, ...], engine: str) -> dict[str, Any] | None:
    """What `voidrl bench train` measured; None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "voidrl", "bench", "train", *arguments, "--engine", engine]
        try:
            done = subprocess.run(
                [*command, "--json", str(result)],
                env=environment(source), capture_output=True, text=True, timeout=TIMEOUT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
        if done.returncode:
            print(done.stdout[-500:], done.stderr[-1500:], flush=True)
            return None
        row: dict[str, Any] = json.loads(result.read_text())["rows"][0]
        return row


def show(name: str, versions: dict[str, Any], key: str) -> None:
    """One line of the table."""
    cells = [f"{name:16}"]
    for version, figures in versions.items():
        if figures is not None:
            rate = figures[key]
            cells.append(f"{version} {rate:8.0f} {'updates' if 'updates' in key else 'steps'}/s")
            if "floor_seconds" in figures:
                cells.append(f"{100 * rate * figures['floor_seconds']:.0f} % of the floor")
                cells.append(f"start {figures['start_seconds']:.0f} s")
            else:
                cells.append(f"{rate * figures['frames_per_step']:.0f} frames/s")
                cells.append(f"waits {100 * figures['learner_waits']:.0f} %")
    if all(versions.get(version) for version in VERSIONS):
        cells.append(f"× {versions['new'][key] / versions['old'][key]:.2f}")
    print("  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
