"""Supported spaces, and their interpretation for an agent.

A Box is an image if all of this holds; any other Box is numbers:

- it has 2 axes (uint8 or bool) or 3, one of which, the first or the last, is the channels;
- both sides have at least 7 pixels;
- it is uint8 or bool; or its values have bounds, and the channels are at most 4 or at most half as many as
  the shorter side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from voidrl.errors import ConfigError, SpaceError, UnknownNameError, shown
from voidrl.types import EnvSpec, ObsPart

MIN_SIDE = 7  # of an image; smaller ones are numbers
FEW_CHANNELS = 4
MAX_BOUND = 1e6  # of images: beyond it, eight bits would be too coarse
MAX_WHOLE = 2**16  # values of an image of integers
MAX_ONE_HOT = 4096
MAX_JOINT = 4096  # combinations of choices
MAX_ACTION = 2**53  # whole numbers that float64 has
MASKS = ("action_mask", "action_masks")
"""Keys of `info` or of a Dict observation under which environments report masks."""
FLATTEN = "gymnasium.wrappers:FlattenObservation"
TRANSFORM = "gymnasium.wrappers.TransformObservation(env, function, space)"
NO_MASKS = "env.action_masks = 'none' turns masks off"
Path = tuple[str | int, ...]


class Reading(NamedTuple):
    """Interpretation of an environment's spaces for an agent."""

    spec: EnvSpec
    notices: tuple[str, ...] = ()
    """Notices to the user about the conversion, as sentences."""
    masks: str = "none"
    """Source of action masks: `none`, `info`, `method` or `key`."""


class Leaf(NamedTuple):
    """A space that is no Dict or Tuple."""

    path: Path
    space: gym.Space


def label(path: Sequence[str | int]) -> str:
    """The expression that finds a part: `observation['agent'][0]`."""
    return "observation" + "".join(f"[{key!r}]" for key in path)


def parts_of(spec: EnvSpec) -> tuple[ObsPart, ...]:
    """The parts of observations; of those that are taken as they are, the whole is the only one."""
    whole = ObsPart((), "image" if spec.pixels else "numbers", spec.raw_shape, dtype="uint8")
    return spec.parts or (whole,)


def spec_of(observation: gym.Space, action: gym.Space, frame_stack: int) -> EnvSpec:
    """The spec of an environment with these spaces."""
    return read_spaces(observation, action, frame_stack).spec


def read_spaces(
    observation: gym.Space,
    action: gym.Space,
    frame_stack: int,
    *,
    keys: Sequence[str] = (),
    masks: str = "none",
) -> Reading:
    """Read the spaces of an environment.

    Args:
        observation: The space of observations.
        action: The space of actions.
        frame_stack: Frames of one observation.
        keys: The entries of a Dict that the agent sees; all by default.
        masks: Source of action masks; `auto` takes an entry `action_mask` of a Dict, if there is
            one.
    """
    fields = action_fields(action)
    num_actions = fields["num_actions"]
    length = sum(fields.get("action_sizes", ())) or num_actions
    mask = _mask_entry(observation, length if num_actions else 0, masks)
    masks = "key" if mask is not None else "none" if masks == "auto" else masks
    if masks != "none" and not num_actions:
        raise ConfigError(
            f"env.action_masks = {masks!r} cannot be used with action space {action}: expected discrete "
            f"actions; {NO_MASKS}"
        )
    chosen = [leaf for leaf in _chosen_leaves(observation, keys) if mask is None or leaf.path != mask.path]
    found = [(leaf, _part_of(leaf)) for leaf in chosen]
    parts = tuple(part for _, part in found if part is not None)
    unseen = [leaf for leaf, part in found if part is None]
    if not parts or (unseen and keys):
        raise _refusal(observation, unseen[0].space if unseen else None)
    if mask is not None:
        parts = (*parts, mask)
    masked = masks != "none"
    frame, pixels, num_values = layout(parts, num_actions if masked else 0)
    only = parts[0]
    plain = isinstance(observation, spaces.Box) and not masked and only.dtype in ("", "uint8")
    spec = EnvSpec(
        frame,
        pixels,
        frame_stack,
        raw_shape=only.shape if plain else (),
        num_values=num_values,
        masked=masked,
        parts=() if plain else parts,
        **fields,
    )
    return Reading(spec, tuple(_notices(parts, unseen)), masks)


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


