"""One interface to N environments, whatever is behind it. Does not import torch.

All of them autoreset on the *next* step (Gymnasium's NEXT_STEP): the step after an episode's end ignores the
action and returns the new episode's first frame. The replay knows and records no transition for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from voidrl.config import EnvConfig
from voidrl.envs.spaces import env_action, spec_of, to_frames
from voidrl.errors import ConfigError, EnvironmentFailedError, SpaceError, UnknownNameError, VoidrlError
from voidrl.registry import import_path
from voidrl.types import EnvSpec

EnvFactory = Callable[[], gym.Env]


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
        mode = vector.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.NEXT_STEP:
            raise ConfigError(
                f"vector environment {name!r} has autoreset_mode {getattr(mode, 'name', mode)}: expected NEXT_STEP; "
                f"build it so, or use env.backend = 'sync'"
            )
        self.vector, self.name = vector, name
        self.num_envs = vector.num_envs
        try:
            self.spec: EnvSpec = spec_of(vector.single_observation_space, vector.single_action_space, frame_stack)
        except SpaceError as error:
            raise SpaceError(f"environment {name!r}: {error}") from None

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes; environment i is seeded with seed + i."""
        obs, info = self._guarded(lambda: self.vector.reset(seed=seed))
        return to_frames(obs, self.spec), info

    def step(self, action: np.ndarray) -> StepResult:
        """One step of each."""
        taken = env_action(action, self.spec)
        obs, reward, terminated, truncated, info = self._guarded(lambda: self.vector.step(taken))
        return StepResult(to_frames(obs, self.spec), np.asarray(reward, np.float32), terminated, truncated, info)

    def close(self) -> None:
        """Free what they hold."""
        self.vector.close()

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except VoidrlError:
            raise
        except (EOFError, BrokenPipeError, ConnectionError) as error:
            raise EnvironmentFailedError(f"a worker process of environment {self.name!r} died ({error!r})") from error
        except Exception as error:
            raise EnvironmentFailedError(f"environment {self.name!r} raised {error!r}") from error


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

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
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
    if factory is None:
        name, options = parse_id(config.id)
        if ":" in name and name not in gym.registry:
            found = import_path("environment", name)
            if not callable(found):
                raise ConfigError(f"environment {name!r} cannot be used: expected a function that returns a gymnasium.Env")
            factory = lambda: found(**options)  # noqa: E731
    if factory is not None:
        return Envs(_vectorise(factory, config.id, n, config.backend), config.id, config.frame_stack)

    known = _find(name)
    native = known.vector_entry_point is not None
    if config.backend == "native" and not native:
        raise ConfigError(f"env.backend = 'native' cannot be used: {name!r} has no vectorised version; use sync or async")
    try:
        if native and config.backend in ("auto", "native"):
            vector = gym.make_vec(name, n, vectorization_mode="vector_entry_point", **options)
        else:
            vector = _vectorise(lambda: gym.make(name, **options), config.id, n, config.backend)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        raise ConfigError(f"environment {config.id!r} cannot be made: {error}") from error
    except gym.error.Error as error:  # a missing simulator, a bad version: Gymnasium's own sentence is clear
        raise ConfigError(f"environment {config.id!r} cannot be made: {error}") from error
    return Envs(vector, config.id, config.frame_stack)


def _vectorise(factory: EnvFactory, name: str, n: int, backend: str) -> VectorEnv:
    def guarded(index: int) -> EnvFactory:
        def make() -> gym.Env:
            env = factory()
            if not isinstance(env, gym.Env):
                raise ConfigError(f"the factory of environment {name!r} returned {type(env).__name__}: expected a gymnasium.Env")
            return Guarded(env, name, index)

        return make

    factories = [guarded(i) for i in range(n)]
    if backend == "async":
        return AsyncVectorEnv(factories, autoreset_mode=AutoresetMode.NEXT_STEP)
    return SyncVectorEnv(factories, autoreset_mode=AutoresetMode.NEXT_STEP)


def parse_id(text: str) -> tuple[str, dict[str, Any]]:
    """`id?key=value&…` → the id and its options, values as JSON where they are."""
    name, _, query = text.partition("?")
    options: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)):
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return name, options


def _find(name: str) -> gym.envs.registration.EnvSpec:
    if not name:
        raise ConfigError("no environment was given: expected an id such as voidrl/PixelMaze-v0, or a factory")
    try:
        return gym.spec(name)
    except gym.error.Error:
        raise UnknownNameError(
            "environment", name, gym.registry, "Your own: 'module:factory', or `voidrl list envs`."
        ) from None
