"""dm_control simulations, some of N in one process, writing into shared arrays.

`Simulators` runs them in any process. `dmc.DMControlVector` also runs this file as a worker process, with the
arguments of `workers.ScriptWorker`. The worker first sends a description of its simulations as JSON, or the
error as `failed`. Then it reads messages, a letter (MAP, RESET, STEP or VIEW) with an argument, and answers
each with an error message, empty on success. The arrays are in a memory-mapped file shared with the parent.
"""

from __future__ import annotations

import json
import math
import mmap
import sys
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypedDict

import numpy as np

from voidrl.envs.coverage import BALL, FREE, measure
from voidrl.envs.workers import end_with_parent

MAP, RESET, STEP, VIEW = b"m", b"r", b"s", b"v"
ALIGNMENT = 64
# Changes of MuJoCo's `vis.quality`. dm_control's models have shadow maps of 2048², 4 samples per pixel, and
# spheres of 28 slices and 16 stacks. At 84 × 84 pixels, `medium` differs by about 0.3 of 255 on average.
QUALITIES: dict[str, dict[str, int]] = {
    "default": {},
    "medium": {"shadowsize": 512, "numslices": 16, "numstacks": 8},
    "fast": {"shadowsize": 0, "offsamples": 0},
}
UNBOUNDED = 1e9  # the linear-quadratic regulators take any force: there, an action of ±1 means ±1 N


class SimulatorSettings(TypedDict):
    """The settings of a group of simulations."""

    name: str  # the environment id, for error messages
    domain: str
    task: str
    rewarded: bool  # False: the reward is always 0
    action_repeat: int
    image_size: int  # 0 for states
    view_size: int  # of rendered pictures of environment 0; 0 for none
    renders: bool  # whether OpenGL is needed
    camera: int | str
    quality: str  # of rendering: a key of QUALITIES
    measures: bool  # whether to write the result of `coverage.measure` as well
    true_state: bool  # whether to write qpos and qvel as well
    first_env: int
    num_envs: int
    memory: int  # descriptor of the shared file; −1 for none


class Description(TypedDict):
    """The sizes and bounds of a simulation."""

    obs_dim: int  # width of the states
    action_low: list[float]
    action_high: list[float]
    reports_success: bool
    state_dim: int  # width of `coverage.measure`
    variables: list[str]  # names of qpos and qvel; empty unless `true_state`
    control_timestep_s: float


class Arrays(NamedTuple):
    """The shared arrays of N environments."""

    action: np.ndarray  # (N, A) float64, within the task's bounds
    obs: np.ndarray  # (N, d) float32 or (N, H, W, 3) uint8
    reward: np.ndarray  # (N,) float32
    terminated: np.ndarray  # (N,) bool
    truncated: np.ndarray  # (N,) bool
    success: np.ndarray  # (N,) bool
    state: np.ndarray  # (N, S) float64
    true_state: np.ndarray  # (N, V) float64: qpos and qvel
    view: np.ndarray  # (H, W, 3) uint8

    @classmethod
    def over(
        cls, num_envs: int, described: Description, settings: SimulatorSettings, memory: Any = None
    ) -> Arrays:
        """Views into `memory` of at least `size` bytes, or new arrays."""
        blocks = cls._blocks(num_envs, described, settings)
        if memory is None:
            return cls(*(np.zeros(shape, kind) for shape, kind in blocks))
        views, offset = [], 0
        for shape, kind in blocks:
            views.append(np.ndarray(shape, kind, memory, offset))
            offset += _aligned(views[-1].nbytes)
        return cls(*views)

    @classmethod
    def size(cls, num_envs: int, described: Description, settings: SimulatorSettings) -> int:
        """Bytes needed in `memory`."""
        blocks = cls._blocks(num_envs, described, settings)
        return sum(_aligned(math.prod(shape) * np.dtype(kind).itemsize) for shape, kind in blocks)

    @staticmethod
    def _blocks(
        n: int, described: Description, settings: SimulatorSettings
    ) -> list[tuple[tuple[int, ...], type]]:
        image_size, view_size = settings["image_size"], settings["view_size"]
        frame = (image_size, image_size, 3) if image_size else (described["obs_dim"],)
        return [
            ((n, len(described["action_low"])), np.float64),
            ((n, *frame), np.uint8 if image_size else np.float32),
            ((n,), np.float32),
            ((n,), np.bool_),
            ((n,), np.bool_),
            ((n,), np.bool_),
            ((n, described["state_dim"]), np.float64),
            ((n, len(described["variables"])), np.float64),
            ((view_size, view_size, 3), np.uint8),
        ]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class SimulationError(Exception):
    """An environment raised; the message is one sentence."""


