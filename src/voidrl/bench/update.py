"""Updates per second of named workloads, and where their time goes."""

from __future__ import annotations

import gc
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator

import torch

from voidrl.agent import Agent
from voidrl.bench.data import random_replay
from voidrl.bench.peaks import Peaks
from voidrl.bench.profile import Parts, find_parts, write_trace
from voidrl.bench.report import MISSING, Column, Row, number, percent, ratio, shown, spread
from voidrl.bench.roofline import Floor, count_floor, mean_floor
from voidrl.bench.timing import PeakMemory, Timing, measure, synchronize
from voidrl.bench.workloads import DEFAULT_ON_CPU, WORKS, find_work
from voidrl.build import build_config
from voidrl.config import Config
from voidrl.device import uses_bf16
from voidrl.engine import Engine
from voidrl.errors import ConfigError
from voidrl.replay import Replay
from voidrl.types import EnvSpec, Layout

WARMUP = {"cuda": 64, "cpu": 4}  # enough to capture every graph; on a CPU there is none
MULTIPLE = {"cuda": 16, "cpu": 2}  # so many updates are one graph, and the targets' rhythm divides them
PROFILED = {"cuda": 32, "cpu": 20}

Say = Callable[[str], None]


def check(options: Namespace) -> None:
    """Refuse what cannot be measured before anything is."""
    for name in options.works:
        find_work(name)
    if options.profile is not None and len(options.works) != 1:
        raise ConfigError(
            f"--profile {options.profile} holds the trace of one workload and {len(options.works)} were "
            f"named: expected `voidrl bench update WORK --profile FILE`"
        )


def columns(options: Namespace) -> list[Column]:
    """One row for each workload and engine."""
    return [
        Column("work", 14, lambda row: row["work"]),
        Column("engine", 7, lambda row: row["engine"]),
        Column("prec.", 5, lambda row: row["precision"]),
        Column("updates/s", 9, shown("updates_per_second")),
        Column("ms", 8, shown("milliseconds")),
        *([Column(f"× {options.against}", 9, ratio)] if options.against else []),
        Column("busy", 5, lambda row: percent(row["busy"])),
        Column("peak MiB", 8, shown("peak_mib")),
        Column("floor ms", 8, lambda row: number(row["floor"]["milliseconds"])),
        Column("of floor", 8, lambda row: percent(row["floor_share"])),
    ]


def details(row: Row) -> list[str]:
    """Spread, floor and parts."""
    floor = row["floor"]
    first = f"{spread(row, 'updates_per_second')} updates/s; start {row['start_seconds']:.1f} s; "
    first += f"{number(floor['gflop'])} GFLOP, {number(floor['gb'])} GB, {row['kernels']:.0f} "
    first += f"{'operators' if row['busy'] is None else 'kernels'} each"
    total = sum(row["parts_ms"].values())
    parts = []
    for part, milliseconds in row["parts_ms"].items():
        least = floor["parts_ms"].get(part)
        least_text = f", floor {number(least)}" if least is not None else ""
        parts.append(f"{part} {number(milliseconds)} ms ({percent(milliseconds / total)}{least_text})")
    return [first, " · ".join(parts) or MISSING]


def rows(options: Namespace, device: torch.device, peaks: Peaks, say: Say) -> Iterator[Row]:
    """Measure each workload with the engine asked for and, in turn with it, the one it is compared with."""
    default = list(WORKS) if device.type == "cuda" else DEFAULT_ON_CPU
    for name in options.works or default:
        work = find_work(name)
        spec = work.spec()
        engines = [options.engine, *([options.against] if options.against else [])]
        layers = [{"engine": engine, "precision": options.precision} for engine in engines]
        configs = [build_config(spec, [*work.layers, layer]) for layer in layers]
        yield from _compared(name, spec, configs, options, device, peaks, say)
        if "compile" in engines:
            torch.compiler.reset()  # methods compiled for the shapes of many workloads run into a limit
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _compared(
    name: str,
    spec: EnvSpec,
    configs: list[Config],
    options: Namespace,
    device: torch.device,
    peaks: Peaks,
    say: Say,
) -> Iterator[Row]:
    probe = Agent(spec, configs[0], device)
    replay = random_replay(spec, device, probe.method.skill_dim, say)
    subjects = [Subject(spec, config, replay, device, say) for config in configs]
    timings = measure([s.run for s in subjects], device, options.seconds, MULTIPLE[device.type])
    floor = _floor(probe, replay, peaks)
    few = [_few(timing, options.seconds, device) for timing in timings]
    for subject, timing, count in zip(subjects, timings, few, strict=True):
        row = subject.row(timing, find_parts(subject.run, count, device), floor)
        compared = subject is subjects[0] and len(subjects) > 1
        row["ratio"] = timings[1].seconds / timing.seconds if compared else None
        row["against"] = subjects[1].engine.mode if compared else None
        yield {"work": name, **row}
    if options.profile is not None:
        write_trace(subjects[0].run, few[0], device, options.profile)
        say(f"trace of {few[0]} updates: {options.profile}")


def _few(timing: Timing, seconds: float, device: torch.device) -> int:
    """Updates to look at closely: on a CPU no more than take the time of a measurement."""
    return (
        PROFILED["cuda"] if device.type == "cuda" else min(PROFILED["cpu"], 2 + int(seconds / timing.seconds))
    )


class Subject:
    """An agent and its engine, warm."""

    def __init__(self, spec: EnvSpec, config: Config, replay: Replay, device: torch.device, say: Say) -> None:
        peak, began = PeakMemory(device), time.perf_counter()
        self.agent = Agent(spec, config, device)
        self.engine = Engine(self.agent, replay, say)
        self.updates = 0
        self.run(WARMUP[device.type])
        synchronize(device)
        self.start_seconds, self.peak_mib = time.perf_counter() - began, peak.mib()

    def run(self, count: int) -> None:
        """The next `count` updates."""
        self.engine.update(self.updates, count)
        self.updates += count

    def row(self, timing: Timing, parts: Parts, floor: Floor) -> Row:
        """Everything known about it."""
        return {
            "engine": self.engine.mode,
            "precision": "bf16" if uses_bf16(self.agent.config.precision, self.agent.device) else "fp32",
            **timing.rates("updates_per_second"),
            "milliseconds": timing.seconds * 1000,
            "start_seconds": self.start_seconds,
            "peak_mib": self.peak_mib,
            "busy": parts.busy,
            "kernels": parts.kernels,
            "parts_ms": parts.milliseconds,
            "longest_ms": parts.names,
            "floor": floor.to_json(),
            "floor_share": floor.seconds / timing.seconds,
        }


def _floor(agent: Agent, replay: Replay, peaks: Peaks) -> Floor:
    """Of the kinds of updates that there are, as often as each comes."""
    for module in agent.modules():
        if isinstance(vars(module).get("layout"), Layout):
            # Padding and folding serve the hardware: they are no work that must be done.
            vars(module)["layout"] = Layout()
    period = agent.learner.period
    kinds = Counter(agent.learner.variant(i) for i in range(period))
    return mean_floor(
        (count_floor(lambda kind=kind: agent.step(replay, kind), peaks), count / period)  # type: ignore[misc]
        for kind, count in kinds.items()
    )
