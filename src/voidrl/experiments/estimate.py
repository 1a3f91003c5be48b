"""What an experiment would still take: time from measured rates, disk from the configs.

Rates come from runs that are already in its folder; else from `rates.json`, which says on which hardware they
were measured. What nobody has measured is unknown, and said to be.
"""

from __future__ import annotations

import importlib.resources
import json
import shutil
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from voidrl.envs.ids import ATARI, DMC
from voidrl.errors import VoidrlError
from voidrl.experiments.plan import Cell, Plan
from voidrl.experiments.scale import learns
from voidrl.experiments.state import State
from voidrl.replay import CHUNK_BYTES, row_count, slot_bytes
from voidrl.runs.metrics import read_metrics

Kind = tuple[str, str]
HERE = "runs in this folder"
# Where a preset was measured, by the first word of its name; elsewhere its rate says nothing.
FAMILIES = {"maze": "voidrl/PixelMaze", "atari": ATARI, "dmc": DMC, "urlb": DMC}


class Rate(NamedTuple):
    """How fast runs of a kind are."""

    steps_per_second: float
    updates_per_step: float
    where: str
    """On what it was measured, in words."""
    source: str = ""
    """Where that stands; empty for the folder of this experiment."""
    caution: str = ""
    """Why this machine may be faster or slower."""
    elsewhere: str = ""
    """The kind of hardware, where this machine has none of it."""

    def seconds(self, cell: Cell, steps: int) -> float:
        """More updates take more time; environments alone do not."""
        more = cell.config.updates_per_step / self.updates_per_step if self.updates_per_step else 1.0
        return steps * more / self.steps_per_second


@dataclass(frozen=True)
class Estimate:
    """Of one cell, as far as anything is known; None where it is not."""

    seconds: float | None
    rate: Rate | None
    bytes: int | None
    why: str = ""
    """The disk is unknown."""


def estimate_all(plan: Plan, states: Mapping[str, State]) -> dict[str, Estimate]:
    """By folder: what is still to do of each cell, and what it takes on the disk in all."""
    own, has_gpu = measured_here(plan, states), _has_gpu(plan.request.device)
    agents = agents_here(plan, states)
    found = {}
    for cell in plan.cells:
        state = states[cell.folder]
        rate = own.get(kind_of(cell)) or shipped_rate(cell, has_gpu)
        left = 0 if state.kind in ("done", "trained") else cell.config.steps - state.step
        seconds = 0.0 if left == 0 else None if rate is None else rate.seconds(cell, left)
        size, why = disk_bytes(cell, agents), ""
        if size is None:
            why = f"the {'states' if not cell.look.sized else 'agent'} of {cell.task}"
        found[cell.folder] = Estimate(seconds, rate if left else None, size, why)
    return found


def seconds_with(plan: Plan, estimates: Mapping[str, Estimate], jobs: int) -> float:
    """At best, with so many runs at a time: a fine-tuning cannot begin before its pre-training has ended."""

    def seconds(folder: str | None) -> float:
        return (estimates[folder].seconds or 0.0) if folder is not None else 0.0

    longest = max(seconds(cell.folder) + seconds(cell.source) for cell in plan.cells)
    return max(longest, sum(seconds(cell.folder) for cell in plan.cells) / jobs)


def kind_of(cell: Cell) -> Kind:
    """Cells of one kind are taken to be equally fast: an arm in a phase."""
    return cell.arm.name, cell.phase


# Time


