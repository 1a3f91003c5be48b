"""Wrappers around each environment, and the conversion of observations to frames. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from voidrl.config.registry import import_path
from voidrl.envs.failures import raised
from voidrl.envs.guarded import Guarded
from voidrl.envs.ids import parse_id
from voidrl.envs.masks import MaskReader
from voidrl.envs.spaces import masks_of
from voidrl.envs.spaces.frames import frames_of, value_at
from voidrl.errors import ConfigError, VoidrlError


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


class Converted(gym.Wrapper):
    """Returns frames where observations are not one plain array, so that vector code only sees one Box.

    Actions are converted by `Envs`, for all environments at once.

    Args:
        env: The environment, with the reading of its spaces.
    """

    def __init__(self, env: Guarded) -> None:
        super().__init__(env)
        self._guard, self.reading = env, env.reading
        spec = env.reading.spec
        shape = spec.stored_shape
        space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = space if spec.pixels else gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self._given_mask = MaskReader(env, env.reading.masks) if spec.masked else None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        frame = self._frame(obs, info, ended=terminated or truncated)
        return frame, reward, terminated, truncated, info  # type: ignore[return-value]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a new episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._frame(obs, info, is_reset=True), info

    def _frame(
        self, obs: Any, info: dict[str, Any], *, ended: bool = False, is_reset: bool = False
    ) -> np.ndarray:
        """The frame (*stored_shape) of one observation."""
        spec, masks = self.reading.spec, None
        if self._given_mask is not None:
            found = masks_of(self._given_mask(obs, info), spec, ended=ended)
            if isinstance(found, tuple):
                self._guard.refuse_mask(found[1], is_reset=is_reset)
            masks = found
        frame: np.ndarray = frames_of([value_at(obs, part)[None] for part in spec.parts], spec, masks)[0]
        return frame
