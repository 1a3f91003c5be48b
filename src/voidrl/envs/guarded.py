"""Checks of what one environment returns. Does not import torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np

from voidrl.envs.failures import raised
from voidrl.envs.spaces import Mismatch, NestedCheck, ObservationCheck, Reading
from voidrl.errors import EnvironmentFailedError, VoidrlWarning, shown

NUMBERS = "fiub"  # kinds of NumPy types that can be a reward or a flag


class Guarded(gym.Wrapper):
    """Names the environment and the step in every error of it.

    The values of rewards and of plain observations are checked by `Envs`, for all environments at once; those
    of observations that are converted to frames (`Converted`) here.
    """

    def __init__(
        self, env: gym.Env, name: str, index: int, reading: Reading, *, check_bounds: bool = True
    ) -> None:
        super().__init__(env)
        self.name, self.index, self.reading, self.steps = name, index, reading, 0
        space, parts = self.observation_space, reading.spec.parts
        self._check_parts: NestedCheck | None = None
        if parts:
            self._check_parts = NestedCheck(space, parts, check_bounds=check_bounds)
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
            self._fail(raised(error), self._at_step(), error)
        if not isinstance(result, tuple | list) or len(result) != 5:
            self._refuse(
                result, "5 values: observation, reward, terminated, truncated, info", self._at_step()
            )
        obs, reward, terminated, truncated, info = result
        obs = self._valid_obs(obs, self._at_step)
        if type(reward) is not float:
            reward = self._valid_reward(reward)
        if type(terminated) is not bool:
            terminated = self._valid_flag("terminated", terminated)
        if type(truncated) is not bool:
            truncated = self._valid_flag("truncated", truncated)
        if not isinstance(info, dict):
            self._refuse(info, "a dictionary as info", self._at_step())
        return obs, reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode."""
        try:
            result = self.env.reset(seed=seed, options=options)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._fail(raised(error), self._in_reset(), error)
        if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[1], dict):
            self._refuse(result, "2 values: observation and info, a dictionary", self._in_reset())
        return self._valid_obs(result[0], self._in_reset), result[1]

    def render(self) -> Any:
        """A picture."""
        try:
            return self.env.render()
        except (KeyboardInterrupt, gym.error.DependencyNotInstalled):
            raise
        except BaseException as error:
            self._fail(raised(error), f"when it rendered after {self.steps} steps", error)

    def close(self) -> None:
        """Close the environment; a failure is a warning, since the run no longer needs it."""
        try:
            self.env.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            sentence = f"environment {self.index} ({self.name!r}) {raised(error)} when it was closed"
            warnings.warn(sentence, VoidrlWarning, stacklevel=2)

    def _valid_obs(self, obs: Any, when: Callable[[], str]) -> Any:
        if self._check_parts is not None:
            problem = self._check_parts.problem(obs)
            if problem is not None:
                self._fail(f"returned {problem.found}", f"{when()}: {problem.expected}")
            return obs
        try:
            found = np.asarray(obs)
        except Exception as error:  # whatever an object's own code raises
            self._fail(f"returned an observation that is no array ({shown(error)})", when(), error)
        mismatch = self._check.mismatch(found)
        if mismatch is not None:
            self._fail(f"returned an observation {mismatch[0]}", f"{when()}: {mismatch[1]}")
        return found

    def refuse_mask(self, mismatch: Mismatch, *, is_reset: bool) -> NoReturn:
        """Fail because of a mask of actions."""
        when = self._in_reset() if is_reset else self._at_step()
        self._fail(f"returned {mismatch[0]}", f"{when}: {mismatch[1]}")

    def _valid_reward(self, reward: Any) -> float:
        number = _number(reward)
        if number is None:
            self._refuse(reward, "a number as reward", self._at_step())
        return number

    def _valid_flag(self, name: str, flag: Any) -> bool:
        number = _number(flag)
        if number not in (0, 1):
            self._refuse(flag, f"True or False as {name}", self._at_step())
        return bool(number)

    def _at_step(self) -> str:
        return f"at its own step {self.steps}"

    def _in_reset(self) -> str:
        return f"in reset after {self.steps} steps"

    def _refuse(self, value: Any, expected: str, when: str) -> NoReturn:
        self._fail(f"returned {shown(value)}", f"{when}: expected {expected}")

    def _fail(self, what: str, when: str, cause: BaseException | None = None) -> NoReturn:
        raise EnvironmentFailedError(f"environment {self.index} ({self.name!r}) {what} {when}") from cause


def _number(value: Any) -> float | None:
    """The number that a value means, which may be an array with one entry; None if it means none."""
    try:
        found = np.asarray(value)
    except Exception:  # whatever an object's own code raises; the value is refused and named
        return None
    return float(found.item()) if found.dtype.kind in NUMBERS and found.size == 1 else None
