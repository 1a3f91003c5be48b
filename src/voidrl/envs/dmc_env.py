"""One dm_control simulation as a `gymnasium.Env`. Imports dm_control when it is created, and no torch."""

from __future__ import annotations

import math
from typing import Any, TypedDict

import gymnasium as gym
import numpy as np

from voidrl.envs.coverage import BALL, FREE, measure_pose
from voidrl.envs.single import CheckedEnv
from voidrl.envs.spaces import read_spaces

# Changes of MuJoCo's `vis.quality`. dm_control's models have shadow maps of 2048², 4 samples per pixel, and
# spheres of 28 slices and 16 stacks. At 84 × 84 pixels, `medium` differs by about 0.3 of 255 on average.
QUALITIES: dict[str, dict[str, int]] = {
    "default": {},
    "medium": {"shadowsize": 512, "numslices": 16, "numstacks": 8},
    "fast": {"shadowsize": 0, "offsamples": 0},
}
UNBOUNDED = 1e9  # the linear-quadratic regulators take any force: there, an action of ±1 means ±1 N


class DMControlSettings(TypedDict):
    """The settings of a simulation."""

    domain: str
    task: str
    rewarded: bool  # False: the reward is always 0
    action_repeat: int
    image_size: int  # 0 for states
    view_size: int  # of rendered pictures; 0 for none
    camera: int | str
    quality: str  # of rendering: a key of QUALITIES
    measures: bool  # whether to report the result of `coverage.measure_pose` as `info["pose"]`
    true_state: bool  # whether to report qpos and qvel as `info["variables"]`


def make_checked(settings: DMControlSettings, name: str, number: int) -> CheckedEnv:
    """Create environment `number`; its errors name the environment and the step."""
    try:
        from absl import logging

        logging.set_verbosity(logging.ERROR)  # silence warnings about the suite's own models
        env = DMControl(settings)
    except Exception as error:
        from voidrl.envs.failures import creation_failure

        raise creation_failure(error, name, number) from error
    reading = read_spaces(env.observation_space, env.action_space, 1)
    return CheckedEnv(env, name, number, reading)


class DMControl(gym.Env[np.ndarray, np.ndarray]):
    """A task of dm_control's suite or of `dmc_tasks`. A time-out truncates."""

    def __init__(self, settings: DMControlSettings) -> None:
        from voidrl.envs import dmc_tasks  # imports dm_control

        self._settings = settings
        self._env = env = dmc_tasks.load(settings["domain"], settings["task"], seed=0)
        self._repeat = settings["action_repeat"]
        self._cameras: dict[int, tuple[Any, Any]] = {}  # by size: the model, and its camera
        image, view = settings["image_size"], settings["view_size"]
        self.render_mode = "rgb_array" if view else None
        rate = 1 / (env.control_timestep() * self._repeat)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": rate}
        if image or view:  # now, since some tasks render in their first reset
            self._prepare_rendering()
        self._reports_success = settings["rewarded"] and hasattr(env.task, "succeeded")
        self._names = _variable_names(env.physics.model) if settings["true_state"] else []
        action = env.action_spec()
        unbounded = (action.maximum - action.minimum) > UNBOUNDED
        low, high = np.where(unbounded, -1, action.minimum), np.where(unbounded, 1, action.maximum)
        self.action_space = gym.spaces.Box(low, high, dtype=np.float64)  # float64 keeps the exact bounds
        width = sum(math.prod(spec.shape) for spec in env.observation_spec().values())
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        if image:
            self.observation_space = gym.spaces.Box(0, 255, (image, image, 3), np.uint8)
        # Unread rewards and states cost up to a third of a step. They only read the physics.
        if not settings["rewarded"]:
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
        return self._camera(self._settings["view_size"]).render()  # type: ignore[no-any-return]

    def _obs(self, observation: Any) -> np.ndarray:
        if size := self._settings["image_size"]:
            return self._camera(size).render()  # type: ignore[no-any-return]
        return np.concatenate([np.ravel(value) for value in observation.values()], dtype=np.float32)

    def _info(self, success: bool) -> dict[str, Any]:
        info: dict[str, Any] = {"success": success} if self._reports_success else {}
        if self._settings["measures"]:
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
            camera = Camera(self._env.physics, size, size, self._settings["camera"])
            self._cameras[size] = (model.ptr, camera)
        return camera

    def _prepare_rendering(self) -> None:
        """Shrink the image buffer from 640 × 480, all of which would be cleared, before first use."""
        size = max(self._settings["image_size"], self._settings["view_size"])
        visual = self._env.physics.model.vis
        visual.global_.offwidth = visual.global_.offheight = size
        for name, value in QUALITIES[self._settings["quality"]].items():
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
