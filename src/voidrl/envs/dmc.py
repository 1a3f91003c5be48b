"""DMControl: `dmc/walker_run`, and `dmc/walker` for the domain without a reward. Does not import torch.

What each task is, and how this differs from other set-ups, stands in docs/environments/dmcontrol.md.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import mmap
import os
import re
import tempfile
import warnings
import weakref
from functools import cache
from multiprocessing.connection import wait
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from voidrl.config import EnvConfig
from voidrl.envs import dmc_worker
from voidrl.envs.coverage import PhysicsCoverage
from voidrl.envs.dmc_worker import (
    MAP,
    RESET,
    STEP,
    VIEW,
    Arrays,
    Description,
    Settings,
    SimulationError,
    Simulators,
)
from voidrl.envs.gl import find_gl
from voidrl.envs.ids import DMC
from voidrl.envs.vector import Envs, StepResult
from voidrl.envs.workers import Worker, end
from voidrl.errors import ConfigError, EnvironmentFailedError, MissingExtraError
from voidrl.machine import whole_cores
from voidrl.spaces import spec_of
from voidrl.suites.dmcontrol import (
    CAMERAS,
    NEED_GL,
    PIXELS_REPEAT,
    REPEATS,
    STATES_REPEAT,
    TASKS,
    find_place,
    require_task,
)
from voidrl.types import EnvSpec

SHARED = "/dev/shm"
WAIT_S = 1.0  # between two looks at whether a worker is still waited for
PACKAGES = {"dm-control": ((1, 0, 50), (2,)), "mujoco": ((3, 17), (4,))}  # as in pyproject.toml


class DMControlVector(VectorEnv):
    """N simulations of one task, in processes of their own or in this one."""

    def __init__(self, settings: Settings, processes: int, timeout_s: float) -> None:
        self.num_envs = settings["num_envs"]
        self._name, self._timeout_s = settings["name"], timeout_s
        self._workers: list[_Simulation] = []
        self._end = weakref.finalize(self, end, self._workers, os.getpid())  # also at exit
        self._own: Simulators | None = None
        self._steps = 0
        if processes:
            described = self._start(settings, min(processes, self.num_envs))
        else:
            described = self._begin_here(settings)
        self.described = described
        self.single_observation_space, self.single_action_space = _spaces(described, settings)
        rate = 1 / (described["control_timestep_s"] * settings["action_repeat"])
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_fps": rate}
        self.render_mode = "rgb_array" if settings["view_size"] else None

    def _begin_here(self, settings: Settings) -> Description:
        self._own = _simulate_here(settings)
        described = self._own.describe()
        self.arrays = self._own.arrays = Arrays.over(self.num_envs, described, settings)
        return described

    def _start(self, settings: Settings, processes: int) -> Description:
        environment = {"MUJOCO_GL": _gl_for(settings)}
        # A file without a name, in memory, that is gone with the last process that has it.
        with tempfile.TemporaryFile(dir=SHARED if os.access(SHARED, os.W_OK) else None) as file:
            for envs in np.array_split(np.arange(self.num_envs), processes):
                part: Settings = {
                    **settings, "first_env": int(envs[0]), "num_envs": len(envs), "memory": file.fileno(),
                }  # fmt: skip
                self._workers.append(_Simulation(part, file.fileno(), environment))
            answers = [json.loads(text) for text in self._answers("was being made")]
            for answer in answers:
                if "failed" in answer:
                    self._fail(_not_made(self._name, answer["failed"]))
            described: Description = answers[0]
            size = Arrays.size(self.num_envs, described, settings)
            file.truncate(size)
            memory = mmap.mmap(file.fileno(), size)
            self._tell(MAP + str(self.num_envs).encode())
            self._await()
        self.arrays = Arrays.over(self.num_envs, described, settings, memory)
        return described

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes; environment i is seeded with seed + i."""
        start = int(np.random.default_rng().integers(2**31)) if seed is None else int(seed)
        if self._own is not None:
            self._here(lambda own: own.reset(start))
        else:
            self._tell(RESET + str(start).encode())
            self._await()
        return self.arrays.obs.copy(), {}

    def send(self, action: np.ndarray) -> None:
        """Begin one step of each."""
        self.arrays.action[:] = action
        self._steps += 1
        self._tell(STEP)

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """What came of it."""
        if self._own is not None:
            self._here(Simulators.step)
        else:
            self._await()
        arrays = self.arrays
        info = {"success": arrays.success.copy()} if self.described["tells_success"] else {}
        return (
            arrays.obs.copy(),
            arrays.reward.copy(),
            arrays.terminated.copy(),
            arrays.truncated.copy(),
            info,
        )

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of each."""
        self.send(actions)
        return self.recv()

    def render(self) -> tuple[np.ndarray]:  # type: ignore[override]
        """A picture of environment 0, for those made with a `view_size`."""
        self._tell(VIEW)
        self._await()
        return (self.arrays.view.copy(),)

    def close_extras(self, **kwargs: Any) -> None:
        """End the processes."""
        self._end()
        self._own = None

    def _here(self, call: Any) -> None:
        try:
            call(self._own)
        except SimulationError as error:
            raise EnvironmentFailedError(str(error)) from error

    def _tell(self, message: bytes) -> None:
        for worker in self._workers:
            try:
                worker.pipe.send_bytes(message)
            except OSError:
                self._lost(worker)

    def _await(self) -> None:
        for sentence in self._answers(f"was at its step {self._steps}"):
            if sentence:
                self._fail(sentence)

    def _answers(self, doing: str) -> list[str]:
        """One from each, in their order, or who gives none."""
        waiting, found = {worker.pipe: worker for worker in self._workers}, {}
        waited = 0.0
        while waiting:
            # Counted in small parts and not by the clock, which goes on while a run is suspended.
            part = min(WAIT_S, self._timeout_s)
            ready = wait([*waiting], part)
            waited = 0.0 if ready else waited + part
            if waited >= self._timeout_s:
                worker = next(iter(waiting.values()))
                self._fail(
                    f"worker process {worker.process.pid} of environment {self._name!r} ({worker.envs}) has "
                    f"given no answer for {self._timeout_s:g} s, as long as env.dmc.timeout_s says, while it "
                    f"{doing}"
                )
            for pipe in ready:
                worker = waiting.pop(pipe)  # type: ignore[call-overload]
                try:
                    found[worker] = worker.pipe.recv_bytes().decode()
                except (EOFError, OSError):
                    self._lost(worker)
        return [found[worker] for worker in self._workers]

    def _lost(self, worker: _Simulation) -> NoReturn:
        self._fail(f"{worker.death()}, which simulated environment {self._name!r} ({worker.envs})")

    def _fail(self, sentence: str) -> NoReturn:
        self._end()
        raise EnvironmentFailedError(sentence) from None


class _Simulation(Worker):
    """A worker that simulates some of the environments."""

    def __init__(self, settings: Settings, memory: int, environment: dict[str, str]) -> None:
        super().__init__(dmc_worker.__file__, settings, (memory,), environment)
        first, last = settings["first_env"], settings["first_env"] + settings["num_envs"] - 1
        self.envs = f"number {first}" if first == last else f"numbers {first} to {last}"


class DMControlEnvs(Envs):
    """N simulations as frames and [−1, 1] actions; they measure what they visit where that is asked for."""

    vector: DMControlVector
    _counter: PhysicsCoverage | None = None

    def __init__(self, vector: DMControlVector, config: EnvConfig) -> None:
        super().__init__(vector, config.id, config.frame_stack)
        self._watched = np.arange(self.num_envs) < (config.counted_envs or self.num_envs)
        self.frames_per_step = config.dmc.action_repeat
        if config.count_states:
            place = find_place(config.id)
            assert place is not None
            self._counter = PhysicsCoverage(place.domain, vector.described["state_dim"])
        self._ended = np.zeros(self.num_envs, bool)

    @property
    def counter(self) -> PhysicsCoverage | None:
        """What measures which states are visited."""
        return self._counter

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes; environment i is seeded with seed + i."""
        self._ended[:] = False
        return super().reset(seed)

    def send(self, action: np.ndarray) -> None:
        """Begin one step of each."""
        self._guarded(lambda: self.vector.send(self._env_action(action)))

    def recv(self, counted: np.ndarray | None = None) -> StepResult:
        """What came of it."""
        result = self._result(self._guarded(self.vector.recv))
        if self._counter is not None:
            real = self._watched & ~self._ended & (True if counted is None else counted)
            self._counter.add(self.vector.arrays.state[real])
        self._ended = result.ended & ~self._ended
        return result


