"""One interface to N environments, whatever is behind it. Does not import torch.

All of them autoreset on the *next* step (Gymnasium's NEXT_STEP): the step after an episode's end ignores the
action and returns the new episode's first frame. The replay knows and records no transition for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from voidrl.config import EnvConfig
from voidrl.envs.spaces import env_action, spec_of, to_frames
from voidrl.errors import (
    ConfigError,
    EnvironmentFailedError,
    MissingExtraError,
    SpaceError,
    UnknownNameError,
    VoidrlError,
)
from voidrl.registry import import_path
from voidrl.types import EnvSpec

GYM_ID = re.compile(r"-v\d+$|/")  # `module:Name-v0`: Gymnasium imports the module, which registers the name
SIMULATORS = {"ALE": ("ale_py", "ale-py", "atari"), "dm_control": ("dm_control", "dm-control", "dmc")}
EnvFactory = Callable[[], gym.Env]
PYTHON_VALUES = {"True": True, "False": False, "None": None}  # as words they would all count as true


class StepResult(NamedTuple):
    """What one step of N environments gave."""

    frames: np.ndarray  # (N, *frame_shape)
    reward: np.ndarray  # (N,) float32
    terminated: np.ndarray  # (N,) bool
    truncated: np.ndarray  # (N,) bool
    info: dict[str, Any]


class Envs:
    """N environments stepped together, as frames and [−1, 1] actions."""

    def __init__(self, vector: VectorEnv, name: str, frame_stack: int) -> None:
        self.vector, self.name = vector, name
        self.num_envs = vector.num_envs
        self._failed = False
        try:
            self.spec: EnvSpec = self._check(frame_stack)
        except VoidrlError:
            self.close()
            raise

    def _check(self, frame_stack: int) -> EnvSpec:
        mode = self.vector.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.NEXT_STEP:
            raise ConfigError(
                f"vector environment {self.name!r} has autoreset_mode {getattr(mode, 'name', mode)}: "
                f"expected NEXT_STEP; build it so, or use env.backend = 'sync'"
            )
        try:
            return spec_of(self.vector.single_observation_space, self.vector.single_action_space, frame_stack)
        except SpaceError as error:
            raise SpaceError(f"environment {self.name!r}: {error}") from None

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes; environment i is seeded with seed + i."""
        obs, info = self._guarded(lambda: self.vector.reset(seed=seed))
        return to_frames(obs, self.spec), info

    def step(self, action: np.ndarray) -> StepResult:
        """One step of each."""
        taken = env_action(action, self.spec, self.vector.single_action_space.dtype or np.float32)
        obs, reward, terminated, truncated, info = self._guarded(lambda: self.vector.step(taken))
        frames = to_frames(obs, self.spec)
        return StepResult(frames, np.asarray(reward, np.float32), terminated, truncated, info)

    def close(self) -> None:
        """Free what they hold."""
        if self._failed and isinstance(self.vector, AsyncVectorEnv):
            self.vector._state = AsyncState.DEFAULT  # else it waits for the answer of a worker that is gone
            self.vector.close(terminate=True)
        else:
            self.vector.close()

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            self._failed = True
            if isinstance(error, VoidrlError):
                raise
            if isinstance(error, EOFError | ConnectionError):
                sentence = f"a worker process of environment {self.name!r} died ({error!r})"
            else:
                sentence = f"environment {self.name!r} raised {error!r}"
            raise EnvironmentFailedError(sentence) from error


class Guarded(gym.Wrapper):
    """Says which environment raised, and at which of its own steps."""

    def __init__(self, env: gym.Env, name: str, index: int) -> None:
        super().__init__(env)
        self.name, self.index, self.steps = name, index, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step, counted."""
        self.steps += 1
        try:
            return self.env.step(action)
        except Exception as error:
            raise EnvironmentFailedError(
                f"environment {self.index} ({self.name!r}) raised {error!r} at its own step {self.steps}"
            ) from error

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new episode."""
        try:
            return self.env.reset(seed=seed, options=options)
        except Exception as error:
            raise EnvironmentFailedError(
                f"environment {self.index} ({self.name!r}) raised {error!r} in reset after {self.steps} steps"
            ) from error


