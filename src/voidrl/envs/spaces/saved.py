"""Specs from the manifests of runs and shared agents, which may be untrusted."""

from __future__ import annotations

import dataclasses
import math
import sys
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from voidrl.envs.spaces.actions import MAX_CHOICES, MAX_JOINT, num_coordinates
from voidrl.envs.spaces.masks import mask_length
from voidrl.envs.spaces.observations import MAX_ONE_HOT, MIN_SIDE, layout
from voidrl.errors import SpaceError, shown
from voidrl.types import EnvSpec, ObsPart, PartKind

MAX_VALUES = 2**28  # of one observation: a stack of 64 images of 1024 × 1024 in four colors
MAX_ACTIONS = 2**20
MAX_AXES = 8
MAX_PARTS = 1024
MAX_KEY = 200  # characters
MAX_INT = 2**63 - 1
IMAGE_TYPES = {"bool", *(np.dtype(code).name for code in "bhilBHILefd")}


def spec_from_json(data: Any) -> EnvSpec:
    """The spec that `EnvSpec.to_json` wrote; anything that no environment could have is refused."""
    _require_fields(data, EnvSpec, "spec")
    for name in ("frame_shape", "raw_shape", "action_shape"):
        _require_shape(data, name)
    for name in ("action_low", "action_high"):
        finite = isinstance(data[name], list) and all(_is_finite(bound) for bound in data[name])
        _require(finite, data, name, "a list of finite numbers")
    for name in ("pixels", "masked", "action_integer"):
        _require(isinstance(data[name], bool), data, name, "true or false")
    frame, axes = data["frame_shape"], 3 if data["pixels"] else 1
    _require(len(frame) == axes, data, "frame_shape", f"{axes} sizes, as pixels = {data['pixels']}")
    _require(_is_whole(data["frame_stack"], 1, 1024), data, "frame_stack", "1 to 1024")
    _require(_is_whole(data["num_values"], 0, MAX_VALUES), data, "num_values", f"0 to {MAX_VALUES}")
    values = math.prod(frame)
    small = (values + 4 * data["num_values"]) * data["frame_stack"] <= MAX_VALUES
    _require(small, data, "frame_shape", f"at most {MAX_VALUES} values in one observation")
    _require(_is_whole(data["num_actions"], 0, MAX_ACTIONS), data, "num_actions", f"0 to {MAX_ACTIONS}")
    _require_actions(data)
    masked = data["masked"]
    _require(not masked or data["num_actions"] > 0, data, "masked", "false for continuous actions")
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
    fields["parts"] = _parts_from_json(data)
    spec = EnvSpec(**fields)
    if not spec.parts:
        _require(math.prod(spec.raw_shape) == values, data, "raw_shape", f"the {values} values of a frame")
        _require(spec.num_values == 0, data, "num_values", "0 without parts")
        _require(not masked, data, "masked", "false without parts")
        return spec
    _require(spec.raw_shape == (), data, "raw_shape", "[], as the observation has parts")
    masks = [part for part in spec.parts if part.kind == "mask"]
    one = len(masks) <= masked and all(math.prod(part.shape) == mask_length(spec) for part in masks)
    _require(one, data, "parts", f"at most {int(masked)} masks, of {mask_length(spec)} values")
    expected = layout(spec.parts, spec.num_actions if masked else 0)
    found = (spec.frame_shape, spec.pixels, spec.num_values)
    _require(found == expected, data, "frame_shape", f"{list(expected[0])}, as its parts have it")
    return spec


def _require_actions(data: Mapping[str, Any]) -> None:
    """Check bounds and choices of actions."""
    sizes, start, low, high = (data[f"action_{name}"] for name in ("sizes", "start", "low", "high"))
    for name in ("action_sizes", "action_start"):
        least = 1 if name == "action_sizes" else -MAX_INT
        whole = isinstance(data[name], list) and all(_is_whole(n, least, MAX_INT) for n in data[name])
        _require(whole, data, name, "a list of whole numbers" + " above 0" * (least == 1))
        _require(len(data[name]) <= MAX_CHOICES, data, name, f"at most {MAX_CHOICES} numbers")
    _require(len(sizes) == len(start), data, "action_start", f"{len(sizes)} numbers, as many as sizes")
    count, num_actions = math.prod(data["action_shape"]), data["num_actions"]
    if sizes:
        _require(len(sizes) == count, data, "action_sizes", f"{count} numbers, as action_shape says")
        _require(not data["action_integer"], data, "action_integer", "false, as actions are choices")
        if num_actions:
            joint = math.prod(sizes) == num_actions and (len(sizes) == 1 or num_actions <= MAX_JOINT)
            _require(joint, data, "action_sizes", f"{num_actions} combinations, as num_actions says")
        coordinates = num_coordinates(tuple(sizes))
    else:
        coordinates = count
    bounds = 0 if num_actions else coordinates
    _require(len(low) == len(high) == bounds, data, "action_low", f"{bounds} bounds, and as many above")
    ordered = all(least <= most for least, most in zip(low, high, strict=True))
    _require(ordered, data, "action_low", "bounds that are not above those of action_high")


