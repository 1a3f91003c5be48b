"""Finds an OpenGL that renders without a display, by trying each one in a separate process.

MuJoCo chooses its OpenGL from environment variables when it is imported, and a wrong one may crash the
process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from voidrl.errors import ConfigError

CHOICE = "MUJOCO_GL"
EGL = {CHOICE: "egl"}  # renders on a GPU if there is one
OSMESA = {CHOICE: "osmesa"}
# Where libglvnd, which loads the EGL of one of several vendors, looks for a description of each.
VENDOR_FOLDERS = (Path("/etc/glvnd/egl_vendor.d"), Path("/usr/share/glvnd/egl_vendor.d"))
SOFTWARE = ("llvmpipe", "softpipe", "swrast")  # how Mesa names its rasterizers
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
Place = Literal["any", "gpu", "cpu"]
REMEDIES: dict[Place, str] = {
    "any": "install one (apt-get install libegl1 libgl1, or libosmesa6)",
    "gpu": "install the EGL of the GPU's driver",
    "cpu": "install one (apt-get install libosmesa6)",
}


class OpenGL(NamedTuple):
    """An OpenGL that works here."""

    name: str
    """The value of MUJOCO_GL."""
    variables: Mapping[str, str]
    """The environment variables that select it, MUJOCO_GL among them."""
    rasterizer: str
    """The renderer, as OpenGL reports it; empty for backends that are not queried."""

    @property
    def on_cpu(self) -> bool:
        """Whether a CPU draws."""
        return self.name == "osmesa" or self.rasterizer.startswith(SOFTWARE)


def find_gl(env: str, otherwise: str, place: Place = "any") -> OpenGL:
    """Find an OpenGL that works here. If the user has set MUJOCO_GL, no other backend is tried.

    Args:
        env: The environment to render, for the error message.
        otherwise: The alternative for a user without OpenGL.
        place: The required place of rendering: CPU, GPU or any.
    """
    tried = []
    for variables in _candidates(place):
        found = _try(variables)
        if isinstance(found, OpenGL) and place in ("any", "cpu" if found.on_cpu else "gpu"):
            return found
        if isinstance(found, OpenGL):
            found = f"renders on the {'CPU' if found.on_cpu else 'GPU'}, {found.rasterizer or 'in software'}"
        tried.append(f"{variables[CHOICE]}: {found}")
    where = "" if place == "any" else f" on the {place.upper()}"
    unset = f"unset {CHOICE}, or " if os.environ.get(CHOICE) else ""
    raise ConfigError(
        f"images of environment {env!r} cannot be rendered{where}, no OpenGL works there "
        f"({'; '.join(tried)}): {unset}{REMEDIES[place]}, or {otherwise}"
    )


def software_gl() -> OpenGL | None:
    """An OpenGL that draws on the CPU, if one works here."""
    found = (_try(variables) for variables in _candidates("cpu"))
    return next((one for one in found if isinstance(one, OpenGL) and one.on_cpu), None)


def _candidates(place: Place) -> Iterator[Mapping[str, str]]:
    """The variables that select each OpenGL, in the order of preference."""
    chosen = os.environ.get(CHOICE)
    known = (*_mesa(), OSMESA) if place == "cpu" else (EGL,) if place == "gpu" else (EGL, OSMESA)
    if chosen:
        known = tuple(variables for variables in known if variables[CHOICE] == chosen)
        known = known or ({CHOICE: chosen},)
    yield from known


def _mesa() -> Iterator[Mapping[str, str]]:
    """Mesa's EGL, drawing on the CPU: another vendor's may come first."""
    for folder in VENDOR_FOLDERS:
        for vendor in sorted(folder.glob("*mesa*.json")):
            yield {**EGL, "__EGL_VENDOR_LIBRARY_FILENAMES": str(vendor), "LIBGL_ALWAYS_SOFTWARE": "1"}


def _try(variables: Mapping[str, str]) -> OpenGL | str:
    """The OpenGL that these variables select, or the last line of its error."""
    rasterizer, failure = _render(tuple(sorted(variables.items())))
    return OpenGL(variables[CHOICE], variables, rasterizer) if failure is None else failure


@cache
def _render(variables: tuple[tuple[str, str], ...]) -> tuple[str, str | None]:
    """Render an image with these environment variables; return what drew it, and the failure if any."""
    path = os.pathsep.join(filter(None, sys.path))
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", TRIAL],
            env={**os.environ, **dict(variables), "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer for {TIMEOUT_S:g} s"
    if done.returncode != 0:
        return "", (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return done.stdout.partition("rendered by ")[2].strip(), None
