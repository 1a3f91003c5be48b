"""Where DMControl's images are rendered, and at which quality."""

import dataclasses
import os
from contextlib import closing
from unittest.mock import patch

import numpy as np
import pytest

from voidrl.config import DMControlConfig, EnvConfig
from voidrl.envs import dmc_rendering, gl
from voidrl.envs.dmc_rendering import choose_rendering
from voidrl.envs.gl import OpenGL
from voidrl.envs.make import make_envs
from voidrl.errors import ConfigError

pytest.importorskip("dm_control")

NVIDIA, LLVMPIPE = "NVIDIA H200/PCIe/SSE2", "llvmpipe (LLVM 15.0.6, 256 bits)"
PIXELS = DMControlConfig(observation="pixels")


@pytest.fixture
def machine(monkeypatch):
    """Builds a machine from its cores and what draws with each OpenGL; one that is missing does not work."""

    def build(cores, **rasterizers):
        def attempt(variables):
            name = variables["MUJOCO_GL"]
            kind = "mesa" if "LIBGL_ALWAYS_SOFTWARE" in variables else name
            return OpenGL(name, variables, rasterizers[kind]) if kind in rasterizers else f"no {kind}"

        monkeypatch.delenv("MUJOCO_GL", raising=False)
        monkeypatch.delenv("LP_NUM_THREADS", raising=False)
        monkeypatch.setattr(gl, "_try", attempt)
        monkeypatch.setattr(gl, "_mesa", lambda: iter([{"MUJOCO_GL": "egl", "LIBGL_ALWAYS_SOFTWARE": "1"}]))
        monkeypatch.setattr(dmc_rendering, "whole_cores", lambda: cores)

    return build


def chosen(workers=8, device="auto", **options):
    dmc = dataclasses.replace(PIXELS, **options)
    return choose_rendering("dmc/walker", dmc, workers, device, "take states")


def is_mesa(rendering):
    return "LIBGL_ALWAYS_SOFTWARE" in rendering.variables


# The choice


@pytest.mark.parametrize(
    ("quality", "cores", "on_cpu"),
    [
        ("default", 64, True),
        ("default", 63, False),
        ("medium", 24, True),
        ("medium", 23, False),
        ("fast", 24, True),
        ("fast", 23, False),
    ],
)
def test_auto_leaves_the_gpu_to_the_networks_if_there_are_enough_cores(machine, quality, cores, on_cpu):
    machine(cores, egl=NVIDIA, mesa=LLVMPIPE)
    rendering = chosen(render_quality=quality)
    assert is_mesa(rendering) == on_cpu
    assert ("rendered on the CPU" in rendering.notice) == on_cpu


def test_auto_renders_on_the_gpu_if_networks_are_elsewhere_or_no_agent_sees_the_images(machine):
    machine(64, egl=NVIDIA, mesa=LLVMPIPE)
    assert is_mesa(chosen(device="cuda:1"))
    for rendering in (chosen(device="cpu"), chosen(observation="states")):
        assert not is_mesa(rendering)
        assert rendering.notice == ""


def test_auto_says_what_would_free_the_gpu(machine):
    machine(64, egl=NVIDIA)
    rendering = chosen()
    assert rendering.variables["MUJOCO_GL"] == "egl"
    assert "apt-get install libosmesa6" in rendering.notice


def test_without_a_gpu_there_is_nothing_to_decide(machine):
    machine(64, egl=LLVMPIPE, mesa=LLVMPIPE, osmesa="")
    assert not is_mesa(chosen())
    machine(64, osmesa="")
    rendering = chosen()
    assert rendering.variables["MUJOCO_GL"] == "osmesa"
    assert rendering.notice == ""


def test_the_users_mujoco_gl_decides(machine, monkeypatch):
    machine(64, egl=NVIDIA, mesa=LLVMPIPE, osmesa="")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert not is_mesa(chosen())
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert chosen().variables["MUJOCO_GL"] == "osmesa"


@pytest.mark.parametrize(
    ("cores", "workers", "threads"), [(16, 8, "2"), (16, 16, "0"), (16, 9, "0"), (2, 8, "0")]
)
def test_workers_share_the_cores(machine, cores, workers, threads):
    machine(cores, egl=LLVMPIPE)
    assert chosen(workers).variables["LP_NUM_THREADS"] == threads


def test_the_users_number_of_threads_stays(machine, monkeypatch):
    machine(16, egl=LLVMPIPE)
    monkeypatch.setenv("LP_NUM_THREADS", "5")
    assert chosen().variables["LP_NUM_THREADS"] == "5"


# Images


def works(place):
    try:
        return bool(gl.find_gl("a test", "skip it", place))
    except ConfigError:
        return False


def images(variables=None, env="dmc/walker", steps=3, **options):
    """The first and last image of a few steps, as signed numbers, with environment variables."""
    config = EnvConfig(env, backend="async", dmc=dataclasses.replace(PIXELS, **options))
    with patch.dict(os.environ, variables or {}), closing(make_envs(config)) as envs:
        frames = [envs.reset(1)[0]]
        action = np.ones((1, envs.spec.action_dim), np.float32)
        frames += [envs.step(action).frames for _ in range(steps)]
    return np.stack([frames[0], frames[-1]]).astype(int)


def difference(a, b):
    return np.abs(a - b).mean()


@pytest.mark.skipif("not works('any')", reason="no OpenGL renders here")
def test_medium_quality_has_shadows_and_smooth_edges():
    default, medium, fast = (images(render_quality=name) for name in ("default", "medium", "fast"))
    assert 0 < difference(medium, default) < 0.6  # of 255
    assert difference(fast, default) > 5 * difference(medium, default)


@pytest.mark.skipif("not works('cpu')", reason="no software OpenGL renders here")
def test_images_do_not_depend_on_the_number_of_threads(monkeypatch):
    monkeypatch.setenv("LP_NUM_THREADS", "0")
    variables = gl.find_gl("a test", "skip it", "cpu").variables
    alone = images(variables)
    monkeypatch.setenv("LP_NUM_THREADS", "3")
    np.testing.assert_array_equal(images(variables), alone)


# What is left out


@pytest.mark.parametrize(
    ("body", "task"), [("walker", "stand"), ("quadruped", "walk"), ("jaco", "reach_top_left")]
)
def test_a_body_without_a_task_moves_as_with_it(body, task):
    def frames(env):
        with closing(make_envs(EnvConfig(env, backend="sync"))) as envs:
            first = envs.reset(3)[0]
            action = np.full((1, envs.spec.action_dim), 0.5, np.float32)
            steps = [envs.step(action) for _ in range(5)]
        return np.stack([first, *(step.frames for step in steps)]), [step.reward[0] for step in steps]

    (free, none), (rewarded, rewards) = frames(f"dmc/{body}"), frames(f"dmc/{body}_{task}")
    np.testing.assert_array_equal(free, rewarded)
    assert none == [0.0] * 5
    assert any(rewards)
