"""Specs from the manifests of runs and shared agents, which may be untrusted."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from voidrl.config.updating import require_type
from voidrl.envs.spaces.frames import mask_length
from voidrl.envs.spaces.reading import MAX_JOINT, MAX_ONE_HOT, MIN_SIDE, layout
from voidrl.errors import ConfigError, SpaceError, shown
from voidrl.types import EnvSpec, ObsPart

MAX_VALUES = 2**28  # of one observation: a stack of 64 images of 1024 × 1024 in four colors
MAX_ACTIONS = 2**20
MAX_ENTRIES = 2**16  # of a list
IMAGE_TYPES = {np.dtype(code).name for code in "?bhilBHILefd"}


def spec_from_json(data: Any) -> EnvSpec:
    """The spec that `EnvSpec.to_json` wrote; anything that no environment could have is refused."""
    spec: EnvSpec = _read(data, EnvSpec, "spec")
    for name, problem in _problems(spec):
        raise SpaceError(f"spec.{name} = {shown(getattr(spec, name))} cannot be used: expected {problem}")
    return spec


def _read(data: Any, kind: type[EnvSpec | ObsPart], at: str) -> Any:
    """A spec, or a part of one, with fields of their declared types."""
    hints = typing.get_type_hints(kind)
    if not isinstance(data, Mapping) or data.keys() != hints.keys():
        raise SpaceError(f"{at} = {shown(data)} cannot be used: expected an object with {', '.join(hints)}")
    values = dict(data)
    for name, value in values.items():
        if isinstance(value, list) and len(value) > MAX_ENTRIES:
            raise SpaceError(f"{at}.{name} cannot be used: expected at most {MAX_ENTRIES} entries")
    if kind is EnvSpec and isinstance(values["parts"], list):
        parts = enumerate(values["parts"])
        values["parts"] = tuple(_read(part, ObsPart, f"{at}.parts[{i}]") for i, part in parts)
    try:
        return kind(**{name: require_type(values[name], hints[name], f"{at}.{name}") for name in hints})
    except ConfigError as error:
        raise SpaceError(str(error)) from None


def _problems(spec: EnvSpec) -> Iterator[tuple[str, str]]:
    """Fields that do not fit, and what was expected."""
    shapes = [spec.frame_shape, spec.raw_shape, spec.action_shape, *(part.shape for part in spec.parts)]
    sizes = [*spec.action_sizes, *(size for part in spec.parts for size in part.sizes)]
    if min((1, *sizes, *(size for shape in shapes for size in shape))) < 1 or spec.frame_stack < 1:
        yield "frame_shape", "sizes above 0, in all shapes"
    if max(map(math.prod, shapes)) * spec.frame_stack > MAX_VALUES or not 0 <= spec.num_values <= MAX_VALUES:
        yield "frame_shape", f"at most {MAX_VALUES} values in one observation"
    if not 0 <= spec.num_actions <= MAX_ACTIONS:
        yield "num_actions", f"0 to {MAX_ACTIONS}"
    bounds = 0 if spec.discrete else math.prod(spec.action_shape)
    ordered = len(spec.action_low) == len(spec.action_high) == bounds
    pairs = zip(spec.action_low, spec.action_high, strict=False)
    if not ordered or not all(-math.inf < low <= high < math.inf for low, high in pairs):
        yield "action_low", f"{bounds} finite bounds, and as many that are not below them in action_high"
    choices = spec.action_sizes
    if choices and (
        math.prod(choices) != spec.num_actions
        or (len(choices) > 1 and spec.num_actions > MAX_JOINT)
        or not len(spec.action_start) == len(choices) == math.prod(spec.action_shape)
    ):
        yield "action_sizes", f"the {spec.num_actions} combinations of num_actions, each with an action_start"
    if spec.masked and not (spec.discrete and spec.parts):
        yield "masked", "false, as there are no discrete actions or no parts"
    if not spec.parts:
        if (len(spec.frame_shape), spec.num_values) != (3 if spec.pixels else 1, 0):
            yield "frame_shape", "one size, or three with pixels, and no num_values"
        if math.prod(spec.raw_shape) != math.prod(spec.frame_shape):
            yield "raw_shape", "the values of a frame"
        return
    for part in spec.parts:
        one_hot = part.kind == "one_hot" and 0 < sum(part.sizes) <= MAX_ONE_HOT
        count = math.prod(part.shape) if one_hot else 0
        fits = len(part.sizes) == len(part.start) == count
        fits = fits and -math.inf < part.low < part.high < math.inf
        if part.kind == "image":
            fits = fits and len(part.shape) in (2, 3) and part.dtype in IMAGE_TYPES
            fits = fits and min(part.image_shape[1:]) >= MIN_SIDE
        if part.kind == "mask":
            fits = fits and spec.masked and math.prod(part.shape) == mask_length(spec)
        if not fits:
            yield "parts", f"another shape, sizes or bounds of {part.name!r}"
    expected = layout(spec.parts, spec.num_actions if spec.masked else 0)
    if (spec.frame_shape, spec.pixels, spec.num_values, spec.raw_shape) != (*expected, ()):
        yield "frame_shape", f"{expected[0]}, as its parts have it"