def measured_here(plan: Plan, states: Mapping[str, State]) -> dict[Kind, Rate]:
    """The median rate of the runs of each kind that have one."""
    rates: dict[Kind, list[Rate]] = {}
    for cell in plan.cells:
        if states[cell.folder].kind != "missing":
            rate = _rate_of(cell, plan.path(cell))
            rates.setdefault(kind_of(cell), []).extend([rate] if rate is not None else [])
    return {kind: sorted(found)[len(found) // 2] for kind, found in rates.items() if found}


def _rate_of(cell: Cell, folder: Path) -> Rate | None:
    try:
        rows = read_metrics(folder)
    except VoidrlError:
        return None
    training = [row for row in rows if row.get("updates") or not learns(cell.config)]  # after the warm-up
    rates = [rate for row in training if (rate := row.get("time/steps_per_second"))]
    if not rates:
        return None
    updates = cell.config.updates_per_step if learns(cell.config) else 0.0
    return Rate(statistics.median(rates), updates, HERE)


def shipped_rate(cell: Cell, has_gpu: bool) -> Rate | None:
    """What was measured elsewhere with the same preset: on hardware of this kind, else on another."""
    config = cell.config
    phase = "task" if config.phase != "pretrain" else "pretrain" if learns(config) else "random"
    engine = config.engine if config.engine != "auto" else "graph" if has_gpu else "eager"
    if cell.preset is None or not cell.task.startswith(FAMILIES[cell.preset.partition("-")[0]]):
        return None
    known = [each for each in _table()["rates"] if each["preset"] == cell.preset]
    # Fine-tuning is not slower than pre-training with as many updates, which has f to learn beside it.
    wanted = [each for each in known if each["phase"] == phase]
    wanted = wanted or [each for each in known if phase == "task" and each["phase"] == "pretrain"]

    def nearness(each: Mapping[str, Any]) -> tuple[bool, bool]:
        return (each["gpu"] is not None) == has_gpu, each["engine"] == engine

    if not wanted:
        return None
    best = max(wanted, key=nearness)
    where = f"{best['hardware']}, engine {best['engine']}, {best['date']}"
    caution, elsewhere = "this machine may be faster or slower", ""
    if best["gpu"] is not None and not has_gpu:
        caution, elsewhere = "without a GPU, as here, it takes many times as long", best["gpu"]
    if best["gpu"] is None and has_gpu:
        elsewhere = "CPU"
    rate, updates = best["steps_per_second"], best["updates_per_step"]
    return Rate(rate, updates, where, best["source"], caution, elsewhere)


def _has_gpu(device: str) -> bool:
    import torch

    return device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())


@cache
def _table() -> dict[str, Any]:
    text = importlib.resources.files("voidrl.experiments").joinpath("rates.json").read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


# Disk


def agents_here(plan: Plan, states: Mapping[str, State]) -> dict[Kind, int]:
    """What agents and optimizers of each kind take, as checkpoints that are there tell."""
    found: dict[Kind, int] = {}
    for cell in plan.cells:
        if states[cell.folder].kind != "missing":
            newest = sorted((plan.path(cell) / "checkpoints").glob("step_*"))[-1:]
            files = [folder / f"{name}.safetensors" for folder in newest for name in ("agent", "optimizers")]
            size = sum(file.stat().st_size for file in files if file.is_file())
            found[kind_of(cell)] = max(size, found.get(kind_of(cell), 0))
    return {kind: size for kind, size in found.items() if size}


def disk_bytes(cell: Cell, agents: Mapping[Kind, int] | None = None) -> int | None:
    """What the run takes when it is complete; None where the size of an observation or agent is not known.

    A checkpoint holds the agent and all of the replay. Parts of the replay that did not change since the
    checkpoint before are the same files: another checkpoint costs an agent and what was written in between.
    """
    agent = (agents or {}).get(kind_of(cell)) or cell.agent_bytes
    if agent is None or not cell.look.sized:
        return None
    config, log = cell.config, cell.config.log
    steps, capacity = config.steps, config.replay.capacity_steps
    rows = row_count(capacity, config.env.num_envs, cell.look.spec)
    indices = 8 * (rows * config.env.num_envs + rows)  # of what can be sampled, written in full each time
    slot = slot_bytes(cell.look.spec, skill_dim=0) - 8

    def replay(step: int) -> int:
        return min(step, capacity) * slot

    borders = [*range(log.checkpoint_every_steps, steps, log.checkpoint_every_steps), steps]
    if config.phase == "finetune":
        borders.insert(0, 0)  # what it begins from is part of the run
    kept = borders[-log.keep_last :]
    total: int = len(kept) * (agent + indices) + replay(steps) + len(log.snapshot_steps) * agent
    for older, newer in pairwise(kept):
        overwritten = min(newer - older, capacity) * slot if newer > capacity else 0
        total += min(replay(older), max(overwritten, CHUNK_BYTES))
    return total


def free_bytes(out: Path) -> int | None:
    """What the disk of a folder has left; of the nearest one above it that exists."""
    for folder in (out.absolute(), *out.absolute().parents):
        if folder.is_dir():
            try:
                return shutil.disk_usage(folder).free
            except OSError:
                return None
    return None


def human_bytes(count: float) -> str:
    """12345678 → `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def sources(estimates: Iterable[Estimate]) -> list[str]:
    """Where the rates were measured, a line for each place."""
    places: dict[tuple[str, str], dict[str, None]] = {}
    for rate in (each.rate for each in estimates if each.rate is not None):
        places.setdefault((rate.where, rate.caution), {})[rate.source] = None
    lines = []
    for (where, caution), found in places.items():
        named = "; ".join(filter(None, found))
        lines.append(f"measured: {where}{f' ({named})' if named else ''}{f'; {caution}' if caution else ''}")
    return lines