def resolve(config: EnvConfig) -> EnvConfig:
    """What is left to the domain, written down, and its name as it is spelled."""
    place, dmc = find_place(config.id), config.dmc
    if place is None:
        return config
    pixels = dmc.observation == "pixels"
    own = REPEATS.get(place.domain, PIXELS_REPEAT) if pixels else STATES_REPEAT
    dmc = dataclasses.replace(dmc, action_repeat=dmc.action_repeat or own)
    return dataclasses.replace(config, id=f"{DMC}{place.name}", dmc=dmc)


def make_dmc(config: EnvConfig, num_envs: int, *, evaluation: bool, render_height: int = 0) -> Envs:
    """N simulations of the domain or task that `config.id` names."""
    config = resolve(config)
    if evaluation and not (config.count_states or render_height):  # what can be measured or seen without one
        require_task(config.id, "an evaluation needs one")
    settings = _settings(config, num_envs, render_height)
    here = config.backend == "sync" and not render_height  # elsewhere they do just the same
    if config.backend == "native" or (here and settings["renders"]):
        remedy = "what is rendered is simulated in processes of its own" if here else "sync is this process"
        raise ConfigError(
            f"env.backend = {config.backend!r} cannot be used with environment {config.id!r}: expected auto "
            f"or async; {remedy}"
        )
    processes = 0 if here else config.dmc.processes or whole_cores()
    return DMControlEnvs(DMControlVector(settings, processes, config.dmc.timeout_s), config)


