"""Updates per second of named workloads, and profiles of their time."""

from __future__ import annotations

import copy
import gc
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from voidrl.agent import Agent
from voidrl.agent.cost import update_gflop
from voidrl.cli.benchmarks.data import random_replay
from voidrl.cli.benchmarks.options import UNIFORM
from voidrl.cli.benchmarks.profile import Profile, profile_updates, write_trace
from voidrl.cli.benchmarks.results import MISSING, Result, number, percent, speedup, value_range
from voidrl.cli.benchmarks.roofline import Floor, Peaks, count_floor, mean_floor
from voidrl.cli.benchmarks.timing import PeakMemory, Timing, measure, synchronize
from voidrl.cli.benchmarks.workloads import DEFAULT_ON_CPU, WORKLOADS, find_workload
from voidrl.config import Config, EnvConfig, registry
from voidrl.engine.engine import Engine
from voidrl.envs.make import probe_env
from voidrl.errors import ConfigError
from voidrl.presets.presets import DEMO_ENV
from voidrl.replay import Replay
from voidrl.system.device import uses_bf16
from voidrl.system.threads import cpu_threads
from voidrl.training.build import build_config
from voidrl.types import EnvSpec, Layout

NAME_WIDTH = 14
WARMUP = {"cuda": 64, "cpu": 4}  # updates; on CUDA enough to capture every graph
MULTIPLE = {"cuda": 16, "cpu": 2}  # updates per graph; the period of target updates divides it
PROFILED = {"cuda": 32, "cpu": 20}

Say = Callable[[str], None]


def results(options: Namespace, device: torch.device, peaks: Peaks, say: Say) -> Iterator[Result]:
    """Measure each workload; with `--against`, alternately with a second engine."""
    default = list(WORKLOADS) if device.type == "cuda" else DEFAULT_ON_CPU
    for name in options.workloads or default:
        yield from _results_of(name, options, device, peaks, say)


def _results_of(
    name: str, options: Namespace, device: torch.device, peaks: Peaks, say: Say
) -> Iterator[Result]:
    first: dict[str, Any] | None = None  # the figures that other methods are compared with
    for method in options.methods or [None]:
        workload = find_workload(name)
        if method is not None and registry.find("method", method).learner:
            say(
                f"{name} with method {method} is left out: its learner takes whole rollouts, not updates on "
                f"samples; benchmarks/mepol_rollouts.py measures rollouts per second"
            )
            continue
        if method is not None:
            workload = workload.with_method(method)
        spec = workload.spec or probe_env(EnvConfig(id=DEMO_ENV))[0]
        own = {"precision": options.precision, "engine": options.engine}
        layers = [own]
        if options.against:
            other = (
                {"replay.priority_exponent": 0.0}
                if options.against == UNIFORM
                else {"engine": options.against}
            )
            layers.append({**own, **other})
        configs = [build_config(spec, [*workload.layers, layer]) for layer in layers]
        if options.against == UNIFORM and not configs[0].replay.priority_exponent:
            raise ConfigError(
                f"--against {UNIFORM} cannot be used with workload {name}, whose replay is uniform: expected "
                f"an agent with prioritized replay, such as rainbow"
            )
        with cpu_threads(device, update_gflop(spec, configs[0]), say=say):
            for figures in _measure(name, spec, configs, options, device, peaks, say):
                if method is not None:
                    first = first or figures
                    figures |= _relative(method, figures, first)
                yield _result(figures)
        if any(config.engine == "compile" for config in configs):
            torch.compiler.reset()  # compiling for the shapes of many workloads would hit the cache limit
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _measure(
    name: str,
    spec: EnvSpec,
    configs: list[Config],
    options: Namespace,
    device: torch.device,
    peaks: Peaks,
    say: Say,
) -> Iterator[dict[str, Any]]:
    counted = Agent(spec, configs[0], device)
    width, settings = counted.method.skill_dim, configs[0].replay
    replay = random_replay(spec, device, width, say, config=settings, note_dim=counted.note_dim)
    subjects = [Subject(spec, config, _replay_for(config, replay), device, say) for config in configs]
    timings = measure([s.run for s in subjects], device, options.seconds, MULTIPLE[device.type])
    floor = _update_floor(counted, replay, peaks)
    for i, (subject, timing) in enumerate(zip(subjects, timings, strict=True)):
        count = PROFILED[device.type]
        if device.type == "cpu":  # profiling takes no longer than measuring
            count = min(count, 2 + int(options.seconds / timing.seconds))
        figures = {"workload": name, **subject.figures(timing, profile_updates(subject.run, count, device))}
        figures |= {"floor": floor.to_json(), "floor_share": floor.seconds / timing.seconds}
        if len(subjects) > 1:
            figures["ratio"] = timings[1].seconds / timing.seconds if i == 0 else None
            uniform = configs[0].replay != configs[1].replay
            figures["against"] = UNIFORM if uniform else subjects[1].engine.mode
        yield figures
        if options.profile is not None and i == 0:
            write_trace(subject.run, count, device, options.profile)
            say(f"trace of {count} updates: {options.profile}")


