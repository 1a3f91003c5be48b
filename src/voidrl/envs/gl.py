"""Finds an OpenGL that renders without a display, by trying each one in a separate process.

MuJoCo chooses its OpenGL from environment variables when it is imported, and a wrong one may crash the
process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from voidrl.errors import ConfigError

CHOICE = "MUJOCO_GL"
BACKENDS = ("egl", "osmesa")  # the first renders on a GPU if there is one
THREADS = "LP_NUM_THREADS"  # of Mesa's software rasterizer; 0 draws in the calling thread
SOFTWARE = ("llvmpipe", "softpipe", "swrast")  # how Mesa names its rasterizers
NO_GL: Mapping[str, str] = {CHOICE: "disabled"}
"""Environment variables of processes that render nothing, and so need no OpenGL."""
TIMEOUT_S = 120.0
TRIAL = """
import os
from dm_control import mujoco
world = '<mujoco><worldbody><light pos="0 0 3"/><geom size="1"/></worldbody></mujoco>'
physics = mujoco.Physics.from_xml_string(world)
assert physics.render(16, 16).any(), 'the image is black'
if os.environ['MUJOCO_GL'] == 'egl':
    from OpenGL import GL
    with physics.contexts.gl.make_current() as context:
        print('rendered by', (context.call(GL.glGetString, GL.GL_RENDERER) or b'').decode())
"""


class OpenGL(NamedTuple):
    """An OpenGL that works here."""

    name: str
    """The value of MUJOCO_GL."""
    rasterizer: str
    """The renderer, as OpenGL reports it; empty for backends that are not queried."""

    @property
    def on_cpu(self) -> bool:
        """Whether a CPU draws."""
        return self.name == "osmesa" or self.rasterizer.startswith(SOFTWARE)


def find_gl(env: str, otherwise: str) -> OpenGL:
    """Find an OpenGL that works here. If the user has set MUJOCO_GL, no other backend is tried.

    Args:
        env: The environment to render, for the error message.
        otherwise: The alternative for a user without OpenGL.
    """
    tried = []
    chosen = os.environ.get(CHOICE)
    for name in (chosen,) if chosen else BACKENDS:
        rasterizer, failure = _render(name)
        if failure is None:
            return OpenGL(name, rasterizer)
        tried.append(f"{name}: {failure}")
    unset = f"unset {CHOICE}, or " if chosen else ""
    raise ConfigError(
        f"images of environment {env!r} cannot be rendered, no OpenGL works here ({'; '.join(tried)}): "
        f"{unset}install one (apt-get install libegl1 libgl1, or libosmesa6), or {otherwise}"
    )


def rendering_variables(env: str, otherwise: str, threads: int) -> dict[str, str]:
    """Environment variables of processes that render, each with as many threads if a CPU draws."""
    found = find_gl(env, otherwise)
    return {CHOICE: found.name, THREADS: os.environ.get(THREADS, str(threads if threads > 1 else 0))}


@cache
def _render(name: str) -> tuple[str, str | None]:
    """Render an image with a backend; return what drew it, and the failure if any."""
    path = os.pathsep.join(filter(None, sys.path))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", TRIAL],
            env={**os.environ, CHOICE: name, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer for {TIMEOUT_S:g} s"
    if done.returncode != 0:
        return "", (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return done.stdout.partition("rendered by ")[2].strip(), None