def probe_dmc(config: EnvConfig) -> EnvSpec:
    """What the environments will look like, without rendering anything."""
    settings = _settings(resolve(config), 1)
    plain: Settings = {**settings, "image_size": 0, "renders": False, "measured": False}
    described = _described(json.dumps(plain), config.backend == "sync", config.dmc.timeout_s)
    return spec_of(*_spaces(described, settings), config.frame_stack)


@cache
def _described(settings: str, here: bool, timeout_s: float) -> Description:
    """Looked at in a process of its own: what dm_control does when it is imported depends on MUJOCO_GL."""
    vector = DMControlVector(json.loads(settings), 0 if here else 1, timeout_s)
    vector.close()
    return vector.described


def _settings(config: EnvConfig, num_envs: int, view_size: int = 0) -> Settings:
    place, dmc = find_place(config.id), config.dmc
    assert place is not None
    _require_dm_control(config.id)
    return {
        "name": config.id,
        "domain": place.domain,
        "task": place.task or TASKS[place.domain][0],
        "rewarded": place.task is not None,
        "action_repeat": dmc.action_repeat,
        "image_size": dmc.image_size if dmc.observation == "pixels" else 0,
        "view_size": view_size,
        "renders": dmc.observation == "pixels" or view_size > 0 or place.name in NEED_GL,
        "camera": CAMERAS.get(place.domain, 0) if dmc.camera == -1 else dmc.camera,
        "fast": dmc.render_quality == "fast",
        "measured": config.count_states,
        "first_env": 0,
        "num_envs": num_envs,
        "memory": -1,
    }


def _gl_for(settings: Settings) -> str:
    if not settings["renders"]:
        return "disabled"
    if settings["view_size"] and not settings["image_size"]:
        return find_gl(settings["name"], otherwise="do without a video")
    return find_gl(settings["name"])


def _simulate_here(settings: Settings) -> Simulators:
    try:
        with warnings.catch_warnings():
            # Of an OpenGL that this process never uses.
            warnings.filterwarnings("ignore", message=".*DISPLAY")
            return Simulators(settings)
    except Exception as error:
        raise EnvironmentFailedError(_not_made(settings["name"], repr(error))) from error


def _not_made(name: str, error: str) -> str:
    return f"environment {name!r} raised {error} when it was made"


def _spaces(described: Description, settings: Settings) -> tuple[gym.spaces.Box, gym.spaces.Box]:
    """Of observations and actions."""
    image_size, camera, cameras = settings["image_size"], settings["camera"], described["cameras"]
    drawn = image_size or settings["view_size"]
    if drawn and camera not in (*cameras, *range(len(cameras))):
        known = ", ".join(f"{i} ({name})" for i, name in enumerate(cameras))
        raise ConfigError(
            f"env.dmc.camera = {camera!r} cannot be used with environment {settings['name']!r}: "
            f"expected {known}"
        )
    low, high = np.array(described["action_low"]), np.array(described["action_high"])
    action = gym.spaces.Box(low, high, dtype=np.float64)  # the bounds to the last bit
    if image_size:
        return gym.spaces.Box(0, 255, (image_size, image_size, 3), np.uint8), action
    return gym.spaces.Box(-np.inf, np.inf, (described["obs_dim"],), np.float32), action


def _require_dm_control(name: str) -> None:
    if any(importlib.util.find_spec(module) is None for module in ("dm_control", "mujoco")):
        raise MissingExtraError("dm-control", "dmc", f"environment {name!r}")
    for package, (least, below) in PACKAGES.items():
        version = importlib.metadata.version(package)
        if not least <= _numbers(version) < below:
            wanted = f"{package}>={'.'.join(map(str, least))},<{below[0]}"
            raise ConfigError(
                f"environment {name!r} cannot be made with {package} {version}, which it was not tried with: "
                f"pip install '{wanted}'"
            )


def _numbers(version: str) -> tuple[int, ...]:
    """1.0.50rc1 → (1, 0, 50)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
