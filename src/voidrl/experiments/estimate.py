"""Estimates for an experiment: remaining time from measured rates, disk space from the configs.

Rates come from runs in its folder, else from `rates.json`, which names the hardware. Anything never measured
is unknown, and shown as such.
"""

from __future__ import annotations

import importlib.resources
import json
import statistics
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from voidrl.engine.auto import engine_for
from voidrl.envs.ids import ATARI, DMC
from voidrl.errors import VoidrlError
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.scale import learns
from voidrl.experiments.state import CellState
from voidrl.runs.metrics import read_metrics
from voidrl.training.disk import checkpoint_bytes

Kind = tuple[str, str]
"""An arm and a phase: cells of one kind are taken to be equally fast and large."""
# The environments on which presets were measured, by the first word of a preset's name.
FAMILIES = {"maze": "voidrl/PixelMaze", "atari": ATARI, "dmc": DMC, "urlb": DMC}


class Rate(NamedTuple):
    """Measured speed of a kind of run."""

    steps_per_second: float
    updates_per_step: float
    hardware: str
    """Hardware of the measurement."""
    source: str = ""
    """Document with the measurement; empty for runs in this folder."""
    caution: str = ""
    """Why this machine may be faster or slower."""
    other_hardware: str = ""
    """The kind of hardware, where this machine has none of it."""
    runs_per_gpu: int = 1
    """Number of runs that shared the GPU."""

    def seconds(self, cell: Cell, steps: int) -> float:
        """Time of the steps, in proportion to the updates per step."""
        more = cell.config.updates_per_step / self.updates_per_step if self.updates_per_step else 1.0
        return steps * more / self.steps_per_second


@dataclass(frozen=True)
class Estimate:
    """Time and disk space of one cell; None where unknown."""

    seconds: float | None
    rate: Rate | None
    bytes: int | None
    why: str = ""
    """The data of unknown size, where the disk space is unknown."""


def estimate_all(
    plan: Plan, states: Mapping[str, CellState], *, has_gpu: bool | None = None
) -> dict[str, Estimate]:
    """Estimate the time that is left and the total disk space of each cell, by folder.

    `has_gpu` says it of other machines than this one.
    """
    if has_gpu is None:
        has_gpu = _has_gpu(plan.request.device)
    rates, sizes = _measure(plan, states)
    estimates = {}
    for cell in plan.cells:
        state = states[cell.folder]
        rate = rates.get(_kind(cell)) or shipped_rate(cell, has_gpu)
        left = 0 if state.kind in ("done", "trained") else cell.config.steps - state.steps
        seconds = 0.0 if left == 0 else None if rate is None else rate.seconds(cell, left)
        size, why = disk_bytes(cell, sizes.get(_kind(cell))), ""
        if size is None:
            known = cell.probe.is_exact or cell.probe.spec is None
            why = f"the {'agent' if known else 'states'} of {cell.task}"
        estimates[cell.folder] = Estimate(seconds, rate if left else None, size, why)
    return estimates


def parallel_seconds(plan: Plan, estimates: Mapping[str, Estimate], jobs: int) -> float:
    """Best time with several jobs: fine-tuning cannot start before its pre-training has ended."""

    def seconds(folder: str | None) -> float:
        return (estimates[folder].seconds or 0.0) if folder is not None else 0.0

    longest = max(seconds(cell.folder) + seconds(cell.source) for cell in plan.cells)
    return max(longest, sum(seconds(cell.folder) for cell in plan.cells) / jobs)


def _kind(cell: Cell) -> Kind:
    return cell.arm.name, cell.phase


