"""Action masks from environments. Does not import torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv, VectorWrapper

from voidrl.envs.spaces.masks import NAMES
from voidrl.errors import ConfigError

METHODS = ("action_masks", "action_mask", "valid_action_mask")
"""Methods by which environments report masks."""


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
        if callable(method) and _takes_nothing(method):
            return method  # type: ignore[no-any-return]
    return None


def _layers(env: VectorEnv) -> Iterator[VectorEnv]:
    """A vector environment and those inside it; its wrappers do not forward unknown attributes."""
    yield env
    while isinstance(env, VectorWrapper):
        env = env.env
        yield env


def _takes_nothing(method: Callable[..., Any]) -> bool:
    """Whether a method can be called without arguments; the one of Gymnasium's Taxi needs a state."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):  # some callables have no signature
        return True
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(each.default is not each.empty or each.kind in variadic for each in parameters)
