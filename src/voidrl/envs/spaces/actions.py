"""Action spaces, and the conversion of the agent's actions to the environment's."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from voidrl.errors import SpaceError, shown
from voidrl.types import EnvSpec

MAX_JOINT = 4096  # combinations of choices
MAX_WHOLE = 2**53  # whole numbers that float64 has
TRANSFORM = "gymnasium.wrappers.TransformAction(env, function, space)"


def action_fields(space: gym.Space) -> dict[str, Any]:
    """The fields of an `EnvSpec` that describe actions."""
    if isinstance(space, spaces.Discrete):
        shifted = space.start != 0
        choices = {"action_sizes": (int(space.n),), "action_start": (int(space.start),)} if shifted else {}
        return {"num_actions": int(space.n), **choices}
    if isinstance(space, spaces.MultiDiscrete):
        return _choices(space, space.nvec.ravel().tolist(), space.start.ravel().tolist())
    is_box = isinstance(space, spaces.Box)
    if isinstance(space, spaces.MultiBinary) or (is_box and space.dtype.kind == "b"):  # type: ignore[union-attr]
        bits = math.prod(space.shape or ())
        return _choices(space, [2] * bits, [0] * bits)
    if not isinstance(space, spaces.Box) or space.dtype.kind not in "fiu" or not math.prod(space.shape):
        raise _refusal(space, "Discrete, Box, MultiDiscrete or MultiBinary")
    low, high = space.low.ravel().tolist(), space.high.ravel().tolist()
    whole = space.dtype.kind != "f"
    if not space.is_bounded() or (whole and max(map(abs, (*low, *high))) > MAX_WHOLE):
        raise _refusal(space, "finite bounds")
    return {
        "num_actions": 0,
        "action_low": tuple(map(float, low)),
        "action_high": tuple(map(float, high)),
        "action_shape": space.shape,
        "action_integer": whole,
    }


def _choices(space: gym.Space, sizes: list[int], start: list[int]) -> dict[str, Any]:
    """Combinations of choices as discrete actions."""
    if not sizes or math.prod(sizes) > MAX_JOINT:
        raise _refusal(space, f"1 to {MAX_JOINT} combinations of choices")
    return {
        "num_actions": math.prod(sizes),
        "action_sizes": tuple(sizes),
        "action_start": tuple(start),
        "action_shape": space.shape,
    }


def _refusal(space: gym.Space, expected: str) -> SpaceError:
    return SpaceError(
        f"action space {shown(space)} is not supported: expected {expected}; turn one that is into it with "
        f"{TRANSFORM}, in a function named in env.wrappers"
    )


def env_action(action: np.ndarray, spec: EnvSpec, dtype: npt.DTypeLike | None = None) -> np.ndarray:
    """Convert the agent's actions, (N,) discrete or (N, action_dim) in [−1, 1], to the environment's.

    Args:
        action: The agent's actions.
        spec: The environment's spec.
        dtype: The environment's type; by default float32, or int64 for whole numbers.
    """
    if spec.action_sizes:
        taken: np.ndarray = np.stack(np.unravel_index(action, spec.action_sizes), axis=-1) + np.array(
            spec.action_start
        )
        return taken.reshape(len(action), *spec.action_shape).astype(dtype or np.int64, copy=False)
    if spec.discrete:
        return action
    low, high = np.array(spec.action_low), np.array(spec.action_high)  # float64: the span may exceed float32
    fraction = (action.astype(np.float64) + 1) / 2
    scaled = np.clip(low * (1 - fraction) + high * fraction, low, high)
    if spec.action_integer:
        scaled, dtype = np.rint(scaled), dtype or np.int64
    return scaled.reshape(len(action), *spec.action_shape).astype(dtype or np.float32)
