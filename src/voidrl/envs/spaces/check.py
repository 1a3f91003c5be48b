"""Checks that environments return observations in their spaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from voidrl.envs.spaces.frames import MisfitError
from voidrl.envs.spaces.reading import label
from voidrl.errors import shown
from voidrl.types import ObsPart

ROUNDING = 1e-5  # relative to a bound, and absolute for bounds below 1
NUMBERS = "fiub"  # kinds of NumPy types that can be a reward or a flag
MAX_FLOAT32 = np.finfo(np.float32).max  # frames are stored as float32


class ObservationCheck:
    """Checks that observations fit their Box: shape, type and values.

    A type that NumPy casts within its kind fits (float64 for float32, whole numbers for floats). Floats for
    uint8 do not: an image in [0, 1] would become black. Values may exceed the bounds by a rounding error.

    Args:
        space: The space.
        check_bounds: Whether values must be within the bounds. They must be finite in any case.
        name: Name of the observation in messages.
    """

    def __init__(self, space: spaces.Box, *, check_bounds: bool = True, name: str = "observation") -> None:
        self.name, self.dtype, self.shape = name, space.dtype, space.shape
        self._space = space
        low, high = space.low, space.high
        self._is_float = self.dtype.kind == "f"
        self._bounded = False
        if self._is_float:
            self._bounded = check_bounds and bool(space.bounded_below.any() or space.bounded_above.any())
            low, high = low.astype(np.float64), high.astype(np.float64)
            low = np.maximum(low - ROUNDING * np.maximum(1, np.abs(low)), -MAX_FLOAT32)
            high = np.minimum(high + ROUNDING * np.maximum(1, np.abs(high)), MAX_FLOAT32)
            if not check_bounds:
                low, high = np.full_like(low, -MAX_FLOAT32), np.full_like(high, MAX_FLOAT32)
            wide = np.promote_types(self.dtype, np.float32)  # float16 has no room for the largest value
            low, high = low.astype(wide), high.astype(wide)
        elif self.dtype.kind != "b":
            limits = np.iinfo(self.dtype)  # type: ignore[type-var]
            self._bounded = check_bounds and bool((low > limits.min).any() or (high < limits.max).any())
        self.bounds = low, high
        """Lowest and highest values, with room for rounding errors."""

    def require_type(self, what: str, obs: Any, *batch: int) -> np.ndarray:
        """Observations (*batch, *shape) as an array, of this shape and type; `what` names them."""
        try:
            obs = np.asarray(obs)
        except Exception as error:  # whatever an object's own code raises
            raise MisfitError(f"{what} that is no array ({shown(error)})", "expected numbers") from error
        expected = (*batch, *self.shape)
        if obs.shape != expected:
            raise MisfitError(
                f"{what} of shape {obs.shape}", f"expected {expected}, as in its observation_space"
            )
        if obs.dtype is not self.dtype and not np.can_cast(obs.dtype, self.dtype, "same_kind"):
            raise MisfitError(
                f"{what} of type {obs.dtype}", f"expected {self.dtype}, as in its observation_space"
            )
        return obs  # type: ignore[no-any-return]

    def require_values(self, obs: np.ndarray) -> None:
        """Refuse observations (N, *shape) with values that are not finite or not within the bounds."""
        if self._contains(obs):
            return
        low, high = self.bounds
        env, *index = np.argwhere(~((obs >= low) & (obs <= high)))[0].tolist()
        value, at = obs[(env, *index)], tuple(index)
        found = f"{self.name}{index or ''} = {value}"
        if not np.isfinite(value):
            raise MisfitError(found, "expected finite numbers", env)
        if self._is_float and abs(value) > MAX_FLOAT32:
            raise MisfitError(found, "expected numbers within the range of float32", env)
        expected = f"expected a value in [{self._space.low[at]:g}, {self._space.high[at]:g}], as in its "
        remedy = "observation_space (fix the value, widen the space, or set env.check_bounds = False)"
        raise MisfitError(found, expected + remedy, env)

    def _contains(self, obs: np.ndarray) -> bool:
        if self._bounded:
            low, high = self.bounds
            return bool(((obs >= low) & (obs <= high)).all())
        return not self._is_float or bool(np.abs(obs).max(initial=0) <= MAX_FLOAT32)  # never true of NaN


class NestedCheck:
    """Checks that observations other than one Box fit their space, in all parts that the agent sees.

    Args:
        space: The space.
        parts: The parts that the agent sees.
        check_bounds: Whether values of Boxes must be within their bounds. Choices must be in any case.
    """

    def __init__(self, space: gym.Space, parts: Sequence[ObsPart], *, check_bounds: bool = True) -> None:
        self._checks = []
        for part in parts:
            inner = part.find(space)
            checks = check_bounds or not isinstance(inner, spaces.Box)
            check = ObservationCheck(_as_box(inner), check_bounds=checks, name=label(part.path))
            self._checks.append((part, check))

    def require(self, obs: Any, *batch: int) -> None:
        """Refuse an observation, or a batch of them, that does not fit."""
        for part, check in self._checks:
            try:
                value = part.find(obs)
            except (KeyError, IndexError, TypeError):
                expected = f"expected {check.name}, as in its observation_space"
                raise MisfitError(shown(obs), expected) from None
            found = check.require_type(check.name, value, *batch)
            check.require_values(found if batch else found[None])


def _as_box(space: gym.Space) -> spaces.Box:
    """The equivalent Box."""
    if isinstance(space, spaces.Discrete):
        low, high = int(space.start), int(space.start) + int(space.n) - 1
        return spaces.Box(low, high, (), np.int64)
    if isinstance(space, spaces.MultiDiscrete):
        start = space.start.astype(np.int64)
        return spaces.Box(start, start + space.nvec.astype(np.int64) - 1, dtype=np.int64)
    if isinstance(space, spaces.MultiBinary):
        return spaces.Box(0, 1, space.shape, np.int8)
    assert isinstance(space, spaces.Box)
    return space
