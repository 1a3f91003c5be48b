"""Separate environments: their wrappers, and checks and conversion of what they return. No torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from voidrl.config import EnvConfig
from voidrl.config.registry import import_path
from voidrl.envs.failures import raised
from voidrl.envs.ids import parse_id
from voidrl.envs.spaces.check import NUMBERS, ObservationReader
from voidrl.envs.spaces.frames import MisfitError, read_env
from voidrl.errors import ConfigError, EnvironmentFailedError, VoidrlError, VoidrlWarning, shown

Wrapper = Callable[[gym.Env], gym.Env]


def load_wrapper(text: str) -> Wrapper:
    """The wrapper `module:Wrapper?option=value`. Lists become tuples, as Gymnasium's wrappers expect them."""
    name, options = parse_id(text, "wrapper")
    found = import_path("wrapper", name)
    if not callable(found):
        raise ConfigError(
            f"wrapper {name!r} cannot be used: expected a class or a function that takes an environment "
            f"and returns one"
        )
    tuples = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
    return partial(_wrap, partial(found, **tuples), text)


def _wrap(wrapper: Callable[[gym.Env], Any], text: str, env: gym.Env) -> gym.Env:
    try:
        wrapped = wrapper(env)
    except (VoidrlError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too
        raise ConfigError(f"env.wrappers = {text!r} cannot be used: it {raised(error)}") from error
    if not isinstance(wrapped, gym.Env):
        raise ConfigError(
            f"env.wrappers = {text!r} cannot be used: it returned {type(wrapped).__name__}, expected a "
            f"gymnasium.Env"
        )
    return wrapped


class CheckedEnv(gym.Wrapper):
    """Names the environment and the step in every error of it, and returns one Box.

    The values of rewards and of plain observations are checked by `Envs`, for all environments at once.
    Observations that are not one plain array are checked here and become frames. Actions are converted by
    `Envs`.
    """

    def __init__(self, env: gym.Env, config: EnvConfig, index: int) -> None:
        super().__init__(env)
        self.name, self.index, self.steps = config.id, index, 0
        self.reading = read_env(env, config)
        spec = self.reading.spec
        self._reader = ObservationReader(env, self.reading, config.check_bounds)
        if spec.parts:
            shape = spec.stored_shape
            image, numbers = gym.spaces.Box(0, 255, shape, np.uint8), gym.spaces.Box(-np.inf, np.inf, shape)
            self.observation_space = image if spec.pixels else numbers

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, count the steps, and check what it returns."""
        self.steps += 1
        with self._blamed():
            result = self.env.step(action)
            if not isinstance(result, tuple | list) or len(result) != 5:
                expected = "expected 5 values: observation, reward, terminated, truncated, info"
                raise MisfitError(shown(result), expected)
            obs, reward, terminated, truncated, info = result
            reward = _number(reward, "a number as reward")
            terminated, truncated = _flag(terminated, "terminated"), _flag(truncated, "truncated")
            if not isinstance(info, dict):
                raise MisfitError(shown(info), "expected a dictionary as info")
            return self._frame(obs, info, terminated or truncated), reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode."""
        with self._blamed(f"in reset after {self.steps} steps"):
            result = self.env.reset(seed=seed, options=options)
            if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[1], dict):
                raise MisfitError(shown(result), "expected 2 values: observation and info, a dictionary")
            obs, info = result
            return self._frame(obs, info), info

    def render(self) -> Any:
        """A picture."""
        with self._blamed(f"when it rendered after {self.steps} steps"):
            return self.env.render()

    def close(self) -> None:
        """Close the environment; a failure is a warning, since the run no longer needs it."""
        try:
            with self._blamed("when it was closed"):
                self.env.close()
        except EnvironmentFailedError as error:
            warnings.warn(str(error), VoidrlWarning, stacklevel=2)

    @contextmanager
    def _blamed(self, when: str = "") -> Iterator[None]:
        """Name the environment and the time in every error."""
        try:
            yield
            return
        except (KeyboardInterrupt, gym.error.DependencyNotInstalled):
            raise
        except MisfitError as misfit:
            what, cause, expected = f"returned {misfit.found}", misfit.__cause__, f": {misfit.expected}"
        except BaseException as error:  # SystemExit too: it is not the environment's to end the run
            what, cause, expected = raised(error), error, ""
        sentence = f"{what} {when or f'at its own step {self.steps}'}{expected}"
        raise EnvironmentFailedError(f"environment {self.index} ({self.name!r}) {sentence}") from cause

    def _frame(self, obs: Any, info: dict[str, Any], ended: bool = False) -> np.ndarray:
        """The frame (*stored_shape) of one observation, after a check; a plain one is converted by `Envs`."""
        if not self.reading.spec.parts:
            return self._reader.arrays(obs)[0]
        return self._reader.frames(obs, info, ended=ended)[0]  # type: ignore[no-any-return]


def _flag(value: Any, name: str) -> bool:
    if type(value) is bool:
        return value
    expected = f"True or False as {name}"
    number = _number(value, expected)
    if number not in (0, 1):
        raise MisfitError(shown(value), f"expected {expected}")
    return bool(number)


def _number(value: Any, expected: str) -> float:
    """The number that a value means, which may be an array with one entry."""
    if type(value) is float:
        return value
    with suppress(Exception):  # whatever an object's own code raises
        found = np.asarray(value)
        if found.dtype.kind in NUMBERS and found.size == 1:
            return float(found.item())
    raise MisfitError(shown(value), f"expected {expected}")
