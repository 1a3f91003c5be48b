"""Chooses where DMControl renders images: on the GPU, or on CPU cores, leaving the GPU to the networks.

Rendering and learning take turns on a GPU. With enough cores the CPU renders as many images as a run needs,
while the GPU learns. docs/environments/dmcontrol.md has the measurements behind the rule.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from voidrl.config import DMControlConfig
from voidrl.envs.gl import CHOICE, OpenGL, find_gl, software_gl
from voidrl.system.machine import whole_cores

# Cores from which we expect a run that learns on a GPU to be faster if they render, by quality of the images:
# an estimate from the rates of both on an H200 with 16 cores (docs/environments/dmcontrol.md).
LEAST_CORES = {"default": 64, "medium": 24, "fast": 24}
THREADS = "LP_NUM_THREADS"  # of Mesa's software rasterizer; 0 draws in the calling thread


class Rendering(NamedTuple):
    """The rendering setup of worker processes."""

    variables: Mapping[str, str]
    """Their environment variables."""
    notice: str = ""
    """The choice of `auto`, as a sentence; empty if there was nothing to decide."""


def no_rendering() -> Rendering:
    """The setup of workers that render nothing, and so need no OpenGL."""
    return Rendering({CHOICE: "disabled"})


def choose_rendering(env: str, dmc: DMControlConfig, workers: int, device: str, otherwise: str) -> Rendering:
    """Find an OpenGL for the workers: `MUJOCO_GL` if set, else the one that makes runs fastest.

    Args:
        env: The environment, for the error message.
        dmc: The quality of images.
        workers: The number of worker processes, which share the cores.
        device: The device of the networks.
        otherwise: The alternative for a user without OpenGL.
    """
    found = find_gl(env, otherwise)
    cores, least = whole_cores(), LEAST_CORES[dmc.render_quality]
    few = dmc.observation == "states" or cores < least  # images, or cores to render them
    if found.on_cpu or device == "cpu" or few or os.environ.get(CHOICE):
        return _with_threads(found, workers)
    software = software_gl()
    if software is None:
        return _with_threads(
            found,
            workers,
            "images are rendered on the GPU, which slows down learning there: with a software OpenGL "
            f"(apt-get install libosmesa6), the {cores} CPU cores would render them",
        )
    return _with_threads(
        software,
        workers,
        f"images are rendered on the CPU ({cores} cores; from {least} on this should be faster for "
        f"env.dmc.render_quality = {dmc.render_quality!r}), which leaves the GPU to the networks; "
        f"{CHOICE}=egl renders there",
    )


def _with_threads(found: OpenGL, workers: int, notice: str = "") -> Rendering:
    """Divide the cores among the workers; by default each rasterizer would take all of them."""
    per_worker = whole_cores() // workers
    threads = os.environ.get(THREADS, str(per_worker if per_worker > 1 else 0))
    return Rendering({**found.variables, THREADS: threads}, notice)
