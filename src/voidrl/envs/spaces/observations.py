"""Conversion of an observation space to the parts of a frame.

A Box is an image if all of this holds; any other Box is numbers:

- it has 2 axes (uint8 or bool) or 3, one of which, the first or the last, is the channels;
- both sides have at least 7 pixels;
- it is uint8 or bool; or its values have bounds, and the channels are at most 4 or at most half as many as
  the shorter side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from voidrl.errors import SpaceError, UnknownNameError, shown
from voidrl.types import ObsPart

MIN_SIDE = 7  # of an image; smaller ones are numbers
FEW_CHANNELS = 4
MAX_BOUND = 1e6  # of images: beyond it, eight bits would be too coarse
MAX_WHOLE = 2**16  # values of an image of integers
MAX_ONE_HOT = 4096
MANY_NUMBERS = 16384  # of one array with more than two axes
FLATTEN = "gymnasium.wrappers:FlattenObservation"
TRANSFORM = "gymnasium.wrappers.TransformObservation(env, function, space)"


class Leaf(NamedTuple):
    """A space that is no Dict or Tuple."""

    path: tuple[str | int, ...]
    space: gym.Space


def leaves(space: gym.Space, path: tuple[str | int, ...] = ()) -> Iterator[Leaf]:
    """The spaces inside nested Dicts and Tuples, in their order."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for i, inner in enumerate(space.spaces):
            yield from leaves(inner, (*path, i))
    else:
        yield Leaf(path, space)


def label(path: Sequence[str | int]) -> str:
    """The expression that finds a part: `observation['agent'][0]`."""
    return "observation" + "".join(f"[{key!r}]" for key in path)


def chosen_leaves(space: gym.Space, keys: Sequence[str]) -> list[Leaf]:
    """The leaves that `env.keys` names, in that order; all of them if it names none."""
    found = list(leaves(space))
    if not keys:
        return found
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        raise SpaceError(
            f"env.keys = {shown(list(keys))} cannot be used with observation space {space}: expected a Dict, "
            f"or env.keys = []"
        )
    chosen: list[Leaf] = []
    for key in keys:
        inside = [leaf for leaf in found if f"{_name(leaf.path)}/".startswith(f"{key}/")]
        if not inside:
            known = {_name(leaf.path[:depth]) for leaf in found for depth in range(1, len(leaf.path) + 1)}
            raise UnknownNameError("key of observations (env.keys)", key, known)
        chosen += [leaf for leaf in inside if leaf not in chosen]
    return chosen


def _name(path: Sequence[str | int]) -> str:
    return "/".join(map(str, path))


def part_of(leaf: Leaf) -> ObsPart | None:
    """The part of a frame that a space becomes; None if it cannot be one."""
    path, space = leaf
    if isinstance(space, spaces.Discrete):
        return _choices(path, (), [int(space.n)], [int(space.start)])
    if isinstance(space, spaces.MultiDiscrete):
        return _choices(path, space.shape, space.nvec.ravel().tolist(), space.start.ravel().tolist())
    if isinstance(space, spaces.MultiBinary):
        return ObsPart(path, "numbers", space.shape)
    if not isinstance(space, spaces.Box) or not math.prod(space.shape) or space.dtype.kind not in "biuf":
        return None
    return _image(path, space) or ObsPart(path, "numbers", space.shape)


def _choices(
    path: tuple[str | int, ...], shape: tuple[int, ...], sizes: list[int], start: list[int]
) -> ObsPart | None:
    if not sizes:
        return None
    kind = "one_hot" if sum(sizes) <= MAX_ONE_HOT else "fraction"
    return ObsPart(path, kind, shape, tuple(sizes), tuple(start))  # type: ignore[arg-type]


def _image(path: tuple[str | int, ...], space: spaces.Box) -> ObsPart | None:
    """The part of an image, by the rule above; None if it is none."""
    kind = space.dtype.kind
    pixels = space.dtype == np.uint8 or kind == "b"
    if len(space.shape) not in ((2, 3) if pixels else (3,)):
        return None
    part = ObsPart(path, "image", space.shape, dtype=space.dtype.name)
    channels, *sides = part.image_shape
    if min(sides) < MIN_SIDE:
        return None
    if pixels:
        return ObsPart(path, "image", space.shape, dtype=space.dtype.name, high=1.0) if kind == "b" else part
    if channels > FEW_CHANNELS and 2 * channels > min(sides):
        return None
    low, high = float(space.low.min()), float(space.high.max())
    if kind != "f" and low >= 0 and high <= 255:
        return part
    fine = high - low < MAX_WHOLE if kind != "f" else max(abs(low), abs(high)) <= MAX_BOUND
    if not fine or low == high:  # unbounded ones have infinite bounds, or their type's
        return None
    return ObsPart(path, "image", space.shape, dtype=space.dtype.name, low=low, high=high)


def layout(parts: Sequence[ObsPart], num_masked: int) -> tuple[tuple[int, ...], bool, int]:
    """Shape of the frame, whether it is an image, and the numbers that come with the image.

    Images lie behind each other as channels; smaller ones are padded at the bottom and at the right.
    """
    numbers = sum(part.num_values for part in parts) + num_masked
    images = [part.image_shape for part in parts if part.kind == "image"]
    if not images:
        return (numbers,), False, 0
    channels, heights, widths = zip(*images, strict=True)
    return (sum(channels), max(heights), max(widths)), True, numbers


def refusal(space: gym.Space, unseen: Leaf | None) -> SpaceError:
    """The error for observations without a usable part; `unseen` is an unsupported part."""
    expected = "expected Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
    leaf = unseen.space if unseen is not None else None
    if isinstance(leaf, spaces.Text | spaces.OneOf):
        remedy = f"env.wrappers = ['{FLATTEN}'] makes a vector of it"
    elif leaf is None or isinstance(leaf, spaces.Box):
        remedy = "at least one of them must not be empty"
    else:
        remedy = f"turn it into a Box with {TRANSFORM}, in a function named in env.wrappers"
    return SpaceError(f"observation space {shown(space)} is not supported: {expected}; {remedy}")


def notices(parts: Sequence[ObsPart], unseen: Sequence[Leaf]) -> Iterator[str]:
    """Notices to the user about how observations are converted, as sentences."""
    if unseen:
        names = ", ".join(f"{label(leaf.path)} ({type(leaf.space).__name__})" for leaf in unseen)
        yield f"the agent does not see {names}: a wrapper could turn it into numbers (env.wrappers)"
    for part in parts:
        scaled = part.kind == "image" and (part.low, part.high) != (0, 255) and part.dtype != "bool"
        if scaled:
            bounds = f"[{part.low:g}, {part.high:g}]"
            yield f"{label(part.path)} is an image of {part.dtype} in {bounds}: stored with 8 bits per value"
        if part.kind == "numbers" and len(part.shape) > 2 and part.num_values > MANY_NUMBERS:
            yield (
                f"{label(part.path)} of shape {part.shape} is no image and enters the networks as "
                f"{part.num_values} numbers: stacks of frames belong to env.frame_stack"
            )
    sizes = {part.image_shape[1:] for part in parts if part.kind == "image"}
    if len(sizes) > 1:
        largest = "×".join(str(max(side)) for side in zip(*sizes, strict=True))
        yield f"the images of an observation differ in size: smaller ones are padded to {largest}"