def _measure(plan: Plan, states: Mapping[str, CellState]) -> tuple[dict[Kind, Rate], dict[Kind, int]]:
    """Median rate, and largest agent with optimizers, of the runs of each kind in the folder."""
    rates: dict[Kind, list[float]] = {}
    sizes: dict[Kind, int] = {}
    updates: dict[Kind, float] = {}
    for cell in plan.cells:
        if states[cell.folder].kind == "missing":
            continue
        kind, folder, trains = _kind(cell), plan.path(cell), learns(cell.config)
        own = cell.config.updates_per_step if trains else 0.0
        reference = updates.setdefault(kind, own)
        scale = own / reference if own and reference else 1.0  # points of a grid may differ in them
        with suppress(VoidrlError, statistics.StatisticsError):  # no metrics yet, or none with a rate
            rows = [row for row in read_metrics(folder) if row.get("updates") or not trains]  # after warm-up
            found = [rate for row in rows if (rate := row.get("time/steps_per_second"))]
            rates.setdefault(kind, []).append(scale * statistics.median(found))
        newest = sorted((folder / "checkpoints").glob("step_*"))[-1:]
        files = [path / f"{name}.safetensors" for path in newest for name in ("agent", "optimizers")]
        size = sum(file.stat().st_size for file in files if file.is_file())
        sizes[kind] = max(size, sizes.get(kind, 0))
    median = {kind: statistics.median_high(found) for kind, found in rates.items() if found}
    return {kind: Rate(rate, updates[kind], "runs in this folder") for kind, rate in median.items()}, sizes


def shipped_rate(cell: Cell, has_gpu: bool) -> Rate | None:
    """Rate of the cell's preset in `rates.json`: on hardware of this kind, else on another.

    A rate may name its method; those without one were measured with APT, and stand for all others but
    on-policy ones. None was measured with a bonus, whose method takes time as well. An agent's rate,
    whose preset is for several kinds of environments, names its kind: `"env": "atari/"`.
    """
    config = cell.config
    phase = "task" if config.phase != "pretrain" else "pretrain" if learns(config) else "random"
    engine = config.engine if config.engine != "auto" else engine_for(config)[0] if has_gpu else "eager"
    if cell.preset is None or cell.probe.spec is None:
        return None
    known = [
        each
        for each in _shipped_rates()
        if each["preset"] == cell.preset
        and cell.task.startswith(each.get("env") or FAMILIES[each["preset"].partition("-")[0]])
        and each.get("method", config.method.name) == config.method.name
        and ("method" in each or not config.learner.on_policy)
        and not config.effective.has_bonus
    ]
    # Fine-tuning is not slower than pre-training with as many updates, which also trains f.
    wanted = [each for each in known if each["phase"] == phase]
    wanted = wanted or [each for each in known if phase == "task" and each["phase"] == "pretrain"]
    if not wanted:
        return None
    best = max(
        wanted,
        key=lambda each: ((each["gpu"] is not None) == has_gpu, each["engine"] == engine, "method" in each),
    )
    other_hardware = "" if (best["gpu"] is not None) == has_gpu else best["gpu"] or "CPU"
    caution = "this machine may be faster or slower"
    if other_hardware and not has_gpu:
        caution = "without a GPU, as here, it takes many times as long"
    hardware = f"{best['hardware']}, engine {best['engine']}, {best['date']}"
    rate, updates = best["steps_per_second"], best["updates_per_step"]
    shared = best.get("runs_per_gpu", 1)
    return Rate(rate, updates, hardware, best["source"], caution, other_hardware, shared)


def _has_gpu(device: str) -> bool:
    import torch

    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


@cache
def _shipped_rates() -> list[dict[str, Any]]:
    text = importlib.resources.files("voidrl.experiments").joinpath("rates.json").read_text("utf-8")
    return list(json.loads(text)["rates"])


def disk_bytes(cell: Cell, measured_agent: int | None = None) -> int | None:
    """Disk space of the complete run; None where the size of an observation or of the agent is unknown."""
    agent, spec = measured_agent or cell.agent_bytes, cell.probe.spec
    if agent is None or spec is None or not cell.probe.is_exact:
        return None
    return checkpoint_bytes(cell.config, spec, skill_dim=0, agent=agent, count=cell.config.log.keep_last)


def sources(estimates: Iterable[Estimate]) -> list[str]:
    """Name the hardware of the rates, one per line."""
    by_hardware: dict[tuple[str, str], dict[str, None]] = {}
    for rate in (each.rate for each in estimates if each.rate is not None):
        by_hardware.setdefault((rate.hardware, rate.caution), {})[rate.source] = None
    lines = []
    for (hardware, caution), found in by_hardware.items():
        named = "; ".join(filter(None, found))
        lines.append(
            "; ".join(filter(None, [f"measured: {hardware}" + f" ({named})" * bool(named), caution]))
        )
    return lines
