"""Supported spaces, and the conversion of observations and actions. Does not import torch."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from voidrl.errors import SpaceError, shown
from voidrl.types import EnvSpec

ROUNDING = 1e-5  # relative to a bound, and absolute for bounds below 1
MAX_FLOAT32 = np.finfo(np.float32).max  # frames are stored as float32
Mismatch = tuple[str, str]
"""What was found, and what was expected."""
MAX_VALUES = 2**28  # of one observation: a stack of 64 images of 1024 × 1024 in four colors
MAX_ACTIONS = 2**20
MAX_AXES = 8


def spec_of(observation: gym.Space, action: gym.Space, frame_stack: int) -> EnvSpec:
    """The spec of an environment with these spaces."""
    num_actions, low, high = _actions_of(action)
    shape = observation.shape or ()
    pixels = observation.dtype == np.uint8 and len(shape) in (2, 3)
    if not isinstance(observation, spaces.Box) or not (pixels or len(shape) == 1):
        raise SpaceError(
            f"observation space {observation} is not supported: expected a uint8 image of 2 or 3 axes, or a "
            f"vector; gymnasium.wrappers.FlattenObservation makes a vector of most spaces"
        )
    frame = shape
    if pixels:
        frame = (1, *shape) if len(shape) == 2 else (shape[2], *shape[:2]) if channels_last(shape) else shape
    action_shape = () if num_actions else tuple(action.shape or ())
    return EnvSpec(frame, pixels, frame_stack, num_actions, low, high, shape, action_shape)


def _actions_of(space: gym.Space) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """The number of discrete actions, or 0 and the bounds of continuous ones."""
    if isinstance(space, spaces.Discrete):
        if space.start != 0:
            raise SpaceError(
                f"action space {space} is not supported: expected actions that start at 0; "
                f"wrap the environment in a gymnasium.ActionWrapper that shifts them"
            )
        return int(space.n), (), ()
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise SpaceError(
            f"action space {space} is not supported: expected Discrete, or Box of floats; "
            f"wrap the environment in a gymnasium.ActionWrapper"
        )
    if not space.is_bounded():
        raise SpaceError(
            f"action space {space} is not supported: expected finite bounds; "
            f"use gymnasium.wrappers.RescaleAction or a Box with bounds"
        )
    return 0, tuple(space.low.ravel().tolist()), tuple(space.high.ravel().tolist())


def spec_from_json(data: Any) -> EnvSpec:
    """The spec that `EnvSpec.to_json` wrote; anything that no environment could have is refused."""
    names = [field.name for field in dataclasses.fields(EnvSpec)]
    if not isinstance(data, Mapping) or sorted(data) != sorted(names):
        given = sorted(data) if isinstance(data, Mapping) else data
        raise SpaceError(f"spec = {shown(given)} cannot be used: expected an object with {', '.join(names)}")
    for name in ("frame_shape", "raw_shape", "action_shape"):
        whole = isinstance(data[name], list) and all(_is_whole(size, 1, MAX_VALUES) for size in data[name])
        _require(whole, data, name, "a list of sizes above 0")
        _require(len(data[name]) <= MAX_AXES, data, name, f"at most {MAX_AXES} sizes")
    for name in ("action_low", "action_high"):
        finite = isinstance(data[name], list) and all(_is_finite(bound) for bound in data[name])
        _require(finite, data, name, "a list of finite numbers")
    _require(isinstance(data["pixels"], bool), data, "pixels", "true or false")
    frame, axes = data["frame_shape"], 3 if data["pixels"] else 1
    _require(len(frame) == axes, data, "frame_shape", f"{axes} sizes, as pixels = {data['pixels']}")
    _require(_is_whole(data["frame_stack"], 1, 1024), data, "frame_stack", "1 to 1024")
    values = math.prod(frame)
    small = values * data["frame_stack"] <= MAX_VALUES
    _require(small, data, "frame_shape", f"at most {MAX_VALUES} values in one observation")
    _require(math.prod(data["raw_shape"]) == values, data, "raw_shape", f"the {values} values of a frame")
    _require(_is_whole(data["num_actions"], 0, MAX_ACTIONS), data, "num_actions", f"0 to {MAX_ACTIONS}")
    low, high = data["action_low"], data["action_high"]
    bounds = math.prod(data["action_shape"]) if data["num_actions"] == 0 else 0
    _require(len(low) == len(high) == bounds, data, "action_low", f"{bounds} bounds, and as many above")
    ordered = all(least <= most for least, most in zip(low, high, strict=True))
    _require(ordered, data, "action_low", "bounds that are not above those of action_high")
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
    return EnvSpec(**fields)


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def _require(ok: bool, data: Mapping[str, Any], name: str, expected: str) -> None:
    if not ok:
        raise SpaceError(f"spec.{name} = {shown(data[name])} cannot be used: expected {expected}")


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether a 3-axis image is (H, W, C): the short axis is the channels."""
    return len(shape) == 3 and shape[2] < shape[0]


