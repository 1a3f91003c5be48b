"""A whole run as in `voidrl pretrain`: environments, replay and updates together."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from voidrl.agent import Agent
from voidrl.agent.cost import update_gflop
from voidrl.cli.benchmarks.options import LOG_ROWS
from voidrl.cli.benchmarks.results import Result, number, percent, speedup, value_range
from voidrl.config import EnvConfig, merge, update
from voidrl.engine.engine import Engine
from voidrl.envs.make import make_envs
from voidrl.errors import ConfigError, RunInterrupted
from voidrl.presets.presets import AGENTS
from voidrl.replay import make_replay
from voidrl.runs.folder import RunFolder
from voidrl.runs.metrics import read_metrics
from voidrl.system.threads import cpu_threads
from voidrl.training.build import build_config
from voidrl.training.layers import layers_for
from voidrl.training.run import Run
from voidrl.training.saved_run import LoopState
from voidrl.training.wiring import make_loop

NAME_WIDTH = 24
DROPPED_ROWS = 2  # of those with updates: graphs are captured in the first of them


def results(
    options: Namespace, device: torch.device, peaks: None, say: Callable[[str], None]
) -> Iterator[Result]:
    """Measure one run; with `--against`, also one with a second engine."""
    engines = [options.engine, *([options.against] if options.against else [])]
    runs = [_run(options, engine, device, say) for engine in engines]
    if len(runs) > 1:
        ratio = runs[0]["steps_per_second"] / runs[1]["steps_per_second"]
        runs = [run | {"against": runs[1]["engine"], "ratio": None} for run in runs]
        runs[0]["ratio"] = ratio
    yield from map(_result, runs)


def _result(figures: dict[str, Any]) -> Result:
    cells = {
        "environment": figures["env"][:NAME_WIDTH],
        "engine": figures["engine"],
        "envs": str(figures["num_envs"]),
        "updates/step": f"{figures['updates_per_step']:g}",
        "steps/s": number(figures["steps_per_second"]),
        "frames/s": number(figures["steps_per_second"] * figures["frames_per_step"]),
        "updates/s": number(figures["updates_per_second"]),
        **speedup(figures),
        "learner waits": percent(figures["learner_waits"]),
    }
    note = f"{figures['steps']} steps in {number(figures['seconds'])} s counted, over {figures['log_rows']} "
    note += f"log rows at {value_range(figures, 'steps_per_second')} steps/s"
    return Result(figures, cells, (note,))


def _run(
    options: Namespace, engine_name: str, device: torch.device, say: Callable[[str], None]
) -> dict[str, Any]:
    layers = _layers(options, engine_name)
    merged = merge(*layers)
    env_config = update(EnvConfig(), merged["env"])
    with (
        closing(make_envs(env_config, pretraining=merged["phase"] == "pretrain", device=str(device))) as envs,
        tempfile.TemporaryDirectory(prefix="voidrl-bench-") as folder,
    ):
        config = build_config(envs.spec, layers)
        threads = cpu_threads(device, update_gflop(envs.spec, config), say=say)
        with threads, RunFolder.create(Path(folder) / "run") as home:
            agent = Agent(envs.spec, config, device)
            size = envs.spec, envs.num_envs, agent.method.skill_dim
            replay = make_replay(config.replay, *size, device, say, agent.note_dim)
            engine = Engine(agent, replay, say)
            try:
                make_loop(Run(engine, envs, home, LoopState())).train()
            except RunInterrupted:
                raise KeyboardInterrupt from None  # there is nothing to resume
        return {
            "env": config.env.id,
            "engine": engine.mode,
            "num_envs": envs.num_envs,
            "frames_per_step": envs.frames_per_step,
            "updates_per_step": config.updates_per_step,
            **steady_rates(read_metrics(home.path)),
        }


def _layers(options: Namespace, engine: str) -> list[Mapping[str, Any]]:
    steps = options.steps
    phase = "train" if options.preset in AGENTS else "pretrain"
    base = merge(*(layer.values for layer in layers_for(options.env, phase, options.preset)))
    log = {"log_every_steps": max(1, steps // LOG_ROWS), "checkpoint_every_steps": steps + 1}
    log |= {"eval_every_steps": 0, "tensorboard": False}
    changes: dict[str, Any] = {
        "env": {"id": options.env, "num_envs": options.num_envs},
        "steps": steps,
        "engine": engine,
        "precision": options.precision,
        "warmup_steps": min(base.get("warmup_steps", steps), steps // 4),  # not measured
        "log": log,
    }
    if options.updates_per_step is not None:
        changes["updates_per_step"] = options.updates_per_step
    return [base, changes]


def steady_rates(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rates over the log rows after the warm-up and the first updates."""
    spans = [
        (row["step"] - before["step"], row)
        for before, row in pairwise([{"step": 0, "updates": 0}, *rows])
        if row["updates"] > before["updates"]
    ][DROPPED_ROWS:]
    if not spans:
        raise ConfigError("the run ended before its rates were steady: use more --steps")
    seconds = [steps / row["time/steps_per_second"] for steps, row in spans]
    total = sum(seconds)
    rates = [row["time/steps_per_second"] for _, row in spans]

    def mean(name: str) -> float:
        return float(sum(row[name] * time for (_, row), time in zip(spans, seconds, strict=True)) / total)

    return {
        "steps": sum(steps for steps, _ in spans),
        "seconds": total,
        "log_rows": len(spans),
        "steps_per_second": mean("time/steps_per_second"),
        "steps_per_second_min": min(rates),
        "steps_per_second_max": max(rates),
        "updates_per_second": mean("time/updates_per_second"),
        "learner_waits": mean("time/learner_waits"),
    }
