"""DMControl: `dmc/walker_run`, and `dmc/walker` for the domain without a reward. Does not import torch.

docs/environments/dmcontrol.md describes the tasks and the differences from other setups.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
import re
import warnings
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from voidrl.config import EnvConfig
from voidrl.envs.coverage import BALL, FREE, StateCounter, measure_pose, pose_bins
from voidrl.envs.failures import creating
from voidrl.envs.gl import NO_GL, rendering_variables
from voidrl.envs.parallel import MakeEnv, ParallelVector
from voidrl.envs.single import CheckedEnv
from voidrl.envs.spaces import spec_of
from voidrl.envs.suites.dmcontrol import (
    CAMERAS,
    NEED_GL,
    PIXELS_REPEAT,
    PREFIX,
    REPEATS,
    STATES_REPEAT,
    TASKS,
    find_dmc_task,
    require_task,
)
from voidrl.envs.vector import Envs, StepResult
from voidrl.envs.workers import count_workers
from voidrl.errors import ConfigError, MissingExtraError
from voidrl.system.machine import whole_cores
from voidrl.types import EnvSpec

# The first version of each package, and the first that is too new, as in pyproject.toml.
PACKAGES = {"dm-control": ((1, 0, 50), (2,)), "mujoco": ((3, 17), (4,))}


class DMControlEnvs(Envs):
    """N simulations with frames and actions in [−1, 1], and optional state coverage."""

    def __init__(
        self, vector: ParallelVector | SyncVectorEnv, config: EnvConfig, true_state: bool = False
    ) -> None:
        super().__init__(vector, config, true_state=true_state)
        self.frames_per_step = config.dmc.action_repeat
        self._counter = StateCounter(["bins"]) if config.count_states else None

    @property
    def counter(self) -> StateCounter | None:
        """The counter of visited bins of poses."""
        return self._counter

    def recv(self, counted: np.ndarray | None = None) -> StepResult:
        """Wait for the results of the step."""
        real = ~self._resets
        result = super().recv()
        if self._counter is not None:
            poses = result.info["pose"][real if counted is None else real & counted]
            self._counter.add("bins", pose_bins(poses, self.name))
        return result


def resolve(config: EnvConfig) -> EnvConfig:
    """Fill in the domain's default action repeat, and the canonical spelling of the id."""
    found, dmc = find_dmc_task(config.id), config.dmc
    if found is None:
        return config
    pixels = dmc.observation == "pixels"
    default = REPEATS.get(found.domain, PIXELS_REPEAT) if pixels else STATES_REPEAT
    dmc = dataclasses.replace(dmc, action_repeat=dmc.action_repeat or default)
    return dataclasses.replace(config, id=f"{PREFIX}{found.name}", dmc=dmc)


def make_dmc(
    config: EnvConfig,
    num_envs: int,
    *,
    evaluation: bool,
    render_height: int = 0,
    true_state: bool = False,
) -> Envs:
    """Create N simulations of the domain or task in `config.id`."""
    config = resolve(config)
    _require_packages(config.id)
    if evaluation and not (config.count_states or render_height):  # coverage and videos need no reward
        require_task(config.id, "an evaluation needs one")
    pixels = config.dmc.observation == "pixels"
    here = config.backend == "sync" and not render_height  # worker processes give identical results
    renders = pixels or render_height > 0 or config.id.removeprefix(PREFIX) in NEED_GL
    if config.backend == "native" or (here and renders):
        remedy = "rendering needs worker processes" if here else "sync simulates in this process"
        raise ConfigError(
            f"env.backend = {config.backend!r} cannot be used with environment {config.id!r}: expected auto "
            f"or async; {remedy}"
        )
    processes = 0 if here else count_workers(num_envs)
    variables = NO_GL
    if renders:
        otherwise = "take env.dmc.observation = 'states'" if pixels else "record no video"
        variables = rendering_variables(config.id, otherwise, whole_cores() // processes)
    make = partial(make_checked, config, render_height, true_state)
    return DMControlEnvs(_simulate(make, config, num_envs, processes, variables), config, true_state)


def probe_dmc(config: EnvConfig) -> EnvSpec:
    """The spec of the environments, without rendering anything."""
    config, dmc = resolve(config), config.dmc
    _require_packages(config.id)
    plain = EnvConfig(config.id, backend=config.backend, timeout_s=config.timeout_s)
    observation, action = _spaces(resolve(plain))
    if dmc.observation == "pixels":
        observation = gym.spaces.Box(0, 255, (dmc.image_size, dmc.image_size, 3), np.uint8)
    return spec_of(observation, action, config.frame_stack)


@cache
def _spaces(config: EnvConfig) -> tuple[gym.Space, gym.Space]:
    """The spaces of a simulation, in its own process: importing dm_control depends on MUJOCO_GL."""
    make = partial(make_checked, config, 0, False)
    vector = _simulate(make, config, 1, 0 if config.backend == "sync" else 1, NO_GL)
    vector.close()
    return vector.single_observation_space, vector.single_action_space


def _simulate(
    make: MakeEnv, config: EnvConfig, num_envs: int, processes: int, variables: Mapping[str, str]
) -> ParallelVector | SyncVectorEnv:
    """Simulations in worker processes, or in this one."""
    if processes:
        return ParallelVector(
            make, num_envs, config.id, config.timeout_s, processes=processes, variables=variables
        )
    with warnings.catch_warnings():
        # About an OpenGL that this process never uses.
        warnings.filterwarnings("ignore", message=".*DISPLAY")
        makers = [partial(make, i) for i in range(num_envs)]
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)