def _replay_for(config: Config, replay: Replay) -> Replay:
    """The replay for a config, sampled uniformly if that has no priorities."""
    if config.replay.priority_exponent or replay.priorities is None:
        return replay
    uniform = copy.copy(replay)
    uniform.priorities = None
    return uniform


def _relative(method: str, figures: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """The rate and the counted operations of a method, relative to the first one's."""
    return {
        "method": method,
        "compared_with": first.get("method", method),
        "relative_rate": figures["updates_per_second"] / first["updates_per_second"],
        "relative_flop": figures["floor"]["gflop"] / first["floor"]["gflop"],
    }


class Subject:
    """An agent with a warmed-up engine."""

    def __init__(self, spec: EnvSpec, config: Config, replay: Replay, device: torch.device, say: Say) -> None:
        peak, start = PeakMemory(device), time.perf_counter()
        self.agent = Agent(spec, config, device)
        self.engine = Engine(self.agent, replay, say)
        self.updates = 0
        self.run(WARMUP[device.type])
        synchronize(device)
        self.start_seconds, self.peak_mib = time.perf_counter() - start, peak.mib()

    def run(self, count: int) -> None:
        """Run the next `count` updates."""
        self.engine.update(self.updates, count)
        self.updates += count

    def figures(self, timing: Timing, profile: Profile) -> dict[str, Any]:
        """Rates, memory and profile."""
        return {
            "engine": self.engine.mode,
            "cpu_threads": torch.get_num_threads(),
            "precision": "bf16" if uses_bf16(self.agent.config.precision, self.agent.device) else "fp32",
            **timing.rates("updates_per_second"),
            "milliseconds": timing.seconds * 1000,
            "start_seconds": self.start_seconds,
            "peak_mib": self.peak_mib,
            "busy": profile.busy,
            "kernels": profile.kernels,
            "parts_ms": profile.milliseconds,
            "longest_ms": profile.names,
        }


def _result(figures: dict[str, Any]) -> Result:
    floor = figures["floor"]
    compared = "method" in figures  # then the table has no room for every column
    cells = {
        "workload": figures["workload"],
        **({"method": figures["method"]} if compared else {}),
        "engine": figures["engine"],
        **({} if compared else {"prec.": figures["precision"]}),
        "updates/s": number(figures["updates_per_second"]),
        "ms": number(figures["milliseconds"]),
        **speedup(figures),
        **(_comparison(figures) if compared else {}),
        "busy": percent(figures["busy"]),
        **({} if compared else {"peak MiB": number(figures["peak_mib"])}),
        "floor ms": number(floor["milliseconds"]),
        "of floor": percent(figures["floor_share"]),
    }
    rates = f"{value_range(figures, 'updates_per_second')} updates/s; "
    rates += f"start {figures['start_seconds']:.1f} s; "
    rates += f"{number(floor['gflop'])} GFLOP, {number(floor['gb'])} GB, {figures['kernels']:.0f} "
    rates += f"{'operators' if figures['busy'] is None else 'kernels'} per update"
    total = sum(figures["parts_ms"].values())
    parts = []
    for part, milliseconds in figures["parts_ms"].items():
        least = f", floor {number(floor['parts_ms'][part])}" if part in floor["parts_ms"] else ""
        parts.append(f"{part} {number(milliseconds)} ms ({percent(milliseconds / total)}{least})")
    return Result(figures, cells, (rates, " · ".join(parts) or MISSING))


def _comparison(figures: dict[str, Any]) -> dict[str, str]:
    """Columns that compare a method with the first one."""
    other = figures["compared_with"]
    return {
        f"of {other}": percent(figures["relative_rate"]),
        "rel. FLOP": percent(figures["relative_flop"]),
    }


def _update_floor(agent: Agent, replay: Replay, peaks: Peaks) -> Floor:
    """The mean floor over the kinds of updates, weighted by how often each occurs."""
    for module in agent.modules():
        if isinstance(vars(module).get("layout"), Layout):
            # Padding and folding serve the hardware: they are not part of the arithmetic.
            vars(module)["layout"] = Layout()
    period = agent.learner.period
    kinds = Counter(agent.learner.variant(i) for i in range(period))
    return mean_floor(
        (count_floor(lambda kind=kind: agent.update(replay, kind), peaks), count / period)  # type: ignore[misc]
        for kind, count in kinds.items()
    )
