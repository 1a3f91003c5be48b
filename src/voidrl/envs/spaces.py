"""Spaces: which are supported, and how observations and actions cross the border. Does not import torch."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from voidrl.errors import SpaceError
from voidrl.types import EnvSpec


def spec_of(observation: gym.Space, action: gym.Space, frame_stack: int) -> EnvSpec:
    """What the agent must know of an environment with these spaces."""
    if isinstance(action, spaces.Discrete):
        if action.start != 0:
            raise SpaceError(f"action space {action} is not supported: expected actions numbered from 0; "
                             f"wrap the environment in a gymnasium.ActionWrapper that shifts them")  # fmt: skip
        actions = {"num_actions": int(action.n)}
    elif isinstance(action, spaces.Box) and action.dtype.kind == "f":
        if not action.is_bounded():
            raise SpaceError(f"action space {action} is not supported: expected finite bounds; "
                             f"use gymnasium.wrappers.RescaleAction or a Box with bounds")  # fmt: skip
        low, high = (tuple(float(x) for x in np.ravel(a)) for a in (action.low, action.high))
        actions = {"num_actions": 0, "action_low": low, "action_high": high, "action_shape": tuple(action.shape)}
    else:
        raise SpaceError(f"action space {action} is not supported: expected Discrete, or Box of floats; "
                         f"wrap the environment in a gymnasium.ActionWrapper")  # fmt: skip
    if isinstance(observation, spaces.Box):
        shape = tuple(observation.shape)
        if observation.dtype == np.uint8 and len(shape) in (2, 3):
            frame = (1, *shape) if len(shape) == 2 else (shape[2], *shape[:2]) if channels_last(shape) else shape
            return EnvSpec(frame, True, frame_stack, raw_shape=shape, **actions)  # type: ignore[arg-type]
        if len(shape) == 1:
            return EnvSpec(shape, False, frame_stack, raw_shape=shape, **actions)  # type: ignore[arg-type]
    raise SpaceError(f"observation space {observation} is not supported: expected a uint8 image of 2 or 3 axes, or a "
                     f"vector; gymnasium.wrappers.FlattenObservation makes a vector of most spaces")  # fmt: skip


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether a 3-axis image is (H, W, C): the short axis is the channels."""
    return len(shape) == 3 and shape[2] < shape[0]


def to_frames(obs: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """(N, *raw_shape) as the environment gives it → (N, *frame_shape)."""
    if not spec.pixels:
        return np.ascontiguousarray(obs, dtype=np.float32)
    if channels_last(spec.raw_shape):
        obs = obs.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(obs.reshape(len(obs), *spec.frame_shape))


def env_action(action: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """(N,) numbers as they are, or (N, action_dim) in [−1, 1] → what the environment takes."""
    if spec.discrete:
        return action
    low, high = np.float32(spec.action_low), np.float32(spec.action_high)
    scaled = np.clip(low + (action + 1) / 2 * (high - low), low, high)
    return scaled.reshape(len(action), *spec.action_shape).astype(np.float32)