def _require_packages(name: str) -> None:
    """Refuse an environment whose packages are missing or untested."""
    for package, (least, below) in PACKAGES.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise MissingExtraError(package, "dmc", f"environment {name!r}") from None
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])  # 1.0.50rc1 → (1, 0, 50)
        if not least <= numbers < below:
            wanted = f"{package}>={'.'.join(map(str, least))},<{below[0]}"
            raise ConfigError(
                f"environment {name!r} cannot be made with the untested {package} {version}: "
                f"pip install '{wanted}'"
            )


# Changes of MuJoCo's `vis.quality`. dm_control's models have shadow maps of 2048², 4 samples per pixel, and
# spheres of 28 slices and 16 stacks. At 84 × 84 pixels, `medium` differs by about 0.3 of 255 on average.
QUALITIES: dict[str, dict[str, int]] = {
    "default": {},
    "medium": {"shadowsize": 512, "numslices": 16, "numstacks": 8},
    "fast": {"shadowsize": 0, "offsamples": 0},
}
UNBOUNDED = 1e9  # the linear-quadratic regulators take any force: there, an action of ±1 means ±1 N


def make_checked(config: EnvConfig, view_size: int, true_state: bool, number: int) -> CheckedEnv:
    """Create environment `number`; its errors name the environment and the step."""
    with creating(config.id, number):
        from absl import logging

        logging.set_verbosity(logging.ERROR)  # silence warnings about the suite's own models
        return CheckedEnv(DMControl(config, view_size, true_state), EnvConfig(config.id), number)


