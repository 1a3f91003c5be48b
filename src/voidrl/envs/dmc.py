"""DMControl: `dmc/walker_run`, and `dmc/walker` for the domain without a reward. Does not import torch.

docs/environments/dmcontrol.md describes the tasks and the differences from other setups.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
import warnings
from functools import cache
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from voidrl.config import EnvConfig
from voidrl.envs import dmc_worker
from voidrl.envs.coverage import PhysicsCoverage
from voidrl.envs.dmc_rendering import Rendering, choose_rendering, no_rendering
from voidrl.envs.dmc_worker import (
    MAP,
    RESET,
    STEP,
    VIEW,
    Arrays,
    Description,
    SimulationError,
    Simulators,
    SimulatorSettings,
)
from voidrl.envs.failures import raised
from voidrl.envs.memory import allocate, shared_file
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
from voidrl.envs.variables import Variable
from voidrl.envs.vector import Envs, StepResult
from voidrl.envs.workers import ScriptWorker, WorkerLostError, kill_with
from voidrl.errors import ConfigError, EnvironmentFailedError, MissingExtraError
from voidrl.system.machine import whole_cores
from voidrl.types import EnvSpec

# The first version of each package, and the first that is too new, as in pyproject.toml.
PACKAGES = {"dm-control": ((1, 0, 50), (2,)), "mujoco": ((3, 17), (4,))}


class DMControlVector(VectorEnv):
    """N simulations of one task, in worker processes or in this one."""

    def __init__(
        self, settings: SimulatorSettings, processes: int, timeout_s: float, rendering: Rendering
    ) -> None:
        self.num_envs = settings["num_envs"]
        self._name, self._timeout_s = settings["name"], timeout_s
        self._workers: list[_SimulationWorker] = []
        self._end = kill_with(self, self._workers)
        self._own: Simulators | None = None
        self._steps = 0
        if processes:
            described = self._start_workers(settings, processes, rendering)
        else:
            described = self._start_here(settings)
        self.described = described
        self.single_observation_space, self.single_action_space = _spaces(described, settings)
        rate = 1 / (described["control_timestep_s"] * settings["action_repeat"])
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_fps": rate}
        self.render_mode = "rgb_array" if settings["view_size"] else None

    def _start_here(self, settings: SimulatorSettings) -> Description:
        self._own = _simulate_here(settings)
        described = self._own.described
        self.arrays = self._own.arrays = Arrays.over(self.num_envs, described, settings)
        return described

    def _start_workers(
        self, settings: SimulatorSettings, processes: int, rendering: Rendering
    ) -> Description:
        with shared_file() as file:
            for envs in np.array_split(np.arange(self.num_envs), processes):
                part: SimulatorSettings = {
                    **settings, "first_env": int(envs[0]), "num_envs": len(envs), "memory": file.fileno(),
                }  # fmt: skip
                self._workers.append(_SimulationWorker(part, file.fileno(), rendering))
            answers = [json.loads(text) for text in self._answers("when it started")]
            for answer in answers:
                if "failed" in answer:
                    self._fail(_not_made(self._name, answer["failed"]))
            described: Description = answers[0]
            memory = allocate(file, Arrays.size(self.num_envs, described, settings), self._name)
            self._send_all(MAP + str(self.num_envs).encode())
            self._await_answers()
        self.arrays = Arrays.over(self.num_envs, described, settings, memory)
        return described

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start new episodes; environment i is seeded with seed + i."""
        start = int(np.random.default_rng().integers(2**31)) if seed is None else int(seed)
        if self._own is not None:
            self._call_here(lambda own: own.reset(start))
        else:
            self._send_all(RESET + str(start).encode())
            self._await_answers()
        return self.arrays.obs.copy(), {}

    def send(self, action: np.ndarray) -> None:
        """Start one step of each simulation."""
        self.arrays.action[:] = action
        self._steps += 1
        self._send_all(STEP)

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Wait for the results of the step."""
        if self._own is not None:
            self._call_here(Simulators.step)
        else:
            self._await_answers()
        arrays = self.arrays
        info = {"success": arrays.success.copy()} if self.described["reports_success"] else {}
        results = (arrays.obs, arrays.reward, arrays.terminated, arrays.truncated)
        obs, reward, terminated, truncated = (array.copy() for array in results)
        return obs, reward, terminated, truncated, info

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step every simulation once."""
        self.send(actions)
        return self.recv()

    def render(self) -> tuple[np.ndarray]:  # type: ignore[override]
        """A picture of environment 0; needs a `view_size`."""
        self._send_all(VIEW)
        self._await_answers()
        return (self.arrays.view.copy(),)

    def close_extras(self, **kwargs: Any) -> None:
        """End the worker processes."""
        self._end()
        self._own = None

    def _call_here(self, call: Any) -> None:
        try:
            call(self._own)
        except SimulationError as error:
            raise EnvironmentFailedError(str(error)) from error

    def _send_all(self, message: bytes) -> None:
        for worker in self._workers:
            try:
                worker.send(message, self._timeout_s)
            except WorkerLostError as lost:
                self._lost(worker, lost, f"at its step {self._steps}")

    def _await_answers(self) -> None:
        for sentence in self._answers(f"at its step {self._steps}"):
            if sentence:
                self._fail(sentence)

    def _answers(self, when: str) -> list[str]:
        """One answer from each worker, in order; fails for a worker that is dead or too slow."""
        answers = []
        for worker in self._workers:
            try:
                answers.append(worker.receive(self._timeout_s).decode())
            except WorkerLostError as lost:
                self._lost(worker, lost, when)
        return answers

    def _lost(self, worker: _SimulationWorker, lost: WorkerLostError, when: str) -> NoReturn:
        self._fail(f"{lost}, while it simulated environment {self._name!r} ({worker.envs}) {when}")

    def _fail(self, sentence: str) -> NoReturn:
        self._end()
        raise EnvironmentFailedError(sentence) from None


