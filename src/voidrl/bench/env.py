"""Environments alone, with random actions: no run can be faster than they are."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import cycle

import numpy as np
import torch

from voidrl.bench.report import Column, Row, shown, spread
from voidrl.bench.timing import REPEATS
from voidrl.config import EnvConfig, merge, require, update
from voidrl.envs.make import make_envs
from voidrl.envs.vector import Envs
from voidrl.protocols.presets import default_preset, protocol_for

ACTION_SETS = 64  # drawn beforehand, and taken in turn


def check(options: Namespace) -> None:
    """Refuse numbers that are none."""
    for n in options.num_envs:
        require(n > 0, "num_envs", n, "1 or more")


def columns(options: Namespace) -> list[Column]:
    """One row for each number of environments."""
    return [
        Column("environment", 40, lambda row: row["env"][:40]),
        Column("backend", 8, lambda row: row["backend"]),
        Column("envs", 5, lambda row: str(row["num_envs"])),
        Column("steps/s", 10, shown("steps_per_second")),
        Column("min–max", 20, lambda row: spread(row, "steps_per_second")),
    ]


def details(row: Row) -> list[str]:
    """All is in the table."""
    return []


def rows(options: Namespace, device: torch.device, peaks: None, say: Callable[[str], None]) -> Iterator[Row]:
    """Real steps alone are counted: those in which an environment resets are not."""
    for n in options.num_envs:
        given = {"id": options.env, "num_envs": n, "backend": options.backend}
        values = protocol_for(options.env, options.preset or default_preset(options.env))
        config = update(EnvConfig(), merge(values["env"], given))
        with closing(make_envs(config)) as envs:
            rates, frames_per_step = _rates(envs, options.seconds), envs.frames_per_step
        yield {
            "env": options.env,
            "preset": options.preset,
            "backend": options.backend,
            "num_envs": n,
            "frames_per_step": frames_per_step,
            "steps_per_second": float(np.median(rates)),
            "steps_per_second_min": min(rates),
            "steps_per_second_max": max(rates),
            "steps_per_second_repeats": rates,
        }


def _rates(envs: Envs, seconds: float) -> list[float]:
    rng, spec, n = np.random.default_rng(0), envs.spec, envs.num_envs
    if spec.discrete:
        drawn = rng.integers(spec.num_actions, size=(ACTION_SETS, n))
    else:
        drawn = rng.uniform(-1, 1, (ACTION_SETS, n, spec.action_dim)).astype(np.float32)
    actions = cycle(drawn)
    envs.reset(0)
    for _ in range(8):
        envs.step(next(actions))
    ended = np.zeros(n, bool)
    rates = []
    for _ in range(REPEATS):
        steps, began = 0, time.perf_counter()
        while (took := time.perf_counter() - began) < seconds / REPEATS or not steps:
            result = envs.step(next(actions))
            steps += n - int(ended.sum())
            ended = result.ended & ~ended
        rates.append(steps / took)
    return rates