def _mask_entry(observation: gym.Space, length: int, masks: str) -> ObsPart | None:
    """The part of a Dict that is a mask of actions, if masks may come from there."""
    if masks not in ("auto", "key") or (masks == "auto" and not length):
        return None
    entries = observation.spaces if isinstance(observation, spaces.Dict) else {}
    name = next((name for name in MASKS if name in entries), None)
    if name is None:
        if masks == "auto":
            return None
        raise ConfigError(
            f"env.action_masks = 'key' cannot be used with observation space {observation}: expected a Dict "
            f"with an entry 'action_mask'"
        )
    space = entries[name]
    if not isinstance(space, spaces.Box | spaces.MultiBinary) or math.prod(space.shape or ()) != length:
        raise SpaceError(
            f"{label([name])} is {space}: expected {length} values, one for each action; {NO_MASKS}, so that "
            f"the agent sees them as numbers"
        )
    return ObsPart((name,), "mask", space.shape or ())


def _leaves(space: gym.Space, path: Path = ()) -> Iterator[Leaf]:
    """The spaces inside nested Dicts and Tuples, in their order."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for i, inner in enumerate(space.spaces):
            yield from _leaves(inner, (*path, i))
    else:
        yield Leaf(path, space)


def _chosen_leaves(space: gym.Space, keys: Sequence[str]) -> list[Leaf]:
    """The leaves that `env.keys` names, in that order; all of them if it names none."""
    found = list(_leaves(space))
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


def _name(path: Path) -> str:
    return "/".join(map(str, path))


def _part_of(leaf: Leaf) -> ObsPart | None:
    """The part of a frame that a space becomes; None if it cannot be one."""
    path, space = leaf
    if isinstance(space, spaces.Discrete):
        space = spaces.MultiDiscrete([space.n], start=[space.start])
    if isinstance(space, spaces.MultiDiscrete):
        sizes, start = tuple(space.nvec.ravel().tolist()), tuple(space.start.ravel().tolist())
        shape = () if isinstance(leaf.space, spaces.Discrete) else space.shape
        return ObsPart(path, "one_hot", shape, sizes, start) if 0 < sum(sizes) <= MAX_ONE_HOT else None
    if isinstance(space, spaces.MultiBinary):
        return ObsPart(path, "numbers", space.shape)
    if not isinstance(space, spaces.Box) or not math.prod(space.shape) or space.dtype.kind not in "biuf":
        return None
    return _image(path, space) or ObsPart(path, "numbers", space.shape)


def _image(path: Path, space: spaces.Box) -> ObsPart | None:
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


def _refusal(space: gym.Space, unseen: gym.Space | None) -> SpaceError:
    """The error for observations without a usable part; `unseen` is an unsupported part."""
    expected = (
        f"expected Box, Discrete, MultiDiscrete (of at most {MAX_ONE_HOT} choices), MultiBinary, or a Dict "
        f"or Tuple of these"
    )
    if isinstance(unseen, spaces.Text | spaces.OneOf):
        remedy = f"env.wrappers = ['{FLATTEN}'] makes a vector of it"
    elif unseen is None or isinstance(unseen, spaces.Box):
        remedy = "at least one of them must not be empty"
    else:
        remedy = f"turn it into a Box with {TRANSFORM}, in a function named in env.wrappers"
    return SpaceError(f"observation space {shown(space)} is not supported: {expected}; {remedy}")


def _notices(parts: Sequence[ObsPart], unseen: Sequence[Leaf]) -> Iterator[str]:
    if unseen:
        names = ", ".join(f"{label(leaf.path)} ({type(leaf.space).__name__})" for leaf in unseen)
        yield f"the agent does not see {names}: a wrapper could turn it into numbers (env.wrappers)"
    for part in parts:
        if part.kind == "image" and (part.low, part.high) != (0, 255) and part.dtype != "bool":
            bounds = f"[{part.low:g}, {part.high:g}]"
            yield f"{label(part.path)} is an image of {part.dtype} in {bounds}: stored with 8 bits per value"


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
        raise _action_refusal(space, "Discrete, Box, MultiDiscrete or MultiBinary")
    low, high = space.low.ravel().tolist(), space.high.ravel().tolist()
    whole = space.dtype.kind != "f"
    if not space.is_bounded() or (whole and max(map(abs, (*low, *high))) > MAX_ACTION):
        raise _action_refusal(space, "finite bounds")
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
        raise _action_refusal(space, f"1 to {MAX_JOINT} combinations of choices")
    return {
        "num_actions": math.prod(sizes),
        "action_sizes": tuple(sizes),
        "action_start": tuple(start),
        "action_shape": space.shape,
    }


def _action_refusal(space: gym.Space, expected: str) -> SpaceError:
    return SpaceError(
        f"action space {shown(space)} is not supported: expected {expected}; turn one that is into it with "
        f"gymnasium.wrappers.TransformAction(env, function, space), in a function named in env.wrappers"
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