class DMControl(gym.Env[np.ndarray, np.ndarray]):
    """A task of dm_control's suite or of `dmc_tasks`. A time-out truncates.

    Args:
        config: Its config, resolved.
        view_size: Size of rendered pictures; 0 for none.
        true_state: Whether to report qpos and qvel as `info["variables"]`.
    """

    def __init__(self, config: EnvConfig, view_size: int, true_state: bool) -> None:
        from voidrl.envs import dmc_tasks  # imports dm_control

        found, dmc = find_dmc_task(config.id), config.dmc
        assert found is not None
        self._env = env = dmc_tasks.load(found.domain, found.task or TASKS[found.domain][0], seed=0)
        self._repeat, self._measures = dmc.action_repeat, config.count_states
        self._camera_id, self._quality = CAMERAS.get(found.domain, 0), QUALITIES[dmc.render_quality]
        self._cameras: dict[int, tuple[Any, Any]] = {}  # by size: the model, and its camera
        self._image_size = image = dmc.image_size if dmc.observation == "pixels" else 0
        self._view_size = view = view_size
        self.render_mode = "rgb_array" if view else None
        rate = 1 / (env.control_timestep() * self._repeat)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": rate}
        if image or view:  # now, since some tasks render in their first reset
            self._prepare_rendering()
        self._reports_success = found.task is not None and hasattr(env.task, "succeeded")
        self._names = _variable_names(env.physics.model) if true_state else []
        action = env.action_spec()
        unbounded = (action.maximum - action.minimum) > UNBOUNDED
        low, high = np.where(unbounded, -1, action.minimum), np.where(unbounded, 1, action.maximum)
        self.action_space = gym.spaces.Box(low, high, dtype=np.float64)  # float64 keeps the exact bounds
        width = sum(math.prod(spec.shape) for spec in env.observation_spec().values())
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        if image:
            self.observation_space = gym.spaces.Box(0, 255, (image, image, 3), np.uint8)
        # Unread rewards and states cost up to a third of a step. They only read the physics.
        if found.task is None:
            env.task.get_reward = lambda physics: 0.0
        if image and hasattr(env.task, "get_observation"):  # the arm's tasks have observables
            env.task.get_observation = lambda physics: {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        if seed is not None:  # in place: gives the random numbers of an environment created with this seed
            random = self._env.random_state if hasattr(self._env, "random_state") else self._env.task.random
            random.seed(seed % 2**32)
        timestep = self._env.reset()
        return self._obs(timestep.observation), self._info(success=False)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take an action for `action_repeat` control steps, no longer than the episode."""
        env, reward = self._env, 0.0
        for _ in range(self._repeat):
            timestep = env.step(action)
            reward += timestep.reward or 0.0
            if timestep.last():
                break
        success = self._reports_success and bool(env.task.succeeded(env.physics))
        # A time-out bootstraps. A goal reached in the very last step has the discount of a time-out, so
        # success decides.
        over = bool(timestep.last())
        terminated = over and bool(timestep.discount == 0.0 or success)
        obs, info = self._obs(timestep.observation), self._info(success)
        return obs, float(reward), terminated, over and not terminated, info

    def render(self) -> np.ndarray:  # type: ignore[override]
        """A picture of `view_size`."""
        return self._camera(self._view_size).render()  # type: ignore[no-any-return]

    def _obs(self, observation: Any) -> np.ndarray:
        if size := self._image_size:
            return self._camera(size).render()  # type: ignore[no-any-return]
        return np.concatenate([np.ravel(value) for value in observation.values()], dtype=np.float32)

    def _info(self, success: bool) -> dict[str, Any]:
        info: dict[str, Any] = {"success": success} if self._reports_success else {}
        if self._measures:
            info["pose"] = measure_pose(self._env.physics)
        if self._names:
            data = self._env.physics.data
            values = np.concatenate([data.qpos, data.qvel]).tolist()
            info["variables"] = dict(zip(self._names, values, strict=True))
        return info

    def _camera(self, size: int) -> Any:
        """The camera, kept as long as its model: creating one costs more than rendering."""
        from dm_control.mujoco import Camera

        model = self._env.physics.model
        world, camera = self._cameras.get(size, (None, None))
        if world is not model.ptr:  # arms recompile their model for each episode
            self._prepare_rendering()
            camera = Camera(self._env.physics, size, size, self._camera_id)
            self._cameras[size] = (model.ptr, camera)
        return camera

    def _prepare_rendering(self) -> None:
        """Shrink the image buffer from 640 × 480, all of which would be cleared, before first use."""
        size = max(self._image_size, self._view_size)
        visual = self._env.physics.model.vis
        visual.global_.offwidth = visual.global_.offheight = size
        for name, value in self._quality.items():
            setattr(visual.quality, name, value)


def _variable_names(model: Any) -> list[str]:
    """A name for each number of `qpos` and `qvel`: `rootz`, `rootz_velocity`; `root_0` of several numbers."""
    positions: list[str] = []
    velocities: list[str] = []
    for joint in range(model.njnt):
        name, kind = model.id2name(joint, "joint") or f"joint_{joint}", int(model.jnt_type[joint])
        for found, suffix, width in (
            (positions, "", {FREE: 7, BALL: 4}.get(kind, 1)),
            (velocities, "_velocity", {FREE: 6, BALL: 3}.get(kind, 1)),
        ):
            found += [f"{name}{suffix}{f'_{i}' if width > 1 else ''}" for i in range(width)]
    return positions + velocities
