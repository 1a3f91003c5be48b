"""DMControl: `dmc/walker_run`, and `dmc/walker` for the domain without a reward. Does not import torch.

docs/environments/dmcontrol.md describes the tasks and the differences from other setups.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
import warnings
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from voidrl.config import EnvConfig
from voidrl.envs.coverage import StateCounter, pose_bins
from voidrl.envs.dmc_env import DMControlSettings, make_checked
from voidrl.envs.gl import NO_GL, rendering_variables
from voidrl.envs.parallel import ParallelVector
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
        self, vector: ParallelVector | SyncVectorEnv, config: EnvConfig, *, true_state: bool = False
    ) -> None:
        super().__init__(
            vector, config.id, config.frame_stack, check_bounds=config.check_bounds, true_state=true_state
        )
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
    if evaluation and not (config.count_states or render_height):  # coverage and videos need no reward
        require_task(config.id, "an evaluation needs one")
    settings = _settings(config, render_height, true_state)
    here = config.backend == "sync" and not render_height  # worker processes give identical results
    renders = _renders(config, settings)
    if config.backend == "native" or (here and renders):
        remedy = "rendering needs worker processes" if here else "sync simulates in this process"
        raise ConfigError(
            f"env.backend = {config.backend!r} cannot be used with environment {config.id!r}: expected auto "
            f"or async; {remedy}"
        )
    processes = 0 if here else count_workers(num_envs)
    variables = NO_GL
    if renders:
        otherwise = "take another task"
        if config.dmc.observation == "pixels":
            otherwise = "take env.dmc.observation = 'states'"
        elif render_height:
            otherwise = "record no video"
        variables = rendering_variables(config.id, otherwise, whole_cores() // processes)
    vector = _simulate(settings, config, num_envs, processes, variables)
    return DMControlEnvs(vector, config, true_state=true_state)


def probe_dmc(config: EnvConfig) -> EnvSpec:
    """The spec of the environments, without rendering anything."""
    config = resolve(config)
    size = config.dmc.image_size if config.dmc.observation == "pixels" else 0
    plain = {**_settings(config), "image_size": 0, "measures": False}
    observation, action = _spaces(json.dumps(plain), config.id, config.backend == "sync", config.timeout_s)
    if size:
        observation = gym.spaces.Box(0, 255, (size, size, 3), np.uint8)
    return spec_of(observation, action, config.frame_stack)


@cache
def _spaces(settings: str, name: str, here: bool, timeout_s: float) -> tuple[gym.Space, gym.Space]:
    """The spaces of a simulation, in its own process: importing dm_control depends on MUJOCO_GL."""
    config = EnvConfig(name, timeout_s=timeout_s)
    vector = _simulate(json.loads(settings), config, 1, 0 if here else 1, NO_GL)
    vector.close()
    return vector.single_observation_space, vector.single_action_space


def _simulate(
    settings: DMControlSettings, config: EnvConfig, num_envs: int, processes: int, variables: Any
) -> ParallelVector | SyncVectorEnv:
    """Simulations in worker processes, or in this one."""
    make = partial(make_checked, settings, config.id)
    if processes:
        return ParallelVector(
            make, num_envs, config.id, config.timeout_s, processes=processes, variables=variables
        )
    with warnings.catch_warnings():
        # About an OpenGL that this process never uses.
        warnings.filterwarnings("ignore", message=".*DISPLAY")
        makers = [partial(make, i) for i in range(num_envs)]
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)


def _settings(config: EnvConfig, view_size: int = 0, true_state: bool = False) -> DMControlSettings:
    found, dmc = find_dmc_task(config.id), config.dmc
    assert found is not None
    _require_packages(config.id)
    return {
        "domain": found.domain,
        "task": found.task or TASKS[found.domain][0],
        "rewarded": found.task is not None,
        "action_repeat": dmc.action_repeat,
        "image_size": dmc.image_size if dmc.observation == "pixels" else 0,
        "view_size": view_size,
        "camera": CAMERAS.get(found.domain, 0),
        "quality": dmc.render_quality,
        "measures": config.count_states,
        "true_state": true_state,
    }


def _renders(config: EnvConfig, settings: DMControlSettings) -> bool:
    """Whether OpenGL is needed."""
    needs = config.id.removeprefix(PREFIX) in NEED_GL
    return bool(settings["image_size"] or settings["view_size"] or needs)


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
