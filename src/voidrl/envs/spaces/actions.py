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

MAX_JOINT = 4096  # combinations of choices that become discrete actions; beyond, each has its coordinate
MAX_CHOICES = 2**16  # coordinates
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
        raise SpaceError(
            f"action space {shown(space)} is not supported: expected Discrete, Box, MultiDiscrete or "
            f"MultiBinary; turn one of these into it with {TRANSFORM}, in a function named in env.wrappers"
        )
    low, high = space.low.ravel().tolist(), space.high.ravel().tolist()
    whole = space.dtype.kind != "f"
    fine = space.is_bounded() and (not whole or max(map(abs, (*low, *high))) <= MAX_WHOLE)
    if not fine:
        raise SpaceError(
            f"action space {shown(space)} is not supported: expected finite bounds; give it some with "
            f"gymnasium.wrappers.TransformAction(env, lambda action: action, Box(low, high)), in a function "
            f"named in env.wrappers"
        )
    return {
        "num_actions": 0,
        "action_low": tuple(map(float, low)),
        "action_high": tuple(map(float, high)),
        "action_shape": space.shape,
        "action_integer": whole,
    }


def _choices(space: gym.Space, sizes: list[int], start: list[int]) -> dict[str, Any]:
    """Combinations of choices as discrete actions, or as coordinates if there are too many."""
    fields = {"action_sizes": tuple(sizes), "action_start": tuple(start), "action_shape": space.shape}
    if len(sizes) > 0 and math.prod(sizes) <= MAX_JOINT:
        return {"num_actions": math.prod(sizes), **fields}
    coordinates = sum(map(_width, sizes))
    if not 0 < coordinates <= MAX_CHOICES:
        raise SpaceError(
            f"action space {shown(space)} is not supported: expected 1 to {MAX_CHOICES} choices in all; "
            f"turn a smaller space into it with {TRANSFORM}, in a function named in env.wrappers"
        )
    return {
        "num_actions": 0,
        "action_low": (-1.0,) * coordinates,
        "action_high": (1.0,) * coordinates,
        **fields,
    }


def _width(size: int) -> int:
    """Coordinates of a component with this many choices: one for each, but only one for two."""
    return size if size > 2 else size - 1


def num_coordinates(sizes: tuple[int, ...]) -> int:
    """Coordinates of an action that consists of such choices."""
    return sum(map(_width, sizes))


def env_action(action: np.ndarray, spec: EnvSpec, dtype: npt.DTypeLike | None = None) -> np.ndarray:
    """Convert the agent's actions, (N,) discrete or (N, action_dim) in [−1, 1], to the environment's.

    Args:
        action: The agent's actions.
        spec: The environment's spec.
        dtype: The environment's type; by default float32, or int64 for whole numbers.
    """
    if spec.action_sizes:
        taken: np.ndarray = _joint(action, spec) if spec.discrete else _largest(action, spec)
        taken = taken + np.array(spec.action_start)
        return taken.reshape(len(action), *spec.action_shape).astype(dtype or np.int64, copy=False)
    if spec.discrete:
        return action
    low, high = np.array(spec.action_low), np.array(spec.action_high)  # float64: the span may exceed float32
    fraction = (action.astype(np.float64) + 1) / 2
    scaled = np.clip(low * (1 - fraction) + high * fraction, low, high)
    if spec.action_integer:
        scaled, dtype = np.rint(scaled), dtype or np.int64
    return scaled.reshape(len(action), *spec.action_shape).astype(dtype or np.float32)


def _joint(action: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """(N, components): the combination that each discrete action stands for."""
    return np.stack(np.unravel_index(action, spec.action_sizes), axis=-1)


def _largest(action: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """(N, components): the choice with the largest coordinate; of two, by the sign."""
    if set(spec.action_sizes) == {2}:
        return (action > 0).astype(np.int64)
    taken = np.zeros((len(action), len(spec.action_sizes)), np.int64)
    at = 0
    for i, size in enumerate(spec.action_sizes):
        own = action[:, at : at + _width(size)]
        if size > 1:
            taken[:, i] = own.argmax(1) if size > 2 else own[:, 0] > 0
        at += _width(size)
    return taken


def chosen_action(taken: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """The agent's actions for choices (N, *action_shape) as the environment takes them.

    The inverse of `env_action` where the agent's actions are discrete. In [−1, 1] it is one of many
    equivalent actions.
    """
    sizes = spec.action_sizes
    index = taken.reshape(len(taken), -1).astype(np.int64) - np.array(spec.action_start)  # (N, components)
    if spec.discrete:
        return np.asarray(np.ravel_multi_index(tuple(index.T), sizes), np.int64)
    action = np.full((len(taken), spec.action_dim), -1.0, np.float32)
    rows = np.arange(len(taken))
    at = 0
    for component, size in zip(index.T, sizes, strict=True):
        if size > 2:
            action[rows, at + component] = 1
        elif size == 2:
            action[:, at] = 2 * component - 1
        at += _width(size)
    return action
