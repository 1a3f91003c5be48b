"""Checks that environments return observations in their spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from voidrl.envs.spaces.frames import MisfitError, frames_of, mask_reader, masks_of, spaces_of
from voidrl.envs.spaces.reading import Reading, label, parts_of
from voidrl.errors import shown

ROUNDING = 1e-5  # relative to a bound, and absolute for bounds below 1
NUMBERS = "fiub"  # kinds of NumPy types that can be a reward or a flag
MAX_FLOAT32 = np.finfo(np.float32).max  # frames are stored as float32


class ObservationReader:
    """Checks observations of an environment, in all parts that the agent sees, and makes frames of them.

    A type that NumPy casts within its kind fits (float64 for float32, whole numbers for floats). Floats for
    uint8 do not: an image in [0, 1] would become black. Values may exceed the bounds by a rounding error.

    Args:
        env: The environment, or N of them.
        reading: The reading of its spaces.
        check_bounds: Whether values of Boxes must be within their bounds. They must be finite, and choices
            within their range, in any case.
    """

    def __init__(self, env: gym.Env | VectorEnv, reading: Reading, check_bounds: bool) -> None:
        space, self._spec = spaces_of(env)[0], reading.spec
        self._parts = [
            (part, _PartCheck(part.find(space), part.path, check_bounds)) for part in parts_of(self._spec)
        ]
        self._find_mask = mask_reader(env, reading.masks) if self._spec.masked else None

    def arrays(self, obs: Any, *batch: int) -> list[np.ndarray]:
        """The parts of an observation, or of a batch, as arrays of the right shapes and types."""
        arrays = []
        for part, check in self._parts:
            try:
                value = part.find(obs)
            except (KeyError, IndexError, TypeError):
                expected = f"expected {check.name}, as in its observation_space"
                raise MisfitError(shown(obs), expected) from None
            arrays.append(check.array(value, batch))
        return arrays

    def frames(
        self, obs: Any, info: Mapping[str, Any], *batch: int, ended: np.ndarray | bool = False
    ) -> np.ndarray:
        """Frames (N, *stored_shape), N = 1 without a batch; where episodes end, masks do not matter."""
        arrays = self.arrays(obs, *batch)
        if not batch:
            arrays = [array[None] for array in arrays]
        for (_, check), array in zip(self._parts, arrays, strict=True):
            check.require_values(array)
        masks = None
        if self._find_mask is not None:
            masks = masks_of(self._find_mask(obs, info), self._spec, *batch, ended=ended)
        return frames_of(arrays, self._spec, masks)


class _PartCheck:
    """The check of one part, as an `ObservationReader`."""

    def __init__(self, space: gym.Space, path: tuple[str | int, ...], check_bounds: bool) -> None:
        self.name, self._whole = label(path), not path
        check_bounds = check_bounds or not isinstance(space, spaces.Box)
        self._space = space = _as_box(space)
        self._dtype, low, high = space.dtype, space.low, space.high
        self._is_float = self._dtype.kind == "f"
        self._bounded = False
        if self._is_float:
            self._bounded = check_bounds and bool(space.bounded_below.any() or space.bounded_above.any())
            low, high = low.astype(np.float64), high.astype(np.float64)
            low = np.maximum(low - ROUNDING * np.maximum(1, np.abs(low)), -MAX_FLOAT32)
            high = np.minimum(high + ROUNDING * np.maximum(1, np.abs(high)), MAX_FLOAT32)
            if not check_bounds:
                low, high = np.full_like(low, -MAX_FLOAT32), np.full_like(high, MAX_FLOAT32)
            wide = np.promote_types(self._dtype, np.float32)  # float16 has no room for the largest value
            low, high = low.astype(wide), high.astype(wide)
        elif self._dtype.kind != "b":
            limits = np.iinfo(self._dtype)  # type: ignore[type-var]
            self._bounded = check_bounds and bool((low > limits.min).any() or (high < limits.max).any())
        self._low, self._high = low, high

    def array(self, value: Any, batch: tuple[int, ...]) -> np.ndarray:
        """Values (*batch, *shape) as an array."""
        what = ("observations" if batch else "an observation") if self._whole else self.name
        try:
            found = np.asarray(value)
        except Exception as error:  # whatever an object's own code raises
            raise MisfitError(f"{what} that is no array ({shown(error)})", "expected numbers") from error
        expected = (*batch, *self._space.shape)
        if found.shape != expected:
            raise MisfitError(
                f"{what} of shape {found.shape}", f"expected {expected}, as in its observation_space"
            )
        if found.dtype is not self._dtype and not np.can_cast(found.dtype, self._dtype, "same_kind"):
            raise MisfitError(
                f"{what} of type {found.dtype}", f"expected {self._dtype}, as in its observation_space"
            )
        return found  # type: ignore[no-any-return]

    def require_values(self, values: np.ndarray) -> None:
        """Refuse values (N, *shape) that are not finite or not within the bounds."""
        low, high = self._low, self._high
        if self._bounded:
            fits = bool(((values >= low) & (values <= high)).all())
        else:
            fits = not self._is_float or bool(np.abs(values).max(initial=0) <= MAX_FLOAT32)  # false for NaN
        if fits:
            return
        env, *index = np.argwhere(~((values >= low) & (values <= high)))[0].tolist()
        value, at = values[(env, *index)], tuple(index)
        found = f"{self.name}{index or ''} = {value}"
        if not np.isfinite(value):
            raise MisfitError(found, "expected finite numbers", env)
        if self._is_float and abs(value) > MAX_FLOAT32:
            raise MisfitError(found, "expected numbers within the range of float32", env)
        expected = f"expected a value in [{self._space.low[at]:g}, {self._space.high[at]:g}], as in its "
        remedy = "observation_space (fix the value, widen the space, or set env.check_bounds = False)"
        raise MisfitError(found, expected + remedy, env)


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
