"""From voidrl's frames and actions back to the environment's own. Does not import torch."""

from __future__ import annotations

import numpy as np

from voidrl.types import EnvSpec, channels_last


def raw_observation(frames: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """(N, *frame_shape) → (N, *raw_shape): the inverse of `voidrl.spaces.to_frames`."""
    if not spec.pixels:
        return frames
    if channels_last(spec.raw_shape):
        return frames.transpose(0, 2, 3, 1)
    return frames.reshape(len(frames), *spec.raw_shape)


def agent_action(action: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """Actions (N, …) in the environment's range → those of the agent: the inverse of `env_action`."""
    if spec.discrete:
        return action.astype(np.int64)
    low, high = np.array(spec.action_low), np.array(spec.action_high)  # float64: the span may exceed float32
    flat = action.reshape(len(action), -1).astype(np.float64)
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    scaled = np.clip((flat - middle) / np.where(half > 0, half, 1), -1, 1)
    return np.where(half > 0, scaled, 0).astype(np.float32)  # between equal bounds any action is the same