class Simulators:
    """Some of N environments, stepped one by one; the step after an episode's end resets it."""

    def __init__(self, settings: SimulatorSettings) -> None:
        from voidrl.envs import dmc_tasks  # imports dm_control

        self.settings = settings
        self.arrays: Arrays | None = None
        self.envs = [
            dmc_tasks.load(settings["domain"], settings["task"], seed=0) for _ in range(settings["num_envs"])
        ]
        self.cameras: dict[tuple[int, int], tuple[Any, Any]] = {}  # by environment and size
        self.ended = np.zeros(len(self.envs), bool)
        self.steps = np.zeros(len(self.envs), np.int64)
        self.reports_success = settings["rewarded"] and hasattr(self.envs[0].task, "succeeded")
        if settings["image_size"] or settings["view_size"]:
            for env in self.envs:  # now, since some tasks render in their first reset
                _prepare_rendering(env.physics.model, settings)
        self.described = self._describe()
        for env in self.envs:
            _skip_unread(env.task, settings)

    def _describe(self) -> Description:
        """Sizes and bounds, shared by all of them."""
        env = self.envs[0]
        action, observed = env.action_spec(), env.observation_spec()
        unbounded = (action.maximum - action.minimum) > UNBOUNDED
        return {
            "obs_dim": sum(math.prod(spec.shape) for spec in observed.values()),
            "action_low": np.where(unbounded, -1.0, action.minimum).tolist(),
            "action_high": np.where(unbounded, 1.0, action.maximum).tolist(),
            "reports_success": self.reports_success,
            "state_dim": len(measure(env.physics)) if self.settings["measures"] else 0,
            "variables": variable_names(env.physics.model) if self.settings["true_state"] else [],
            "control_timestep_s": float(env.control_timestep()),
        }

    def reset(self, seed: int) -> None:
        """Start new episodes; environment i of N is seeded with seed + i."""
        for i, env in enumerate(self.envs):
            # Seeding in place gives the random numbers of an environment created with this seed.
            random = env.random_state if hasattr(env, "random_state") else env.task.random
            random.seed((seed + self.settings["first_env"] + i) % 2**32)
            self._guarded(i, self._begin)

    def step(self) -> None:
        """Step each environment once, with the actions in the arrays."""
        for i, ended in enumerate(self.ended):
            self._guarded(i, self._begin if ended else self._advance)

    def view(self) -> None:
        """Render environment 0 of N, if it is one of these."""
        if self.settings["first_env"] == 0:
            self._guarded(0, self._draw)

    def _draw(self, i: int) -> None:
        assert self.arrays is not None
        self.arrays.view[:] = self._camera(i, self.settings["view_size"]).render()

    def _guarded(self, i: int, call: Any) -> None:
        try:
            call(i)
        except Exception as error:
            env, name = self.settings["first_env"] + i, self.settings["name"]
            raise SimulationError(
                f"environment {env} ({name!r}) raised {error!r} at its own step {self.steps[i]}"
            ) from error

    def _begin(self, i: int) -> None:
        timestep = self.envs[i].reset()
        self._write(i, timestep.observation, 0.0, terminated=False, truncated=False, success=False)

    def _advance(self, i: int) -> None:
        assert self.arrays is not None
        env, reward, action = self.envs[i], 0.0, self.arrays.action[self.settings["first_env"] + i]
        self.steps[i] += 1
        for _ in range(self.settings["action_repeat"]):
            timestep = env.step(action)
            reward += timestep.reward or 0.0
            if timestep.last():
                break
        success = self.reports_success and bool(env.task.succeeded(env.physics))
        # A time-out bootstraps. A goal reached in the very last step has the discount of a time-out, so
        # success decides.
        over = timestep.last()
        terminated = over and (timestep.discount == 0.0 or success)
        self._write(
            i,
            timestep.observation,
            reward if self.settings["rewarded"] else 0.0,
            terminated=terminated,
            truncated=over and not terminated,
            success=success,
        )

    def _write(
        self, i: int, observation: Any, reward: float, *, terminated: bool, truncated: bool, success: bool
    ) -> None:
        assert self.arrays is not None, "`arrays` must be set before the first reset"
        arrays, at = self.arrays, self.settings["first_env"] + i
        arrays.reward[at], arrays.terminated[at], arrays.truncated[at] = reward, terminated, truncated
        arrays.success[at] = success
        self.ended[i] = terminated or truncated
        if self.settings["image_size"]:
            arrays.obs[at] = self._camera(i, self.settings["image_size"]).render()
        else:
            arrays.obs[at] = np.concatenate([np.ravel(value) for value in observation.values()])
        if self.settings["measures"]:
            arrays.state[at] = measure(self.envs[i].physics)
        if self.settings["true_state"]:
            data = self.envs[i].physics.data
            arrays.true_state[at] = np.concatenate([data.qpos, data.qvel])

    def _camera(self, i: int, size: int) -> Any:
        """The camera of an environment, kept as long as its model: creating one costs more than rendering."""
        from dm_control.mujoco import Camera

        model = self.envs[i].physics.model
        world, camera = self.cameras.get((i, size), (None, None))
        if world is not model.ptr:  # arms recompile their model for each episode
            _prepare_rendering(model, self.settings)
            camera = Camera(self.envs[i].physics, size, size, self.settings["camera"])
            self.cameras[i, size] = (model.ptr, camera)
        return camera


