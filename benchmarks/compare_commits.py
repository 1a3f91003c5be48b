"""Two versions of voidrl on one machine: updates alone and whole runs, each next to the other's.

    mkdir -p build/old && git archive OLD_COMMIT src | tar -x -C build/old
    python benchmarks/compare_commits.py build/old/src src \
        --updates vectors urlb-states --runs walker --engine compile --json compare.json

Compiling takes longer than measuring, so several processes, one for each version and workload, start at the
same time and share the cores. When all are ready, they measure one after the other, in rounds; those that are
not ready after `--patience` seconds are left out. Six of them take some two minutes on 16 cores. Whole runs
are prepared together, too, and train one at a time. Those of walker find compiled what the updates of
`urlb-states` have compiled; those of a game with other actions than a workload compile again, for about a
minute.

torch chooses variants of fused kernels by timing them while it compiles. Nothing else should use the GPU
then, and `--at-once 1` is safest.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

GAME = ("atari/ms_pacman", "--preset", "atari-fast")
RUNS = {  # names, and arguments of `voidrl bench train`
    "walker": ("dmc/walker", "--preset", "urlb-states", "--steps", "40k"),
    "walker-pixels": ("dmc/walker", "--preset", "urlb-pixels", "--steps", "8k"),
    "atari": (*GAME, "--steps", "160k"),
}
VERSIONS = ("old", "new")
TIMEOUT_S = 300


def main() -> None:
    """Print a table, and write its numbers as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="the folder `src` of the older version, with voidrl in it")
    parser.add_argument("new", type=Path, help="that of the newer version")
    parser.add_argument("--updates", nargs="*", default=[], metavar="WORKLOAD")
    parser.add_argument("--runs", nargs="*", default=[], choices=RUNS)
    parser.add_argument(
        "--only-new", nargs="*", default=[], help="workloads and runs to measure in the new version only"
    )
    parser.add_argument("--engine", default="compile")
    parser.add_argument("--seconds", type=float, default=1.0, help="of updates in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=6, help="processes that compile at the same time")
    parser.add_argument("--patience", type=float, default=240, help="seconds for these to compile")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", metavar="WORKLOAD", help=argparse.SUPPRESS)
    parser.add_argument("--train", metavar="RUN", help=argparse.SUPPRESS)
    options = parser.parse_args()
    require_sources((options.old, options.new), parser)
    if not (options.measure or options.train or options.updates or options.runs):
        parser.error("nothing to measure: name workloads with --updates or runs with --runs")
    if options.measure:
        measure(options.measure, options.engine, options.seconds)
        return
    if options.train:
        train(RUNS[options.train], options.engine)
        return
    found: dict[str, Any] = {"updates": {}, "runs": {}}
    updates = pairs(options.updates, options)
    for first in range(0, len(updates), options.at_once):
        group = updates[first : first + options.at_once]
        with started(group, "--measure", options) as children:
            for (name, version), figures in in_rounds(children, options):
                found["updates"].setdefault(name, {})[version] = figures
        for name in dict.fromkeys(name for name, _ in group):
            show(name, found["updates"].get(name, {}), "updates_per_second")
        write(found, options.json)
    with started(pairs(options.runs, options), "--train", options) as children:
        for (name, version), figures in one_by_one(children, options):
            found["runs"].setdefault(name, {})[version] = figures
            show(name, found["runs"][name], "steps_per_second")
            write(found, options.json)
    measured = [figures for part in found.values() for each in part.values() for figures in each.values()]
    if len([figures for figures in measured if figures]) < len(updates) + len(pairs(options.runs, options)):
        sys.exit("some of these were not measured")


def require_sources(folders: Sequence[Path], parser: argparse.ArgumentParser) -> None:
    """Refuse folders that have no version of voidrl."""
    for folder in folders:
        if not (folder / "voidrl" / "__init__.py").is_file():
            parser.error(
                f"{folder} has no voidrl: expected a folder `src`, as `git archive COMMIT src` packs it"
            )


def pairs(names: Sequence[str], options: argparse.Namespace) -> list[tuple[str, str]]:
    """Each name with each version that has it."""
    return [(n, v) for n in names for v in VERSIONS if v == "new" or n not in options.only_new]


Children = dict[tuple[str, str], subprocess.Popen]


@contextmanager
def started(
    wanted: Sequence[tuple[str, str]], action: str, options: argparse.Namespace
) -> Iterator[Children]:
    """A process for each name and version, all of which have ended afterwards."""
    command = [sys.executable, __file__, str(options.old), str(options.new), "--engine", options.engine]
    threads = str(max(1, (os.cpu_count() or 1) // max(1, len(wanted)))) if action == "--measure" else ""
    children: Children = {}
    try:
        for name, version in wanted:
            children[name, version] = subprocess.Popen(
                [*command, "--seconds", str(options.seconds), action, name],
                env=environment(getattr(options, version), threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        yield children
    finally:
        for child in children.values():
            child.kill()
            child.wait()


def in_rounds(
    children: Children, options: argparse.Namespace
) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Updates per second, measured in turn."""
    until = time.monotonic() + options.patience
    ready = {pair: line(pair, child, until) for pair, child in children.items()}
    rates: dict[tuple[str, str], list[float]] = {pair: [] for pair, said in ready.items() if said}
    for _ in range(options.rounds):
        for pair, measured in rates.items():
            if rate := answer(pair, children[pair]):
                measured.append(float(rate))
    for pair, measured in rates.items():
        if measured:
            rate = statistics.median(measured)
            yield pair, {**json.loads(ready[pair]), "rates": measured, "updates_per_second": rate}


def one_by_one(
    children: Children, options: argparse.Namespace
) -> Iterator[tuple[tuple[str, str], dict[str, Any] | None]]:
    """What `voidrl bench train` measures, of one run after the other; None of one that fails."""
    until = time.monotonic() + options.patience
    ready = {pair: line(pair, child, until) for pair, child in children.items()}
    for pair, child in children.items():
        row = answer(pair, child) if ready[pair] else ""
        yield pair, json.loads(row) if row else None


def answer(pair: tuple[str, str], child: subprocess.Popen) -> str:
    """Let a process measure, and return the line that it prints then; empty if it fails."""
    try:
        child.stdin.write("go\n")
        child.stdin.flush()
    except BrokenPipeError:
        print(f"{', '.join(pair)}: ended early", flush=True)
        return ""
    return line(pair, child, time.monotonic() + TIMEOUT_S)


def line(pair: tuple[str, str], child: subprocess.Popen, until: float) -> str:
    """The next line of output, empty if there is none by then."""
    waiting, _, _ = select.select([child.stdout], [], [], max(0.0, until - time.monotonic()))
    said: str = child.stdout.readline() if waiting else ""
    if not said:
        print(f"{', '.join(pair)}: {'failed' if waiting else 'not ready in time'}", flush=True)
    return said


def write(found: dict[str, Any], file: Path | None) -> None:
    """Keep what is known so far: a time limit may end the rest."""
    if file is not None:
        file.write_text(json.dumps(found, indent=1))


def environment(source: Path, compile_threads: str = "") -> dict[str, str]:
    """Variables of a process that imports this version."""
    path = os.pathsep.join(filter(None, [str(source.resolve()), os.environ.get("PYTHONPATH")]))
    threads = {"TORCHINDUCTOR_COMPILE_THREADS": compile_threads} if compile_threads else {}
    return {**os.environ, "PYTHONPATH": path, **threads}


def first_of(*names: str) -> Any:
    """The first of these modules that a version of voidrl has."""
    for name in names[:-1]:
        with suppress(ModuleNotFoundError):
            return importlib.import_module(f"voidrl.{name}")
    return importlib.import_module(f"voidrl.{names[-1]}")


def measure(name: str, engine: str, seconds: float) -> None:
    """One line when ready; then one line with updates per second for each line of input."""
    import torch
    from workloads import WORKLOADS

    build_config = first_of("training.build", "build").build_config
    devices = first_of("system.device", "device")

    output, sys.stdout = sys.stdout, sys.stderr
    device = devices.pick_device("auto")
    work = WORKLOADS[name]
    config = build_config(work.spec, [*work.layers, {"engine": engine}])
    with devices.seeded(0, device):
        subject, time_run, multiple = subject_of(work.spec, config, device)
        took = time_run(subject.run, 4 * multiple, device) / 4
        count = max(1, round(seconds / took)) * multiple
        torch.cuda.synchronize() if device.type == "cuda" else None
        ready = {"start_seconds": subject.start_seconds, "peak_mib": subject.peak_mib}
        print(json.dumps(ready), file=output, flush=True)
        for _ in sys.stdin:
            subject.run(multiple)
            print(count / time_run(subject.run, count, device), file=output, flush=True)


def subject_of(spec: Any, config: Any, device: Any) -> tuple[Any, Any, int]:
    """An agent with an engine on random transitions, a clock, and the updates of a launch."""
    with suppress(ModuleNotFoundError):
        speed = importlib.import_module("voidrl.cli.speed")
        if not hasattr(speed, "Updates"):
            speed = importlib.import_module("updates")
        return speed.Updates(spec, config, device, print), speed.time_run, speed.MULTIPLE[device.type]
    # Until 2026-11-19 these were several modules.
    data, update, timing = (
        first_of(f"cli.benchmarks.{name}", f"bench.{name}") for name in ("data", "update", "timing")
    )
    from voidrl.agent import Agent

    agent = Agent(spec, config, device)
    sizes = {"config": config.replay, "note_dim": agent.note_dim}
    replay = data.random_replay(spec, device, agent.method.skill_dim, print, **sizes)
    subject = update.Subject(spec, config, replay, device, print)
    return subject, timing.time_run, update.MULTIPLE[device.type]


def train(arguments: tuple[str, ...], engine: str) -> None:
    """One line when the environments and the agent are made; after a line of input the run, and its row."""
    from voidrl.cli.main import main as voidrl

    output, sys.stdout = sys.stdout, sys.stderr
    loop = first_of("training.loop", "loop").Loop
    name = "train" if hasattr(loop, "train") else "run"
    run = getattr(loop, name)

    def run_in_turn(self: Any) -> None:
        print(json.dumps({"ready": True}), file=output, flush=True)
        if not sys.stdin.readline():
            sys.exit("nobody waits for this run")
        run(self)

    setattr(loop, name, run_in_turn)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        voidrl(["bench", "train", *arguments, "--engine", engine, "--json", str(result)])
        print(json.dumps(json.loads(result.read_text())["rows"][0]), file=output, flush=True)


def show(name: str, versions: dict[str, Any], key: str) -> None:
    """One line of the table."""
    cells = [f"{name:16}"]
    for version, figures in versions.items():
        if figures is not None:
            rate = figures[key]
            cells.append(f"{version} {rate:8.0f} {'updates' if 'updates' in key else 'steps'}/s")
            if "start_seconds" in figures:
                cells.append(f"start {figures['start_seconds']:.0f} s")
            else:
                cells.append(f"{rate * figures['frames_per_step']:.0f} frames/s")
                cells.append(f"waits {100 * figures['learner_waits']:.0f} %")
    if all(versions.get(version) for version in VERSIONS):
        cells.append(f"× {versions['new'][key] / versions['old'][key]:.2f}")
    print("  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