def _parts_from_json(data: Mapping[str, Any]) -> tuple[ObsPart, ...]:
    given = data["parts"]
    _require(isinstance(given, list), data, "parts", "a list")
    _require(len(given) <= MAX_PARTS, data, "parts", f"at most {MAX_PARTS} entries")
    return tuple(_part_from_json(part, f"spec.parts[{i}]") for i, part in enumerate(given))


def _part_from_json(data: Any, at: str) -> ObsPart:
    _require_fields(data, ObsPart, at)
    path, kind, sizes, start = (data[name] for name in ("path", "kind", "sizes", "start"))
    keys = isinstance(path, list) and len(path) <= MAX_AXES and all(map(_is_key, path))
    _require(keys, data, "path", f"at most {MAX_AXES} keys of at most {MAX_KEY} characters", at)
    _require(kind in typing.get_args(PartKind), data, "kind", ", ".join(typing.get_args(PartKind)), at)
    _require_shape(data, "shape", at)
    _require(math.prod(data["shape"]) <= MAX_VALUES, data, "shape", f"at most {MAX_VALUES} values", at)
    for name, least in (("sizes", 1), ("start", -MAX_INT)):
        whole = isinstance(data[name], list) and all(_is_whole(n, least, MAX_INT) for n in data[name])
        _require(whole, data, name, "a list of whole numbers", at)
    count = math.prod(data["shape"]) if kind in ("one_hot", "fraction") else 0
    _require(len(sizes) == len(start) == count, data, "sizes", f"{count} numbers, and as many in start", at)
    _require(
        kind != "one_hot" or sum(sizes) <= MAX_ONE_HOT, data, "sizes", f"at most {MAX_ONE_HOT} choices", at
    )
    bounds = _is_finite(data["low"]) and _is_finite(data["high"]) and data["low"] < data["high"]
    _require(bounds, data, "low", "a finite number below high", at)
    known = isinstance(data["dtype"], str) and data["dtype"] in (IMAGE_TYPES if kind == "image" else {""})
    _require(known, data, "dtype", "the type of an image", at)
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }
    part = ObsPart(**fields)
    if kind == "image":
        _require(len(part.shape) in (2, 3), data, "shape", "2 or 3 sizes of an image", at)
        large = min(part.image_shape[1:]) >= MIN_SIDE
        _require(large, data, "shape", f"sides of at least {MIN_SIDE} pixels", at)
    return part


def _require_fields(data: Any, cls: type, at: str) -> None:
    names = [field.name for field in dataclasses.fields(cls)]
    if not isinstance(data, Mapping) or set(data) != set(names):
        given = list(data) if isinstance(data, Mapping) else data
        raise SpaceError(f"{at} = {shown(given)} cannot be used: expected an object with {', '.join(names)}")


def _require_shape(data: Mapping[str, Any], name: str, at: str = "spec") -> None:
    whole = isinstance(data[name], list) and all(_is_whole(size, 1, MAX_VALUES) for size in data[name])
    _require(whole, data, name, "a list of sizes above 0", at)
    _require(len(data[name]) <= MAX_AXES, data, name, f"at most {MAX_AXES} sizes", at)


def _is_key(value: object) -> bool:
    return (isinstance(value, str) and len(value) <= MAX_KEY) or _is_whole(value, 0, MAX_VALUES)


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_finite(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def _require(ok: bool, data: Mapping[str, Any], name: str, expected: str, at: str = "spec") -> None:
    if not ok:
        raise SpaceError(f"{at}.{name} = {shown(data[name])} cannot be used: expected {expected}")
