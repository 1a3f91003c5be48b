"""DMControl in MuJoCo Warp: `dmc-warp/walker_run`, and `dmc-warp/walker` for the domain without a reward.

Physics, images, observations and rewards of N simulations are computed together on one device, which their
tensors never leave. docs/environments/dmc_warp.md lists the tasks and the differences from `dmc/…`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from voidrl.config import EnvConfig
from voidrl.device import HostCopy
from voidrl.envs.dmc import (
    VersionRanges,
    probe_dmc,
    require_packages,
    resolve,
    settings_for,
    simulate_here,
    spaces_of,
)
from voidrl.envs.dmc_worker import SimulatorSettings, variable_names
from voidrl.envs.tensor import Info, TensorEnvs, make_tensor_envs
from voidrl.errors import ConfigError, EnvironmentFailedError
from voidrl.suites.dmcontrol import PREFIX, WARP_PREFIX, WARP_TASKS, find_dmc_task, require_task
from voidrl.types import EnvSpec

PACKAGES: VersionRanges = {
    "mujoco-warp": ((3, 17), (4,)),
    "warp-lang": ((1, 15), (2,)),
}  # as in pyproject.toml
EPISODE_STEPS = 1000  # control steps, in all supported tasks


class WarpDMControl:
    """N simulations of one task as tensors; a `voidrl.envs.tensor.TensorVectorEnv`.

    Environment i of seed s draws the same starts of episodes as in `dmc/…`.

    Args:
        settings: Of the task and its observations, as for `dmc/…`.
        num_envs: N.
        device: Where they are simulated.
        render_mode: `rgb_array` for pictures of environment 0, of the settings' `view_size`.
    """

    def __init__(
        self,
        settings: SimulatorSettings,
        num_envs: int,
        device: torch.device | str,
        render_mode: str | None = None,
    ) -> None:
        self.num_envs, self.device, self.render_mode = num_envs, torch.device(device), render_mode
        self._name, self._repeat = settings["name"], settings["action_repeat"]
        plain: SimulatorSettings = {**settings, "num_envs": 1, "image_size": 0, "view_size": 0}
        simulators = simulate_here(plain)  # dm_control's own model and spaces
        from voidrl.envs.warp_physics import WarpCamera, WarpPhysics
        from voidrl.envs.warp_tasks import DOMAINS  # imports dm_control, whose warnings are hidden above

        [single], described = simulators.envs, simulators.described
        observation_space, action_space = spaces_of(described, settings)
        self.single_observation_space: gym.Space = observation_space
        self.single_action_space: gym.Space = action_space
        step_s = described["control_timestep_s"]
        self.metadata = {
            "autoreset_mode": AutoresetMode.NEXT_STEP,
            "render_fps": 1 / (step_s * self._repeat),
        }
        model, substeps = single.physics.model.ptr, round(step_s / single.physics.timestep())
        self._physics = WarpPhysics(model, num_envs, self.device, substeps)
        rewarded = settings["task"] if settings["rewarded"] else None
        self._task = DOMAINS[settings["domain"]](self._physics, rewarded)
        camera, fast = settings["camera"], settings["quality"] == "fast"
        number = camera if isinstance(camera, int) else described["cameras"].index(camera)
        size = settings["image_size"]
        self._camera = WarpCamera(self._physics, number, size, fast=fast) if size else None
        self._view: WarpCamera | None = None
        if render_mode is not None:
            shown = WarpPhysics(model, 1, self.device, substeps)
            self._view = WarpCamera(shown, number, settings["view_size"], fast=fast)
        self._variables = variable_names(single.physics.model) if settings["true_state"] else []
        # Otherwise episodes end between two steps of the agent, and no simulation has to stop within one.
        self._ends_within_step = self._repeat > 1 and (
            self._task.terminates or EPISODE_STEPS % self._repeat != 0
        )
        self._random = [np.random.RandomState() for _ in range(num_envs)]
        self._steps = torch.zeros(num_envs, dtype=torch.int64, device=self.device)  # control steps
        self._none = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        self._no_states = torch.zeros(num_envs, 0, device=self.device)

    def reset(self, *, seed: int | None = None) -> tuple[Tensor, Info]:
        """Start all episodes; environment i is seeded with seed + i."""
        if seed is not None:
            for i, random in enumerate(self._random):
                random.seed((seed + i) % 2**32)
        self._begin(np.arange(self.num_envs))
        self._report(self._none)
        return self._frames(self._states()), self._info(self._none)

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Info]:
        """Step all simulations; those whose episode ended on the previous step start a new one instead."""
        fresh = self._ended_before()
        resets = fresh.any()
        over = torch.from_numpy(fresh).to(self.device) if resets else self._none
        self._physics.ctrl.copy_(actions)
        total = torch.zeros(self.num_envs, device=self.device)
        success = self._none
        observed = self._no_states
        for repeat in range(self._repeat):
            stops = repeat > 0 and self._ends_within_step
            observed = self._advance(over, observed) if stops else self._advance_all()
            self._steps += ~over
            total += torch.where(over, 0.0, self._task.reward())
            if self._task.terminates:
                success = success | (self._task.succeeded() & ~over)
            over = over | success | (self._steps >= EPISODE_STEPS)
        if self._ends_within_step:
            self._physics.update_poses()
        if resets:
            numbers = np.flatnonzero(fresh)
            self._begin(numbers)
            begun = torch.from_numpy(fresh).to(self.device)
            observed = torch.where(begun[:, None], self._states(), observed)
            over = over & ~begun
        truncated = over & ~success
        self._report(over)
        return self._frames(observed), total, success, truncated, self._info(success)

    def render(self) -> Tensor | None:
        """A picture of environment 0."""
        if self._view is None:
            return None
        shown = self._view.physics
        shown.qpos.copy_(self._physics.qpos[:1])
        shown.update_poses()
        return self._view.render()[0]

    def _advance_all(self) -> Tensor:
        """One control step; returns the states that are observed."""
        self._physics.advance()
        return self._states()

    def _advance(self, over: Tensor, observed: Tensor) -> Tensor:
        """One control step of simulations whose episodes are not over."""
        kept = [tensor.clone() for tensor in self._physics.state]
        found = self._advance_all()
        for tensor, before in zip(self._physics.state, kept, strict=True):
            torch.where(over[:, None], before, tensor, out=tensor)
        return torch.where(over[:, None], observed, found)

    def _begin(self, envs: np.ndarray) -> None:
        """Start episodes of some environments, by number."""
        drawn = np.stack([self._task.draw(self._random[env]) for env in envs])
        worlds = torch.from_numpy(envs).to(self.device)
        self._task.begin(worlds, torch.from_numpy(drawn).float().to(self.device))
        self._steps[worlds] = 0

    def _states(self) -> Tensor:
        """What is observed from states, (N, d); nothing (N, 0) where images are."""
        return self._task.observe() if self._camera is None else self._no_states

    def _frames(self, observed: Tensor) -> Tensor:
        return observed if self._camera is None else self._camera.render()

    def _info(self, success: Tensor) -> Info:
        info: Info = {"success": success} if self._task.terminates else {}
        if self._variables:
            values = torch.cat([self._physics.qpos, self._physics.qvel], 1).unbind(1)
            info["variables"] = dict(zip(self._variables, values, strict=True))
        return info

    # What the host must know in the next step. It need not wait: whoever has read the rewards waited longer.

    def _report(self, over: Tensor) -> None:
        self._reported = HostCopy(torch.stack([over.to(torch.int32), self._physics.failures()]))

    def _ended_before(self) -> np.ndarray:
        """Which episodes ended in the previous step, (N,); fails if a simulation did."""
        ended, failures = self._reported.numpy()
        if failures.any():
            self._fail(failures)
        return np.asarray(ended, bool)

    def _fail(self, failures: np.ndarray) -> NoReturn:
        env = int(np.flatnonzero(failures)[0])
        others = np.count_nonzero(failures) - 1
        raise EnvironmentFailedError(
            f"environment {env} ({self._name!r}){f' and {others} others' if others else ''} had "
            f"{self._physics.explain(int(failures[env]))}; {PREFIX}{self._name.removeprefix(WARP_PREFIX)} is "
            f"simulated by C MuJoCo, without these limits"
        )


def make_dmc_warp(
    config: EnvConfig,
    num_envs: int,
    device: str,
    *,
    evaluation: bool = False,
    render_height: int = 0,
    true_state: bool = False,
) -> TensorEnvs:
    """Create N simulations of the domain or task in `config.id`."""
    config = resolve(config)
    _require_supported(config)
    require_packages(config.id, PACKAGES, "warp")
    if evaluation and not render_height:  # videos need no reward
        require_task(config.id, "an evaluation needs one")
    settings = settings_for(config, num_envs, render_height, true_state)

    def make(**options: Any) -> WarpDMControl:
        return WarpDMControl(settings, **options)

    envs = make_tensor_envs(config, make, num_envs, device, render=render_height > 0, true_state=true_state)
    envs.frames_per_step = config.dmc.action_repeat
    return envs


def probe_dmc_warp(config: EnvConfig) -> EnvSpec:
    """The spec of the environments, which is that of C MuJoCo's, without a simulation on a device."""
    config = resolve(config)
    _require_supported(config)
    require_packages(config.id, PACKAGES, "warp")
    name = config.id.removeprefix(WARP_PREFIX)
    return probe_dmc(dataclasses.replace(config, id=f"{PREFIX}{name}", backend="auto"))


def _require_supported(config: EnvConfig) -> None:
    found = find_dmc_task(config.id)
    assert found is not None
    tasks = WARP_TASKS.get(found.domain, ())
    if not tasks or found.task not in (None, *tasks):
        what = (
            f"a task of {found.domain!r}: {', '.join(tasks)}" if tasks else f"one of {', '.join(WARP_TASKS)}"
        )
        raise ConfigError(
            f"environment {config.id!r} is not among those in MuJoCo Warp: expected {what}, or "
            f"{PREFIX}{found.name}, which C MuJoCo simulates"
        )
    if config.backend not in ("auto", "tensor"):
        raise ConfigError(
            f"env.backend = {config.backend!r} cannot be used with environment {config.id!r}, whose "
            f"simulations are tensors on one device: expected auto or tensor, or {PREFIX}{found.name}"
        )
    if config.count_states:
        raise ConfigError(
            f"env.count_states = True cannot be used with environment {config.id!r}: expected "
            f"{PREFIX}{found.name}, whose states can be counted, or env.count_states = False"
        )
