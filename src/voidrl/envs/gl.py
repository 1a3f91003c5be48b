"""Finds an OpenGL that renders without a display, by trying each one in a separate process.

MuJoCo chooses its OpenGL from the variable MUJOCO_GL when it is imported, and a wrong one may crash the
process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

from voidrl.errors import ConfigError

CANDIDATES = ("egl", "osmesa")  # EGL uses a GPU if there is one; both work on a CPU
TIMEOUT_S = 120.0
TRIAL = """
from dm_control import mujoco
world = '<mujoco><worldbody><light pos="0 0 3"/><geom size="1"/></worldbody></mujoco>'
assert mujoco.Physics.from_xml_string(world).render(16, 16).any(), 'the image is black'
"""


def find_gl(env: str, otherwise: str = "take env.dmc.observation = 'states'") -> str:
    """The value of MUJOCO_GL that works here; if the user has set one, only that is tried.

    Args:
        env: The environment to render, for the error message.
        otherwise: What a user without OpenGL can do instead.
    """
    chosen = os.environ.get("MUJOCO_GL")
    tried = {}
    for name in (chosen,) if chosen else CANDIDATES:
        failure = _failure(name)
        if failure is None:
            return name
        tried[name] = failure
    reasons = "; ".join(f"{name}: {failure}" for name, failure in tried.items())
    unset = "unset MUJOCO_GL, or " if chosen else ""
    raise ConfigError(
        f"images of environment {env!r} cannot be rendered, no OpenGL works ({reasons}): {unset}install one "
        f"(apt-get install libegl1 libgl1, or libosmesa6), or {otherwise}"
    )


@cache
def _failure(name: str) -> str | None:
    """The last line of the error with this OpenGL; None if it works."""
    environment = {**os.environ, "MUJOCO_GL": name, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", TRIAL],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"no answer for {TIMEOUT_S:g} s"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
