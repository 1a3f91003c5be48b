"""DMControl's images per second, by where they are rendered, quality and number of environments.

    python benchmarks/rendering.py
    python benchmarks/rendering.py --env dmc/quadruped_walk --renderers cpu --num-envs 8 --json FILE

Each core simulates and renders one environment, or several in turn, two control steps per image, while
nothing learns. The last column compares images of the same physics: the mean difference per color, of 255,
from the first renderer at the first quality. A renderer that does not work here is left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from voidrl.config import DMControlConfig, EnvConfig
from voidrl.envs.gl import find_gl
from voidrl.envs.make import make_envs
from voidrl.errors import ConfigError
from voidrl.runs.folder import environment_info
from voidrl.system.machine import whole_cores

COMPARED_STEPS = 10  # after which images are compared
HEADER = f"{'renderer':10}{'quality':10}{'envs':>10}{'images/s':>10}{'ms/image':>10}{'|Δ|':>8}"


def measure(env: str, num_envs: int, seconds: float, dmc: DMControlConfig) -> tuple[float, np.ndarray]:
    """Images per second of all environments, and the images after some steps."""
    with closing(make_envs(EnvConfig(env, num_envs=num_envs, backend="async", dmc=dmc))) as envs:
        random = np.random.default_rng(0)
        actions = random.uniform(-1, 1, (64, num_envs, envs.spec.action_dim)).astype(np.float32)
        envs.reset(0)
        for action in actions[:COMPARED_STEPS]:
            images = envs.step(action).frames
        steps, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            envs.step(actions[steps % len(actions)])
            steps += 1
    return steps * num_envs / elapsed, images


def find_renderers(given: argparse.Namespace) -> dict[str, Mapping[str, str]]:
    """The environment variables of each renderer that works here; says why others do not."""
    found = {}
    for renderer in given.renderers:
        try:
            found[renderer] = find_gl(given.env, "leave it out", renderer).variables
        except ConfigError as error:
            print(error)
    return found


def main() -> None:
    """Print a row for each combination."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--env", default="dmc/walker_walk")
    parser.add_argument("--renderers", nargs="+", default=["gpu", "cpu"], choices=["gpu", "cpu"])
    parser.add_argument("--qualities", nargs="+", default=["default", "medium", "fast"])
    parser.add_argument("--num-envs", nargs="+", type=int, default=[4, 8, 16])
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    reference: dict[int, np.ndarray] = {}  # images by number of environments
    renderers = find_renderers(given)
    print(HEADER)
    for renderer, quality, num_envs in product(renderers, given.qualities, given.num_envs):
        dmc = DMControlConfig(observation="pixels", action_repeat=2, render_quality=quality)
        with patch.dict(os.environ, renderers[renderer]):
            rate, images = measure(given.env, num_envs, given.seconds, dmc)
        other = reference.setdefault(num_envs, images)
        difference = float(np.abs(images.astype(int) - other.astype(int)).mean())
        rows.append(
            {
                "renderer": renderer,
                "quality": quality,
                "num_envs": num_envs,
                "images_per_second": rate,
                "mean_difference": difference,
            }
        )
        per_image_ms = 1000 * min(num_envs, whole_cores()) / rate
        numbers = f"{num_envs:10}{rate:10.0f}{per_image_ms:10.2f}{difference:8.2f}"
        print(f"{renderer:10}{quality:10}{numbers}", flush=True)
    if given.json is not None:
        figures = {"env": given.env, "rows": rows, "environment": environment_info()}
        given.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
