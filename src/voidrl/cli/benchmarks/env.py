"""Environments with random actions and no agent: an upper bound on the speed of any run."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import cycle

import numpy as np
import torch

from voidrl.cli.benchmarks.data import random_actions
from voidrl.cli.benchmarks.results import Result, number, value_range
from voidrl.cli.benchmarks.timing import REPEATS, rate_figures
from voidrl.config import EnvConfig, merge, update
from voidrl.envs.make import make_envs
from voidrl.envs.vector import Envs
from voidrl.presets.presets import default_preset, protocol_for

NAME_WIDTH = 40
ACTION_SETS = 64  # drawn in advance and used in turn


def results(
    options: Namespace, device: torch.device, peaks: None, say: Callable[[str], None]
) -> Iterator[Result]:
    """Measure each number of environments. Steps in which an environment resets do not count."""
    for n in options.num_envs:
        given = {"id": options.env, "num_envs": n, "backend": options.backend}
        values = protocol_for(options.env, options.preset or default_preset(options.env))
        config = update(EnvConfig(), merge(values["env"], given))
        with closing(make_envs(config, device=str(device))) as envs:
            rates, frames_per_step = _rates(envs, options.seconds, device), envs.frames_per_step
        figures = {
            "env": options.env,
            "preset": options.preset,
            "backend": options.backend,
            "num_envs": n,
            "frames_per_step": frames_per_step,
            **rate_figures("steps_per_second", rates),
        }
        cells = {
            "environment": options.env[:NAME_WIDTH],
            "backend": options.backend,
            "envs": str(n),
            "steps/s": number(figures["steps_per_second"]),
        }
        yield Result(figures, cells, (f"{value_range(figures, 'steps_per_second')} steps/s",))


def _rates(envs: Envs, seconds: float, device: torch.device) -> list[float]:
    """Steps per second in each repeat."""
    drawn = random_actions(envs.spec, np.random.default_rng(0), (ACTION_SETS, envs.num_envs))
    # Where a policy would choose them.
    actions = cycle(torch.from_numpy(drawn).to(device) if envs.takes_tensors else drawn)
    envs.reset(0)
    for _ in range(8):
        envs.step(next(actions))
    ended = np.zeros(envs.num_envs, bool)
    rates = []
    for _ in range(REPEATS):
        steps, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds / REPEATS or not steps:
            result = envs.step(next(actions))
            steps += envs.num_envs - int(ended.sum())
            ended = result.ended & ~ended
        rates.append(steps / elapsed)
    return rates