def make_envs(config: EnvConfig, factory: EnvFactory | None = None, num_envs: int | None = None) -> Envs:
    """N environments from an id or a factory."""
    n = num_envs or config.num_envs
    name, options = (config.id, {}) if factory is not None else parse_id(config.id)
    native = False
    if factory is None and ":" in name and not GYM_ID.search(name):
        found = import_path("environment", name)
        if not callable(found):
            raise ConfigError(
                f"environment {name!r} cannot be used: expected a function that returns a gymnasium.Env"
            )
        factory = partial(found, **options)
    elif factory is None:
        native = _find(name).vector_entry_point is not None
        factory = partial(gym.make, name, **options)
    if config.backend == "native" and not native:
        raise ConfigError(
            f"env.backend = 'native' cannot be used: {name!r} has no vectorised version; use sync or async"
        )
    try:
        if native and config.backend in ("auto", "native"):
            vector = gym.make_vec(name, n, vectorization_mode="vector_entry_point", **options)
        else:
            vector = _vectorise(factory, config.id, n, config.backend)
    except VoidrlError:
        raise
    except Exception as error:
        # A wrong option, a missing simulator, a bad version: the sentence that came with it is clear.
        if isinstance(error, gym.error.Error) or "unexpected keyword" in str(error):
            raise ConfigError(f"environment {config.id!r} cannot be made: {error}") from error
        raise EnvironmentFailedError(
            f"environment {config.id!r} raised {error!r} when it was made"
        ) from error
    return Envs(vector, config.id, config.frame_stack)


def _vectorise(factory: EnvFactory, name: str, n: int, backend: str) -> VectorEnv:
    home = os.getpid()

    def guarded(index: int) -> EnvFactory:
        def make() -> gym.Env:
            if os.getpid() != home:
                # A terminal sends Ctrl-C to the workers too; they must live on until the run has been saved.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            env = factory()
            if not isinstance(env, gym.Env):
                raise ConfigError(
                    f"the factory of environment {name!r} returned {type(env).__name__}: "
                    f"expected a gymnasium.Env"
                )
            return Guarded(env, name, index)

        return make

    factories = [guarded(i) for i in range(n)]
    if backend == "async":
        return AsyncVectorEnv(factories, autoreset_mode=AutoresetMode.NEXT_STEP)
    return SyncVectorEnv(factories, autoreset_mode=AutoresetMode.NEXT_STEP)


def parse_id(text: str) -> tuple[str, dict[str, Any]]:
    """`id?key=value&…` → the id and its options, values as JSON or as Python spells them."""
    name, _, query = text.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise ConfigError(
            f"environment {text!r} cannot be read: expected id?option=value&option=value"
        ) from None
    return name, {key: _value(value) for key, value in pairs}


def _value(text: str) -> Any:
    if text in PYTHON_VALUES:
        return PYTHON_VALUES[text]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _find(name: str) -> gym.envs.registration.EnvSpec:
    if not name:
        raise ConfigError(
            "no environment was given: expected an id such as voidrl/PixelMaze-v0, or a factory"
        )
    module, _, name = name.rpartition(":")
    namespace = name.partition("/")[0]
    if not module and namespace in SIMULATORS:
        module, package, extra = SIMULATORS[namespace]
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(package, extra, f"environment {name!r}")
    try:
        if module:
            importlib.import_module(module)  # registers its environments
        return gym.spec(name)
    except ImportError as error:
        raise ConfigError(f"environment {name!r} cannot be made: {error}") from error
    except gym.error.Error:
        raise UnknownNameError(
            "environment", name, gym.registry, "Your own: 'module:factory', or `voidrl list envs`."
        ) from None