class _SimulationWorker(ScriptWorker):
    """A worker that simulates some of the environments."""

    def __init__(self, settings: SimulatorSettings, memory: int, rendering: Rendering) -> None:
        super().__init__(dmc_worker.__file__, settings, (memory,), rendering.variables)
        first, last = settings["first_env"], settings["first_env"] + settings["num_envs"] - 1
        self.envs = f"number {first}" if first == last else f"numbers {first} to {last}"


class DMControlEnvs(Envs):
    """N simulations with frames and actions in [−1, 1], and optional state coverage."""

    vector: DMControlVector
    _counter: PhysicsCoverage | None = None

    def __init__(
        self, vector: DMControlVector, config: EnvConfig, *, true_state: bool = False, notice: str = ""
    ) -> None:
        super().__init__(
            vector, config.id, config.frame_stack, check_bounds=config.check_bounds, true_state=true_state
        )
        if notice:
            self.reading = self.reading._replace(notices=(*self.reading.notices, notice))
        # A body's actuators move all of its joints, if only through one another.
        names = vector.described["variables"]
        self._variables = tuple(Variable(name, controllable=True, discrete=False) for name in names)
        self.frames_per_step = config.dmc.action_repeat
        if config.count_states:
            found = find_dmc_task(config.id)
            assert found is not None
            self._counter = PhysicsCoverage(found.domain, vector.described["state_dim"])

    @property
    def counter(self) -> PhysicsCoverage | None:
        """The measure of visited states."""
        return self._counter

    def send(self, action: np.ndarray) -> None:
        """Start one step of each simulation."""
        self._guarded(lambda: self.vector.send(self._env_action(action)))

    def recv(self, counted: np.ndarray | None = None) -> StepResult:
        """Wait for the results of the step."""
        real = ~self._resets
        result = self._result(self._guarded(self.vector.recv))
        if self._counter is not None:
            if counted is not None:
                real &= counted
            self._counter.add(self.vector.arrays.state[real])
        return result

    def _read_state(self, info: dict[str, Any]) -> None:
        """The physics state after a reset or step."""
        self._state = self.vector.arrays.true_state.copy()


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
    device: str = "auto",
) -> Envs:
    """Create N simulations of the domain or task in `config.id`, for networks on `device`."""
    config = resolve(config)
    if evaluation and not (config.count_states or render_height):  # coverage and videos need no reward
        require_task(config.id, "an evaluation needs one")
    settings = _settings(config, num_envs, render_height, true_state)
    here = config.backend == "sync" and not render_height  # worker processes give identical results
    if config.backend == "native" or (here and settings["renders"]):
        remedy = "rendering needs worker processes" if here else "sync simulates in this process"
        raise ConfigError(
            f"env.backend = {config.backend!r} cannot be used with environment {config.id!r}: expected auto "
            f"or async; {remedy}"
        )
    processes = 0 if here else min(whole_cores(), num_envs)
    rendering = no_rendering()
    if settings["renders"]:
        rendering = choose_rendering(config.id, config.dmc, processes, device, _without_gl(settings))
    vector = DMControlVector(settings, processes, config.timeout_s, rendering)
    return DMControlEnvs(vector, config, true_state=true_state, notice=rendering.notice)


