"""Masks of allowed actions: where environments report them, and their conversion."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from voidrl.errors import ConfigError
from voidrl.types import EnvSpec

NAMES = ("action_mask", "action_masks")
"""Keys of `info` or of a Dict observation under which environments report masks."""
METHODS = ("action_masks", "action_mask", "valid_action_mask")
"""Methods by which environments report masks."""


class MisfitError(Exception):
    """Something that does not fit an environment's space.

    Args:
        found: A phrase for what was found.
        expected: What was expected.
        env: The index of the environment; None if all of them are concerned.
    """

    def __init__(self, found: str, expected: str, env: int | None = None) -> None:
        super().__init__(f"{found}: {expected}")
        self.found, self.expected, self.env = found, expected, env


class MaskReader:
    """Reads masks of actions as an environment gives them; None where it gives none.

    Args:
        env: The environment, or N of them.
        masks: Their source: `info`, `method` or `key`.
    """

    def __init__(self, env: gym.Env | VectorEnv, masks: str) -> None:
        self._method = mask_method(env) if masks == "method" else None
        if masks == "method" and self._method is None:
            raise ConfigError(
                f"env.action_masks = 'method' cannot be used with {env}: expected a method without arguments "
                f"of the name {' or '.join(METHODS)}"
            )
        self._in_info = masks == "info"

    def __call__(self, obs: Any, info: Mapping[str, Any]) -> Any:
        """The masks after a step or reset."""
        if self._method is not None:
            return self._method()
        return info_mask(info if self._in_info else obs)


def info_mask(info: Mapping[str, Any]) -> Any:
    """The mask of actions in an info, or in a Dict observation; None if there is none."""
    return next((info[name] for name in NAMES if info.get(name) is not None), None)


def mask_method(env: gym.Env | VectorEnv) -> Callable[[], Any] | None:
    """The method by which an environment, or a wrapper of it, reports masks of actions."""
    for name in METHODS:
        if isinstance(env, gym.Env):
            method = env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
        else:
            method = next((getattr(each, name) for each in _layers(env) if hasattr(each, name)), None)
        if callable(method) and not _required(method):  # the one of Gymnasium's Taxi needs a state
            return method  # type: ignore[no-any-return]
    return None


def _layers(env: VectorEnv) -> Iterator[VectorEnv]:
    """A vector environment and those inside it; its wrappers do not forward unknown attributes."""
    yield env
    while isinstance(env, VectorWrapper):
        env = env.env
        yield env


def _required(method: Callable[..., Any]) -> bool:
    """Whether a method cannot be called without arguments."""
    try:
        inspect.signature(method).bind()
    except TypeError:
        return True
    except ValueError:  # some callables have no signature
        pass
    return False


def mask_length(spec: EnvSpec) -> int:
    """Length of a mask as environments give it: one entry for each choice of each component."""
    return sum(spec.action_sizes) or spec.num_actions


def masks_of(given: Any, spec: EnvSpec, *batch: int, ended: np.ndarray | bool = False) -> np.ndarray:
    """Masks (N, num_actions) float32 from environments' masks.

    Args:
        given: (*batch, length), or for one environment also a sequence of masks, one for each component.
        spec: The environment's spec.
        batch: N, or empty for one environment.
        ended: (N,) where the episode is over, so that no action follows and the mask does not matter.
    """
    length = mask_length(spec)
    over = np.broadcast_to(ended, batch or (1,))
    expected = f"expected {length} values 0 or 1, one for each action"
    try:
        if not batch and isinstance(given, tuple | list) and given and np.ndim(given[0]):
            given = np.concatenate([np.ravel(each) for each in given])
        found = np.asarray(given)
    except ValueError:  # ragged
        raise MisfitError("a mask of actions that is no array", expected, 0) from None
    if over.all() and (given is None or found.dtype == object):
        return np.ones((len(over), spec.num_actions), np.float32)
    if found.dtype.kind not in "biuf":
        what = "no mask of actions" if given is None else f"a mask of type {found.dtype}"
        raise MisfitError(what, expected, 0)
    if found.shape != (*batch, length):
        ignoring = f"{expected} (env.action_masks = 'none' ignores it)"
        raise MisfitError(f"a mask of actions of shape {found.shape}", ignoring, 0)
    found = found.reshape(-1, length)
    wrong = ((found != 0) & (found != 1)).any(1) & ~over
    if wrong.any():
        env = int(wrong.argmax())
        raise MisfitError(f"the mask of actions {found[env].tolist()}", expected, env)
    masks = joint_masks(found, spec)
    empty = ~masks.any(1)
    if (empty & ~over).any():
        env = int((empty & ~over).argmax())
        at_least = "expected at least one, or the end of the episode"
        raise MisfitError("a mask that allows no action", at_least, env)
    masks[empty] = 1
    return masks


def joint_masks(masks: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """(N, num_actions) float32: a combination of choices is allowed if each of them is."""
    masks = (masks != 0).astype(np.float32)
    if len(spec.action_sizes) < 2:
        return masks
    joint = np.ones((len(masks), 1), np.float32)
    at = 0
    for size in spec.action_sizes:
        joint = (joint[:, :, None] * masks[:, None, at : at + size]).reshape(len(masks), -1)
        at += size
    return joint
