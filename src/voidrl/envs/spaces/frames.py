"""Conversion of an environment's observations to frames, and of its masks of allowed actions.

Images with numbers alongside are one uint8 array: behind the channels of the image lie planes whose first
bytes are the numbers, as little-endian float32, and whose rest is 0. Replay and checkpoints store frames
without knowing of it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper

from voidrl.config import EnvConfig
from voidrl.envs.spaces.reading import MASKS, Reading, label, parts_of, read_spaces
from voidrl.errors import ConfigError, SpaceError, shown
from voidrl.types import EnvSpec, ObsPart, channels_last

FLOAT32 = np.dtype("<f4")
METHODS = ("action_masks", "action_mask", "valid_action_mask")
"""Methods by which environments report masks."""


def to_frames(obs: Any, spec: EnvSpec) -> np.ndarray:
    """Convert observations, N of them as vector environments return them, to frames (N, *stored_shape)."""
    return frames_of([np.asarray(part.find(obs)) for part in parts_of(spec)], spec)


def frames_of(values: Sequence[np.ndarray], spec: EnvSpec, mask: np.ndarray | None = None) -> np.ndarray:
    """Frames (N, *stored_shape) from the values (N, *shape) of each part; of one image it may be a view.

    The mask (N, num_actions), 1 where an action is allowed, may also be a part.
    """
    n = len(values[0])
    numbers: list[np.ndarray] = []  # (N, k) each
    images: list[np.ndarray] = []  # (N, C, H, W) each
    for part, value in zip(parts_of(spec), values, strict=True):
        if part.kind == "image":
            images.append(_image(value, part))
            continue
        row = value.reshape(n, math.prod(value.shape[1:]))  # also for n = 0
        if part.kind == "mask":
            mask = joint_masks(row, spec) if mask is None else mask
        else:
            numbers.append(row if part.kind == "numbers" else _one_hots(row, part))
    if spec.masked:
        numbers.append(np.ones((n, spec.num_actions)) if mask is None else mask)
    if not images:
        return np.concatenate(numbers, axis=1, dtype=np.float32, casting="unsafe")
    if len(images) == 1 and not numbers:
        return np.ascontiguousarray(images[0])
    frames = np.zeros((n, *spec.stored_shape), np.uint8)
    at = 0
    for image in images:
        channels, height, width = image.shape[1:]
        frames[:, at : at + channels, :height, :width] = image
        at += channels
    if numbers:
        packed = np.concatenate(numbers, axis=1, dtype=FLOAT32, casting="unsafe").view(np.uint8)
        start = math.prod(spec.frame_shape)
        frames.reshape(n, -1)[:, start : start + packed.shape[1]] = packed
    return frames


def _image(value: np.ndarray, part: ObsPart) -> np.ndarray:
    """(N, C, H, W) uint8."""
    if part.dtype == "bool":
        value = value.astype(np.uint8) * np.uint8(255)
    elif part.dtype != "uint8":
        if (part.low, part.high) != (0, 255):
            value = (value.astype(np.float64) - part.low) * 255 / (part.high - part.low)
        value = np.clip(np.rint(value), 0, 255).astype(np.uint8)
    if channels_last(part.shape):
        value = value.transpose(0, 3, 1, 2)
    return value.reshape(len(value), *part.image_shape)


def _one_hots(value: np.ndarray, part: ObsPart) -> np.ndarray:
    """(N, Σ sizes) of choices (N, components)."""
    sizes, start = np.array(part.sizes), np.array(part.start)
    index = value.astype(np.int64) - start
    if not ((index >= 0) & (index < sizes)).all():
        last = (start + sizes - 1).tolist()
        raise SpaceError(
            f"{label(part.path)} = {value.tolist()} cannot be seen: expected {part.start} to {tuple(last)}"
        )
    hot = np.zeros((len(value), sum(part.sizes)), np.float32)
    hot[np.arange(len(value))[:, None], index + np.cumsum(sizes) - sizes] = 1
    return hot


def observed_frames(obs: Any, spec: EnvSpec, action_mask: Any = None) -> tuple[np.ndarray, bool]:
    """Frames from a user's observations: (B, *obs_shape) as stored, and whether it was one observation.

    Args:
        obs: One observation or a batch, as the environment gives them. With `frame_stack` > 1 the last frames
            lie along an axis before each array's own, oldest first.
        spec: The environment's spec.
        action_mask: The mask of actions for the newest frame, or one for each of the batch.
    """
    values, single = _observed(obs, spec)
    stack = spec.frame_stack
    batch = len(values[0]) // stack
    masks = _newest_masks(values, spec, batch, action_mask)
    frames = frames_of(values, spec, masks)
    return frames.reshape(batch, stack * spec.stored_shape[0], *spec.stored_shape[1:]), single


def _newest_masks(values: Sequence[np.ndarray], spec: EnvSpec, batch: int, given: Any) -> np.ndarray | None:
    """(B · frame_stack, num_actions): the masks for the newest frames; older ones do not matter."""
    in_obs = [value for part, value in zip(spec.parts, values, strict=False) if part.kind == "mask"]
    if in_obs and given is None:
        given = in_obs[0].reshape(batch, spec.frame_stack, -1)[:, -1]
    elif in_obs or (given is not None and not spec.masked):
        why = "is a part of its observations" if in_obs else "does not exist in its environment"
        raise SpaceError(f"action_mask = {shown(given)} cannot be used by this agent: the mask {why}")
    elif not spec.masked:
        return None
    elif given is None:
        raise SpaceError(
            f"no action_mask was given: expected {mask_length(spec)} values 0 or 1, since the agent's "
            f"environment has masks; pass action_mask=info['action_mask'], or what its method returns"
        )
    if np.ndim(given) == 1:
        given = np.broadcast_to(given, (batch, len(given)))
    rows, over = np.asarray(given), np.zeros(batch, bool)
    # In a batch, an environment whose episode is over waits for its reset, with a mask that allows nothing.
    if batch > 1 and rows.shape == (batch, mask_length(spec)):
        over = np.asarray(~rows.any(-1))
    masks = np.ones((batch, spec.frame_stack, spec.num_actions), np.float32)
    try:
        masks[:, -1] = masks_of(given, spec, batch, ended=over)
    except MisfitError as misfit:
        raise SpaceError(f"{misfit.found} cannot be used as action_mask: {misfit.expected}") from None
    return masks.reshape(-1, spec.num_actions)


def _observed(obs: Any, spec: EnvSpec) -> tuple[list[np.ndarray], bool]:
    """The values of each part, (B · frame_stack, *shape), and whether this is one observation, no batch."""
    stack = () if spec.frame_stack == 1 else (spec.frame_stack,)
    values: list[np.ndarray] = []
    lead: tuple[int, ...] | None = None
    for part in parts_of(spec):
        name, shape = label(part.path), (*stack, *part.shape)
        try:
            value = np.asarray(part.find(obs))
        except (KeyError, IndexError, TypeError):
            raise SpaceError(f"observation {shown(obs)} cannot be acted on: expected {name}") from None
        axes = value.ndim - len(shape)
        if axes not in (0, 1) or value.shape[axes:] != shape or lead not in (None, value.shape[:axes]):
            raise SpaceError(
                f"{name} of shape {value.shape} cannot be acted on: expected {shape} or (batch, *{shape}), "
                f"with the same batch everywhere"
            )
        image = part.dtype if part.kind == "image" else ""
        casts = image != "uint8" and np.can_cast(value.dtype, image or float, "same_kind")
        fits = casts or value.dtype == image
        if value.dtype.kind not in "biuf" or (image and not fits):
            kind = f"an image of {image}" if image else "numbers"
            raise SpaceError(f"{name} of {value.dtype} cannot be acted on: expected {kind}")
        lead = value.shape[:axes]
        values.append(value.reshape(-1, *part.shape))
    return values, not lead


def to_picture(frame: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """Convert a frame (C, H, W) to a picture (H, W, 3) of the first image of an observation.

    Of an image that is a stack, it shows the newest. In observations with parts, images that have neither one
    channel nor colors are shown by the brightest channel.
    """
    if not spec.parts:
        shown = frame[-3:] if len(frame) % 3 == 0 else frame[-1:].repeat(3, axis=0)
        return np.ascontiguousarray(shown.transpose(1, 2, 0))
    channels, height, width = next(part.image_shape for part in spec.parts if part.kind == "image")
    image = frame[:channels, :height, :width]
    shown = image[:3] if channels in (3, 4) else image.max(0, keepdims=True).repeat(3, axis=0)
    return np.ascontiguousarray(shown.transpose(1, 2, 0))


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


def mask_reader(env: gym.Env | VectorEnv, masks: str) -> Callable[[Any, Mapping[str, Any]], Any]:
    """A function that finds the masks, from `info`, `method` or `key`, given an observation and an info.

    They are as the environment gives them, and None where it gives none.
    """
    if masks != "method":
        return lambda obs, info: info_mask(info if masks == "info" else obs)
    method = mask_method(env)
    if method is None:
        raise ConfigError(
            f"env.action_masks = 'method' cannot be used with {env}: expected a method without arguments "
            f"of the name {' or '.join(METHODS)}"
        )
    return lambda obs, info: method()


def info_mask(info: Mapping[str, Any]) -> Any:
    """The mask of actions in an info, or in a Dict observation; None if there is none."""
    return next((info[name] for name in MASKS if info.get(name) is not None), None)


def spaces_of(env: gym.Env | VectorEnv) -> tuple[gym.Space, gym.Space]:
    """The spaces of observations and actions of an environment, or of one of N."""
    if isinstance(env, VectorEnv):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def read_env(env: gym.Env | VectorEnv, config: EnvConfig) -> Reading:
    """Read the spaces of an environment, or of N of them, and find the source of its masks."""
    observation, action = spaces_of(env)
    masks, discrete = config.action_masks, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if masks == "auto" and isinstance(action, discrete) and mask_method(env) is not None:
        masks = "method"
    try:
        return read_spaces(observation, action, config.frame_stack, keys=config.keys, masks=masks)
    except SpaceError as error:
        raise SpaceError(f"environment {config.id!r}: {error}") from None


def mask_method(env: gym.Env | VectorEnv) -> Callable[[], Any] | None:
    """The method by which an environment, or a wrapper of it, reports masks of actions."""
    for name in METHODS:
        if isinstance(env, gym.Env):
            method = env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
        else:
            method = next((getattr(each, name) for each in _layers(env) if hasattr(each, name)), None)
        if callable(method):
            try:
                with suppress(ValueError):  # compiled ones have no signature
                    inspect.signature(method).bind()
            except TypeError:  # the one of Gymnasium's Taxi needs a state
                continue
            return method  # type: ignore[no-any-return]
    return None


def _layers(env: VectorEnv) -> Iterator[VectorEnv]:
    """A vector environment and those inside it; its wrappers do not forward unknown attributes."""
    yield env
    while isinstance(env, VectorWrapper):
        env = env.env
        yield env


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
