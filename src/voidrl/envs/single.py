"""Separate environments: their wrappers, and checks and conversion of what they return. No torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np

from voidrl.config.registry import import_path
from voidrl.envs.failures import raised
from voidrl.envs.ids import parse_id
from voidrl.envs.spaces import (
    MaskReader,
    MisfitError,
    NestedCheck,
    ObservationCheck,
    Reading,
    frame_of,
    masks_of,
)
from voidrl.errors import ConfigError, EnvironmentFailedError, VoidrlError, VoidrlWarning, shown

NUMBERS = "fiub"  # kinds of NumPy types that can be a reward or a flag


class EnvWrapper:
    """A wrapper by its name, `module:Wrapper?option=value`.

    Args:
        text: The name with its options. Lists become tuples, as Gymnasium's wrappers expect them.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        name, options = parse_id(text, "wrapper")
        wrap = import_path("wrapper", name)
        if not callable(wrap):
            raise ConfigError(
                f"wrapper {name!r} cannot be used: expected a class or a function that takes an environment "
                f"and returns one"
            )
        tuples = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
        self._wrap: Callable[[gym.Env], Any] = partial(wrap, **tuples)

    def __call__(self, env: gym.Env) -> gym.Env:
        """Wrap an environment."""
        try:
            wrapped = self._wrap(env)
        except (VoidrlError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit too
            raise ConfigError(f"env.wrappers = {self.text!r} cannot be used: it {raised(error)}") from error
        if not isinstance(wrapped, gym.Env):
            raise ConfigError(
                f"env.wrappers = {self.text!r} cannot be used: it returned {type(wrapped).__name__}, "
                f"expected a gymnasium.Env"
            )
        return wrapped


def wrap_all(env: gym.Env, wrappers: Sequence[EnvWrapper]) -> gym.Env:
    """Apply wrappers, the innermost first."""
    for wrapper in wrappers:
        env = wrapper(env)
    return env


class CheckedEnv(gym.Wrapper):
    """Names the environment and the step in every error of it, and returns one Box.

    The values of rewards and of plain observations are checked by `Envs`, for all environments at once.
    Observations that are not one plain array are checked here and become frames. Actions are converted by
    `Envs`.
    """

    def __init__(
        self, env: gym.Env, name: str, index: int, reading: Reading, *, check_bounds: bool = True
    ) -> None:
        super().__init__(env)
        self.name, self.index, self.reading, self.steps = name, index, reading, 0
        spec, space = reading.spec, env.observation_space
        self._parts: NestedCheck | None = None
        self._given_mask: MaskReader | None = None
        if spec.parts:
            self._parts = NestedCheck(space, spec.parts, check_bounds=check_bounds)
            shape = spec.stored_shape
            image, numbers = gym.spaces.Box(0, 255, shape, np.uint8), gym.spaces.Box(-np.inf, np.inf, shape)
            self.observation_space = image if spec.pixels else numbers
            if spec.masked:
                self._given_mask = MaskReader(env, reading.masks)
        else:
            assert isinstance(space, gym.spaces.Box)
            self._check = ObservationCheck(space)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, count the steps, and check what it returns."""
        self.steps += 1
        try:
            result = self.env.step(action)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: it is not the environment's to end the run
            self._fail(raised(error), error)
        if not isinstance(result, tuple | list) or len(result) != 5:
            self._refuse(result, "5 values: observation, reward, terminated, truncated, info")
        obs, reward, terminated, truncated, info = result
        obs = self._valid_obs(obs)
        if type(reward) is not float:
            number = _number(reward)
            if number is None:
                self._refuse(reward, "a number as reward")
            reward = number
        if type(terminated) is not bool:
            terminated = self._valid_flag("terminated", terminated)
        if type(truncated) is not bool:
            truncated = self._valid_flag("truncated", truncated)
        if not isinstance(info, dict):
            self._refuse(info, "a dictionary as info")
        if self._parts is not None:
            obs = self._frame(obs, info, ended=terminated or truncated)
        return obs, reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode."""
        when = f"in reset after {self.steps} steps"
        try:
            result = self.env.reset(seed=seed, options=options)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._fail(raised(error), error, when)
        if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[1], dict):
            self._refuse(result, "2 values: observation and info, a dictionary", when)
        obs, info = self._valid_obs(result[0], when), result[1]
        return (self._frame(obs, info, when=when) if self._parts is not None else obs), info

    def render(self) -> Any:
        """A picture."""
        try:
            return self.env.render()
        except (KeyboardInterrupt, gym.error.DependencyNotInstalled):
            raise
        except BaseException as error:
            self._fail(raised(error), error, f"when it rendered after {self.steps} steps")

    def close(self) -> None:
        """Close the environment; a failure is a warning, since the run no longer needs it."""
        try:
            self.env.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            sentence = f"environment {self.index} ({self.name!r}) {raised(error)} when it was closed"
            warnings.warn(sentence, VoidrlWarning, stacklevel=2)

    def _valid_obs(self, obs: Any, when: str = "") -> Any:
        try:
            if self._parts is not None:
                self._parts.require(obs)
                return obs
            found = np.asarray(obs)
            self._check.require_type("an observation", found)
        except MisfitError as misfit:
            self._name_misfit(misfit, when)
        except Exception as error:  # whatever an object's own code raises
            self._fail(f"returned an observation that is no array ({shown(error)})", error, when)
        return found

    def _frame(self, obs: Any, info: dict[str, Any], *, ended: bool = False, when: str = "") -> np.ndarray:
        """The frame (*stored_shape) of one observation."""
        spec, masks = self.reading.spec, None
        if self._given_mask is not None:
            try:
                masks = masks_of(self._given_mask(obs, info), spec, ended=ended)
            except MisfitError as misfit:
                self._name_misfit(misfit, when)
        return frame_of(obs, spec, masks)

    def _valid_flag(self, name: str, flag: Any) -> bool:
        number = _number(flag)
        if number not in (0, 1):
            self._refuse(flag, f"True or False as {name}")
        return bool(number)

    def _refuse(self, value: Any, expected: str, when: str = "") -> NoReturn:
        self._name_misfit(MisfitError(shown(value), f"expected {expected}"), when)

    def _name_misfit(self, misfit: MisfitError, when: str = "") -> NoReturn:
        sentence = f"{when or self._at_step()}: {misfit.expected}"
        self._fail(f"returned {misfit.found}", misfit.__cause__, sentence)

    def _fail(self, what: str, cause: BaseException | None = None, when: str = "") -> NoReturn:
        sentence = f"environment {self.index} ({self.name!r}) {what} {when or self._at_step()}"
        raise EnvironmentFailedError(sentence) from cause

    def _at_step(self) -> str:
        return f"at its own step {self.steps}"


def _number(value: Any) -> float | None:
    """The number that a value means, which may be an array with one entry; None if it means none."""
    try:
        found = np.asarray(value)
    except Exception:  # whatever an object's own code raises; the value is refused and named
        return None
    return float(found.item()) if found.dtype.kind in NUMBERS and found.size == 1 else None
