"""Updates of several seeds at once on one GPU: how much more they make than one agent after the other.

    python benchmarks/together.py vectors urlb-states discrete --engine compile --seeds 8

For each workload of `voidrl bench update` it measures, alternately and in one process, the updates per second
of all seeds together:

- one agent (what N processes make one after the other);
- N agents whose captured graphs are launched on N streams, as `voidrl pretrain --seeds` does;
- N agents as N parallel branches of one captured graph.

Environments are not stepped. All agents sample the same replay, and each has its own random numbers. `same`
says whether the first agent has the weights that it would have alone, after as many updates: `bit for bit`,
or the largest difference between any two.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from voidrl.agent import Agent
from voidrl.bench.data import random_replay
from voidrl.bench.timing import measure, synchronize
from voidrl.bench.workloads import find_workload
from voidrl.build import build_config
from voidrl.config import Config
from voidrl.device import pick_device, reseed
from voidrl.engine.engine import MAX_BURST, Engine
from voidrl.replay import Replay
from voidrl.runs.folder import environment_info
from voidrl.terminal.output import say
from voidrl.terminal.tables import print_table
from voidrl.turns import RandomState
from voidrl.types import EnvSpec

WARMUP_UPDATES = 4 * MAX_BURST  # enough to capture every graph
CHECKED_UPDATES = 2 * MAX_BURST


class Seed:
    """An agent with a warmed-up engine, its own stream and its own random numbers."""

    def __init__(
        self, number: int, spec: EnvSpec, config: Config, replay: Replay, device: torch.device
    ) -> None:
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))
        self.random = RandomState(torch.get_rng_state())
        self.updates = 0
        with self.present():
            reseed(number, device)
            self.agent = Agent(spec, config, device)
            self.engine = Engine(self.agent, replay, say)
        self.run(WARMUP_UPDATES)

    @contextmanager
    def present(self) -> Iterator[None]:
        """Inside, torch launches on this seed's stream and draws its random numbers."""
        outside = RandomState(torch.get_rng_state())
        outside.keep()
        self.random.restore()
        with torch.cuda.stream(self.stream):
            yield
        self.random.keep()
        outside.restore()

    def run(self, count: int) -> None:
        """Launch the next `count` updates."""
        with self.present():
            self.engine.update(self.updates, count)
        self.updates += count

    def weights(self) -> dict[str, torch.Tensor]:
        """A copy of all weights."""
        synchronize(self.agent.device)
        copied = {name: tensor.detach().clone() for name, tensor in self.agent.tensors().items()}
        synchronize(self.agent.device)
        return copied


