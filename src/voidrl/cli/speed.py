"""The measurements of `voidrl bench`: environments, and whole runs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voidrl.cli.training import RunRequest
from voidrl.config import update
from voidrl.envs.make import make_envs
from voidrl.envs.vector import Envs
from voidrl.errors import ConfigError, RunInterrupted
from voidrl.runs.folder import RunFolder
from voidrl.runs.metrics import read_metrics
from voidrl.training import assembly
from voidrl.training.run import Run
from voidrl.training.saved_run import LoopState
from voidrl.training.starting import make_loop
from voidrl.types import EnvSpec

STEPS = 8000
SECONDS, REPEATS = 2.0, 5
ACTION_SETS = 64  # drawn in advance and used in turn
LOG_ROWS = 20  # of a whole run; more rows would mean more host reads than a real run has
DROPPED_ROWS = 2  # of those with updates: graphs are captured in the first of them
WAITING = 0.2  # share of its time that a learner waits for environments, above which these are the limit


# Environments


def env_rates(request: RunRequest) -> dict[str, Any]:
    """Steps per second with random actions and no agent."""
    env = request.config.env
    with closing(make_envs(env, request.probed.factory)) as envs:
        rates = _stepping(envs)
        return {
            "env": env.id,
            "backend": env.backend,
            "num_envs": env.num_envs,
            "frames_per_step": envs.frames_per_step,
            "steps_per_second": statistics.median(rates),
            "steps_per_second_min": min(rates),
            "steps_per_second_max": max(rates),
        }


def _stepping(envs: Envs) -> list[float]:
    """Steps per second in each repeat, without those in which an environment resets."""
    actions = cycle(random_actions(envs.spec, np.random.default_rng(0), (ACTION_SETS, envs.num_envs)))
    envs.reset(0)
    for _ in range(8):
        envs.step(next(actions))
    ended = np.zeros(envs.num_envs, bool)
    rates = []
    for _ in range(REPEATS):
        steps, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < SECONDS / REPEATS or not steps:
            result = envs.step(next(actions))
            steps += envs.num_envs - int(ended.sum())
            ended = result.ended & ~ended
        rates.append(steps / elapsed)
    return rates


def random_actions(spec: EnvSpec, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform random actions: `shape` integers, or vectors in [−1, 1]."""
    if spec.discrete:
        return rng.integers(spec.num_actions, size=shape)
    return rng.uniform(-1, 1, (*shape, spec.action_dim)).astype(np.float32)


# Whole runs


def run_rates(
    request: RunRequest, steps: int | None, device: torch.device, say: Callable[[str], None]
) -> dict[str, Any]:
    """A run in a temporary folder, without evaluations, and what limits it; None for the config's steps."""
    config, steps = request.config, steps or request.config.steps
    if steps < (least := 2 * LOG_ROWS * config.env.num_envs):
        raise ConfigError(
            f"--steps {steps} cannot be used with {config.env.num_envs} environments: expected at least "
            f"{least}, since the first ones do not count"
        )
    log = {"log_every_steps": max(1, steps // LOG_ROWS), "checkpoint_every_steps": steps + 1}
    log |= {"eval_every_steps": 0, "eval_episodes": 0, "probe_every_steps": 0, "tensorboard": False}
    warmup = min(config.warmup_steps, steps // 4)  # not measured
    changes = {"steps": steps, "log": log, "warmup_steps": warmup, "device": str(device)}
    config = update(config, changes)
    if request.note:
        say(request.note)
    with tempfile.TemporaryDirectory(prefix="voidrl-bench-") as folder:
        with (
            assembly.assemble(config, request.probed.factory, say) as parts,
            RunFolder.create(Path(folder) / "run") as home,
        ):
            engine, frames = parts.engine.mode, parts.envs.frames_per_step
            try:
                make_loop(Run(parts.engine, parts.envs, home, LoopState())).train()
            except RunInterrupted:
                raise KeyboardInterrupt from None  # there is nothing to resume
        found = steady_rates(read_metrics(home.path))
    return {
        "env": config.env.id,
        "engine": engine,
        "num_envs": config.env.num_envs,
        "frames_per_step": frames,
        "updates_per_step": config.updates_per_step,
        "frames_per_second": found["steps_per_second"] * frames,
        **found,
        "limit": limit(found["learner_waits"]),
    }


def limit(waits: float) -> str:
    """Which part of a run limits it, given the share of time for which the learner waits."""
    share = f"the learner waits for environments {waits:.0%} of the time"
    if waits > WAITING:
        return f"Environments limit this run: {share}. Try more --env.num-envs, or `voidrl bench env`."
    return f"Updates limit this run: {share}. Try fewer --updates-per-step, or another --engine."


def steady_rates(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rates over the log rows after the warm-up and the first updates."""
    spans = [
        (row["step"] - before["step"], row)
        for before, row in pairwise([{"step": 0, "updates": 0}, *rows])
        if row["updates"] > before["updates"]
    ][DROPPED_ROWS:]
    if not spans:
        raise ConfigError("the run ended before its rates were steady: use more --steps")
    names = ("steps_per_second", "updates_per_second", "learner_waits")
    steps = np.array([steps for steps, _ in spans])
    rates = np.array([[row[f"time/{name}"] for name in names] for _, row in spans])
    seconds = steps / rates[:, 0]
    return {
        "steps": int(steps.sum()),
        "seconds": float(seconds.sum()),
        **dict(zip(names, np.average(rates, axis=0, weights=seconds).tolist(), strict=True)),
        "steps_per_second_min": float(rates[:, 0].min()),
        "steps_per_second_max": float(rates[:, 0].max()),
    }
