"""A whole run, as `voidrl pretrain` does it: environments, replay and updates together."""

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
from voidrl.bench.report import Column, Row, number, percent, ratio, shown
from voidrl.build import build_config, layers_for
from voidrl.config import EnvConfig, merge, update
from voidrl.engine import Engine
from voidrl.envs.make import make_envs
from voidrl.errors import ConfigError, RunInterrupted
from voidrl.loop import Loop, LoopState
from voidrl.protocols.presets import default_preset, find_preset
from voidrl.replay import make_replay
from voidrl.runs.folder import RunFolder
from voidrl.runs.metrics import read_metrics
from voidrl.units import parse_count

LOG_ROWS = 20  # in a run; more would be more host reads than a run has
DROPPED_ROWS = 2  # with updates: graphs are captured in the first of them


def check(options: Namespace) -> None:
    """Refuse runs too short to be cut into rows."""
    options.preset = options.preset or default_preset(options.env) or "maze-demo"
    values = find_preset(options.preset).values
    if options.num_envs is None:
        options.num_envs = values.get("env", {}).get("num_envs", 1)
    if parse_count(options.steps) < 2 * LOG_ROWS * options.num_envs:
        raise ConfigError(
            f"--steps {options.steps} cannot be used with {options.num_envs} environments: expected at least "
            f"{2 * LOG_ROWS * options.num_envs}, of which most are left out of the figures"
        )


def columns(options: Namespace) -> list[Column]:
    """One row for each engine."""
    return [
        Column("environment", 24, lambda row: row["env"][:24]),
        Column("engine", 7, lambda row: row["engine"]),
        Column("envs", 4, lambda row: str(row["num_envs"])),
        Column("updates/step", 12, lambda row: f"{row['updates_per_step']:g}"),
        Column("steps/s", 9, shown("steps_per_second")),
        Column("frames/s", 9, lambda row: number(row["steps_per_second"] * row["frames_per_step"])),
        Column("updates/s", 9, shown("updates_per_second")),
        *([Column(f"× {options.against}", 9, ratio)] if options.against else []),
        Column("learner waits", 13, lambda row: percent(row["learner_waits"])),
    ]


def details(row: Row) -> list[str]:
    """What was counted."""
    span = f"{row['steps']} steps in {number(row['seconds'])} s counted, in {row['log_rows']} parts of "
    return [f"{span}{number(row['steps_per_second_min'])}–{number(row['steps_per_second_max'])} steps/s"]


def rows(options: Namespace, device: torch.device, peaks: None, say: Callable[[str], None]) -> Iterator[Row]:
    """One run with the engine asked for, and one with that which it is compared with."""
    found = [_run(options, options.engine, device, say)]
    if options.against:
        found.append(_run(options, options.against, device, say))
        found[0]["against"] = found[1]["engine"]
        found[0]["ratio"] = found[0]["steps_per_second"] / found[1]["steps_per_second"]
    yield from found


def _run(options: Namespace, engine_name: str, device: torch.device, say: Callable[[str], None]) -> Row:
    layers = _layers(options, engine_name)
    env_config = update(EnvConfig(), merge(*layers)["env"])
    with (
        closing(make_envs(env_config)) as envs,
        tempfile.TemporaryDirectory(prefix="voidrl-bench-") as folder,
    ):
        config = build_config(envs.spec, layers)
        agent = Agent(envs.spec, config, device)
        skill_dim = agent.method.skill_dim
        replay = make_replay(config.replay, envs.spec, envs.num_envs, skill_dim, device, say)
        engine = Engine(agent, replay, say)
        home = RunFolder.create(Path(folder) / "run")
        try:
            Loop(engine, envs, None, home, LoopState()).run()
        except RunInterrupted:
            raise KeyboardInterrupt from None  # there is nothing to resume
        return {
            "env": config.env.id,
            "engine": engine.mode,
            "num_envs": envs.num_envs,
            "frames_per_step": envs.frames_per_step,
            "updates_per_step": config.updates_per_step,
            **steady(read_metrics(home.path)),
        }


def _layers(options: Namespace, engine: str) -> list[Mapping[str, Any]]:
    steps = parse_count(options.steps)
    base = merge(*(layer.values for layer in layers_for(options.env, "pretrain", options.preset)))
    log = {"log_every_steps": max(1, steps // LOG_ROWS), "checkpoint_every_steps": steps + 1}
    log |= {"eval_every_steps": 0, "tensorboard": False}
    changes: dict[str, Any] = {
        "env": {"id": options.env, "num_envs": options.num_envs},
        "steps": steps,
        "engine": engine,
        "precision": options.precision,
        "warmup_steps": min(base.get("warmup_steps", steps), steps // 4),  # not what is measured
        "log": log,
    }
    if options.updates_per_step is not None:
        changes["updates_per_step"] = options.updates_per_step
    return [base, changes]


def steady(rows: list[dict[str, Any]]) -> Row:
    """Rates over the rows of a run in which it is under way: after the warm-up and the first updates."""
    spans = [
        (row["step"] - before["step"], row)
        for before, row in pairwise([{"step": 0, "updates": 0}, *rows])
        if row["updates"] > before["updates"]
    ][DROPPED_ROWS:]
    if not spans:
        raise ConfigError("the run was over before its rates were steady: give more --steps")
    seconds = [steps / row["time/steps_per_second"] for steps, row in spans]
    total, rates = sum(seconds), [row["time/steps_per_second"] for _, row in spans]

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