def variable_names(model: Any) -> list[str]:
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


def _skip_unread(task: Any, settings: SimulatorSettings) -> None:
    """Compute no rewards for a body without a task, and no states for images: up to a third of a step.

    Both only read the physics, in dm_control's tasks and in ours.
    """
    if not settings["rewarded"]:
        task.get_reward = lambda physics: 0.0
    if settings["image_size"] and hasattr(task, "get_observation"):  # the arm's tasks have observables
        task.get_observation = lambda physics: {}


def _prepare_rendering(model: Any, settings: SimulatorSettings) -> None:
    """Shrink the image buffer from 640 × 480, all of which would be cleared and sampled, before first use."""
    size = max(settings["image_size"], settings["view_size"])
    model.vis.global_.offwidth = model.vis.global_.offheight = size
    for name, value in QUALITIES[settings["quality"]].items():
        setattr(model.vis.quality, name, value)


def main(descriptor: int, parent: int, thread: int, settings: SimulatorSettings) -> None:
    """Simulate until the parent closes the pipe or kills this process."""
    end_with_parent(parent, thread)
    from absl import logging

    logging.set_verbosity(logging.ERROR)  # silence warnings about the suite's own models
    pipe: Connection = Connection(descriptor)
    try:
        try:
            simulators = Simulators(settings)
            described = simulators.described
        except Exception as error:
            pipe.send_bytes(json.dumps({"failed": f"raised {error!r}"}).encode())
            return
        pipe.send_bytes(json.dumps(described).encode())
        while True:
            message = pipe.recv_bytes()
            sentence = ""
            try:
                if message[:1] == MAP:
                    memory = mmap.mmap(settings["memory"], 0)
                    num_envs = int(message[1:])
                    simulators.arrays = Arrays.over(num_envs, described, settings, memory)
                elif message[:1] == RESET:
                    simulators.reset(int(message[1:]))
                elif message[:1] == VIEW:
                    simulators.view()
                else:
                    simulators.step()
            except SimulationError as error:
                sentence = str(error)
            pipe.send_bytes(sentence.encode())
    except (EOFError, ConnectionError):
        pass  # the parent is gone


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