def to_frames(obs: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """Convert observations (N, *raw_shape) to frames (N, *frame_shape)."""
    if not spec.pixels:
        return np.ascontiguousarray(obs, dtype=np.float32)
    if channels_last(spec.raw_shape):
        obs = obs.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(obs.reshape(len(obs), *spec.frame_shape))


def to_picture(frame: np.ndarray) -> np.ndarray:
    """Convert a frame (C, H, W) to a picture (H, W, 3); of stacked frames it shows the newest."""
    shown = frame[-3:] if len(frame) % 3 == 0 else frame[-1:].repeat(3, axis=0)
    return np.ascontiguousarray(shown.transpose(1, 2, 0))


def env_action(action: np.ndarray, spec: EnvSpec, dtype: npt.DTypeLike = np.float32) -> np.ndarray:
    """Scale continuous actions (N, action_dim) from [−1, 1] to the environment's range."""
    if spec.discrete:
        return action
    low, high = np.array(spec.action_low), np.array(spec.action_high)  # float64: the span may exceed float32
    fraction = (action.astype(np.float64) + 1) / 2
    scaled = np.clip(low * (1 - fraction) + high * fraction, low, high)
    return scaled.reshape(len(action), *spec.action_shape).astype(dtype)


class ObservationCheck:
    """Whether observations are what their Box says: shape, type and values.

    A type that NumPy casts within its kind fits (float64 for float32, whole numbers for floats). Floats for
    uint8 do not: an image in [0, 1] would become black. Values may exceed the bounds by a rounding error.

    Args:
        space: The space.
        check_bounds: Whether values must be within the bounds. They must be finite in any case.
    """

    def __init__(self, space: spaces.Box, *, check_bounds: bool = True) -> None:
        self.dtype, self.shape = space.dtype, space.shape
        self._space = space
        self._is_float = self.dtype.kind == "f"
        if self._is_float:
            bounded = bool(space.bounded_below.any() or space.bounded_above.any())
            low, high = space.low.astype(np.float64), space.high.astype(np.float64)
            low = np.maximum(low - ROUNDING * np.maximum(1, np.abs(low)), -MAX_FLOAT32)
            high = np.minimum(high + ROUNDING * np.maximum(1, np.abs(high)), MAX_FLOAT32)
            if not check_bounds:
                low, high = np.full_like(low, -MAX_FLOAT32), np.full_like(high, MAX_FLOAT32)
            wide = np.promote_types(self.dtype, np.float32)  # float16 has no room for the largest value
            self._low, self._high = low.astype(wide), high.astype(wide)
        else:
            limits = (False, True) if self.dtype.kind == "b" else _whole_numbers(self.dtype)
            bounded = bool((space.low > limits[0]).any() or (space.high < limits[1]).any())
            self._low, self._high = space.low, space.high
        self._bounded = bounded and check_bounds

    def mismatch(self, obs: np.ndarray, *batch: int) -> Mismatch | None:
        """What is wrong with the shape or the type of observations (*batch, *shape)."""
        expected = (*batch, *self.shape)
        if obs.shape != expected:
            return f"of shape {obs.shape}", f"expected {expected}, as in its observation_space"
        if obs.dtype is not self.dtype and not np.can_cast(obs.dtype, self.dtype, "same_kind"):
            return f"of type {obs.dtype}", f"expected {self.dtype}, as in its observation_space"
        return None

    def contains(self, obs: np.ndarray) -> bool:
        """Whether all values are finite and within the bounds."""
        if self._bounded:
            return bool(((obs >= self._low) & (obs <= self._high)).all())
        return not self._is_float or bool(np.abs(obs).max(initial=0) <= MAX_FLOAT32)  # never true of NaN

    def violation(self, obs: np.ndarray) -> tuple[int, Mismatch]:
        """The environment with the first value of (N, *shape) that is not contained, and what is wrong."""
        env, *index = np.argwhere(~((obs >= self._low) & (obs <= self._high)))[0].tolist()
        value, at = obs[(env, *index)], tuple(index)
        found = f"observation{index} = {value}"
        if not np.isfinite(value):
            return env, (found, "expected finite numbers")
        if self._is_float and abs(value) > MAX_FLOAT32:
            return env, (found, "expected numbers within the range of float32")
        low, high = self._space.low[at], self._space.high[at]
        expected = f"expected a value in [{low:g}, {high:g}], as in its observation_space"
        return env, (found, f"{expected} (fix the value, widen the space, or set env.check_bounds = False)")


def _whole_numbers(dtype: Any) -> tuple[int, int]:
    """The smallest and the largest number of an integer type."""
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
