"""Conversion of voidrl's frames and actions back to the environment's. Does not import torch."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from voidrl.types import EnvSpec, channels_last

IMAGE, VALUES = "image", "values"  # entries of an observation that is an image with numbers


def observations_of(frames: np.ndarray, spec: EnvSpec) -> Any:
    """Stored frames (T, *stored_shape) as an environment with the space `observation_space` gives them.

    For a plain array, that is the environment's observation. For any other, only the frames are known.
    """
    if spec.num_values:
        channels = spec.frame_shape[0]
        packed = frames[:, channels:].reshape(len(frames), -1)[:, : 4 * spec.num_values]
        values = np.ascontiguousarray(packed).view("<f4").astype(np.float32)
        return {IMAGE: frames[:, :channels], VALUES: values}
    if spec.parts:
        return frames
    if spec.pixels and channels_last(spec.raw_shape):
        return frames.transpose(0, 2, 3, 1)
    return frames.reshape(len(frames), *spec.raw_shape)


def observation_space(spec: EnvSpec) -> gym.Space:
    """The space of these observations. The bounds of numbers are not known to an agent."""
    if spec.num_values:
        image = gym.spaces.Box(0, 255, spec.frame_shape, np.uint8)
        values = gym.spaces.Box(-np.inf, np.inf, (spec.num_values,), np.float32)
        return gym.spaces.Dict({IMAGE: image, VALUES: values})
    shape = spec.frame_shape if spec.parts else spec.raw_shape
    if spec.pixels:
        return gym.spaces.Box(0, 255, shape, np.uint8)
    return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)


def action_space(spec: EnvSpec) -> gym.Space:
    """The space of actions as `env_action` makes them."""
    if spec.action_sizes and spec.action_shape:
        sizes, start = (np.reshape(v, spec.action_shape) for v in (spec.action_sizes, spec.action_start))
        return gym.spaces.MultiDiscrete(sizes, start=start)
    if spec.discrete:
        return gym.spaces.Discrete(spec.num_actions, start=spec.action_start[0] if spec.action_start else 0)
    dtype: Any = np.int64 if spec.action_integer else np.float32
    low, high = (np.reshape(v, spec.action_shape).astype(dtype) for v in (spec.action_low, spec.action_high))
    return gym.spaces.Box(low, high, dtype=dtype)


def agent_action(action: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """Actions (N, …) of the environment → of the agent, (N,) or (N, action_dim): inverts `env_action`."""
    if spec.action_sizes:
        taken = action.reshape(len(action), -1).astype(np.int64) - np.array(spec.action_start)
        joint: np.ndarray = np.ravel_multi_index(tuple(taken.T), spec.action_sizes)
        return joint
    if spec.discrete:
        return action.astype(np.int64)
    low, high = np.array(spec.action_low), np.array(spec.action_high)  # float64: the span may exceed float32
    flat = action.reshape(len(action), -1).astype(np.float64)
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    scaled = np.clip((flat - middle) / np.where(half > 0, half, 1), -1, 1)
    return np.where(half > 0, scaled, 0).astype(np.float32)  # between equal bounds all actions are equal


def actions_within(action: np.ndarray, spec: EnvSpec, margin: float) -> bool:
    """Whether actions (N, …) are finite and in the environment's space, up to a relative margin."""
    flat = action.reshape(len(action), -1)
    if spec.discrete or spec.action_sizes:
        start = np.array(spec.action_start or (0,))
        last = start + np.array(spec.action_sizes or (spec.num_actions,)) - 1
        return bool(((flat >= start) & (flat <= last)).all())
    low, high = np.array(spec.action_low), np.array(spec.action_high)
    slack = margin * np.maximum(1, np.maximum(np.abs(low), np.abs(high)))
    return bool(((flat >= low - slack) & (flat <= high + slack)).all())  # never true of NaN