def probe_dmc(config: EnvConfig) -> EnvSpec:
    """The spec of the environments, without rendering anything."""
    settings = _settings(resolve(config), 1)
    plain: SimulatorSettings = {**settings, "image_size": 0, "renders": False, "measures": False}
    described = _described(json.dumps(plain), config.backend == "sync", config.timeout_s)
    return spec_of(*_spaces(described, settings), config.frame_stack)


@cache
def _described(settings: str, here: bool, timeout_s: float) -> Description:
    """Describe a simulation, in its own process: importing dm_control depends on MUJOCO_GL."""
    vector = DMControlVector(json.loads(settings), 0 if here else 1, timeout_s, no_rendering())
    vector.close()
    return vector.described


def _settings(
    config: EnvConfig, num_envs: int, view_size: int = 0, true_state: bool = False
) -> SimulatorSettings:
    found, dmc = find_dmc_task(config.id), config.dmc
    assert found is not None
    _require_packages(config.id)
    return {
        "name": config.id,
        "domain": found.domain,
        "task": found.task or TASKS[found.domain][0],
        "rewarded": found.task is not None,
        "action_repeat": dmc.action_repeat,
        "image_size": dmc.image_size if dmc.observation == "pixels" else 0,
        "view_size": view_size,
        "renders": dmc.observation == "pixels" or view_size > 0 or found.name in NEED_GL,
        "camera": CAMERAS.get(found.domain, 0),
        "quality": dmc.render_quality,
        "measures": config.count_states,
        "true_state": true_state,
        "first_env": 0,
        "num_envs": num_envs,
        "memory": -1,
    }


def _without_gl(settings: SimulatorSettings) -> str:
    """The remedy for a user without OpenGL."""
    if settings["image_size"]:
        return "take env.dmc.observation = 'states'"
    return "record no video" if settings["view_size"] else "take another task"


def _simulate_here(settings: SimulatorSettings) -> Simulators:
    try:
        with warnings.catch_warnings():
            # About an OpenGL that this process never uses.
            warnings.filterwarnings("ignore", message=".*DISPLAY")
            return Simulators(settings)
    except Exception as error:
        raise EnvironmentFailedError(_not_made(settings["name"], raised(error))) from error


def _not_made(name: str, raised_what: str) -> str:
    return f"environment {name!r} {raised_what} when it was created"


def _spaces(described: Description, settings: SimulatorSettings) -> tuple[gym.spaces.Box, gym.spaces.Box]:
    """The spaces of observations and actions."""
    image_size = settings["image_size"]
    low, high = np.array(described["action_low"]), np.array(described["action_high"])
    action = gym.spaces.Box(low, high, dtype=np.float64)  # float64 keeps the exact bounds
    if image_size:
        return gym.spaces.Box(0, 255, (image_size, image_size, 3), np.uint8), action
    return gym.spaces.Box(-np.inf, np.inf, (described["obs_dim"],), np.float32), action


def _require_packages(name: str) -> None:
    """Refuse an environment whose packages are missing or untested."""
    for package, (least, below) in PACKAGES.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise MissingExtraError(package, "dmc", f"environment {name!r}") from None
        if not least <= _numbers(version) < below:
            wanted = f"{package}>={'.'.join(map(str, least))},<{below[0]}"
            raise ConfigError(
                f"environment {name!r} cannot be made with the untested {package} {version}: "
                f"pip install '{wanted}'"
            )


def _numbers(version: str) -> tuple[int, ...]:
    """1.0.50rc1 → (1, 0, 50)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