def launch_on_streams(seeds: Sequence[Seed], count: int) -> None:
    """Run `count` updates of every seed, in turns."""
    for _ in range(count // MAX_BURST):
        for seed in seeds:
            seed.run(MAX_BURST)


class Branches:
    """`MAX_BURST` updates of every seed as parallel branches of one graph."""

    def __init__(self, seeds: Sequence[Seed], device: torch.device) -> None:
        self.graph = torch.cuda.CUDAGraph()
        variants = [seeds[0].agent.learner.variant(i) for i in range(MAX_BURST)]
        trunk = torch.cuda.Stream(device)
        for seed in seeds:
            with seed.present():
                self.graph.register_generator_state(torch.cuda.default_generators[device.index])
        synchronize(device)
        with torch.cuda.graph(self.graph, stream=trunk, capture_error_mode="thread_local"):
            for seed in seeds:  # all begin where the trunk is now, so that none waits for another
                seed.stream.wait_stream(trunk)
            for seed in seeds:
                with seed.present(), seed.engine._compiler.applied():
                    seed.engine._step(*variants)
            for seed in seeds:
                trunk.wait_stream(seed.stream)

    def run(self, count: int) -> None:
        """Run `count` updates of every seed."""
        for _ in range(count // MAX_BURST):
            self.graph.replay()


def difference(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """The largest difference between weights."""
    return max(
        float((tensor.double() - second[name].double()).abs().max())
        for name, tensor in first.items()
        if tensor.numel()
    )


def rows_of(name: str, options: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """Measure one workload."""
    workload = find_workload(name)
    assert workload.spec is not None
    changes = dict(_setting(each) for each in options.set) | {"engine": options.engine}
    config = build_config(workload.spec, [*workload.layers, changes])
    model = Agent(workload.spec, config, device)
    replay = random_replay(
        workload.spec, device, model.method.skill_dim, say, config=config.replay, note_dim=model.note_dim
    )
    del model

    def make(number: int) -> Seed:
        return Seed(number, workload.spec, config, replay, device)  # type: ignore[arg-type]

    began = time.perf_counter()
    alone = make(0)
    synchronize(device)
    first_seconds = time.perf_counter() - began
    alone.run(CHECKED_UPDATES)
    expected = alone.weights()
    seeds = [make(number) for number in range(options.seeds)]
    synchronize(device)
    all_seconds = time.perf_counter() - began
    launch_on_streams(seeds, CHECKED_UPDATES)
    differences = [0.0, difference(expected, seeds[0].weights())]
    names = ["one agent", f"{options.seeds} streams"]
    runs = [alone.run, lambda count: launch_on_streams(seeds, count)]
    try:
        branches = Branches(seeds, device)
        alone.run(CHECKED_UPDATES)
        expected = alone.weights()
        branches.run(CHECKED_UPDATES)
        differences.append(difference(expected, seeds[0].weights()))
        names.append(f"one graph, {options.seeds} branches")
        runs.append(branches.run)
    except RuntimeError as error:
        say(f"one graph of all seeds cannot be captured here: {error}")
    timings = measure(runs, device, options.seconds, MAX_BURST)
    counts = [1] + [options.seeds] * (len(runs) - 1)
    rows = []
    for how, count, timing, off in zip(names, counts, timings, differences, strict=True):
        rows.append(
            {
                "workload": name,
                "engine": alone.engine.mode,
                "how": how,
                "seeds": count,
                **timing.rates("seed_updates_per_second", count),
                "gain": timings[0].seconds * count / timing.seconds,
                "largest_difference": off,
                "start_seconds": first_seconds if count == 1 else all_seconds,
                "gpu_gib": torch.cuda.memory_reserved(device) / 2**30,
            }
        )
    for seed in (alone, *seeds):
        seed.engine.close()
    return rows


def _setting(text: str) -> tuple[str, Any]:
    """A field of the config and its value, as JSON or as plain text."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("workloads", nargs="*", default=["vectors", "urlb-states", "discrete"])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--engine", default="compile", choices=["graph", "compile"])
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="changes of the config")
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring, for each row")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("several seeds gain nothing on a CPU, and torch sees no CUDA device here")
    device = pick_device("cuda")
    found: list[dict[str, Any]] = []
    with torch.cuda.device(device):
        for name in options.workloads:
            began = time.perf_counter()
            found += rows_of(name, options, device)
            say(f"{name}: {time.perf_counter() - began:.0f} s")
            torch.compiler.reset()
            torch.cuda.empty_cache()
    header = ("workload", "engine", "how", "seed-updates/s", "gain", "same", "start s", "GiB")
    print_table(header, [_cells(row) for row in found])
    if options.json:
        options.json.write_text(json.dumps({"environment": environment_info(), "rows": found}, indent=2))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    off = row["largest_difference"]
    return (
        row["workload"],
        row["engine"],
        row["how"],
        f"{row['seed_updates_per_second']:.0f}",
        f"{row['gain']:.2f}",
        "" if row["seeds"] == 1 else "bit for bit" if off == 0 else f"{off:.1e}",
        f"{row['start_seconds']:.0f}",
        f"{row['gpu_gib']:.1f}",
    )


if __name__ == "__main__":
    main()
