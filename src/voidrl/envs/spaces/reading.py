"""Interpretation of an environment's spaces for an agent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import gymnasium as gym
from gymnasium import spaces

from voidrl.envs.spaces.actions import action_fields
from voidrl.envs.spaces.masks import NAMES
from voidrl.envs.spaces.observations import chosen_leaves, label, layout, notices, part_of, refusal
from voidrl.errors import ConfigError, SpaceError
from voidrl.types import EnvSpec, ObsPart

NO_MASKS = "env.action_masks = 'none' turns masks off"


class Reading(NamedTuple):
    """Interpretation of an environment's spaces for an agent."""

    spec: EnvSpec
    notices: tuple[str, ...] = ()
    """Notices to the user about the conversion, as sentences."""
    masks: str = "none"
    """Source of action masks: `none`, `info`, `method` or `key`."""


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
    chosen = [leaf for leaf in chosen_leaves(observation, keys) if mask is None or leaf.path != mask.path]
    found = [(leaf, part_of(leaf)) for leaf in chosen]
    parts = tuple(part for _, part in found if part is not None)
    unseen = [leaf for leaf, part in found if part is None]
    if not parts or (unseen and keys):
        raise refusal(observation, unseen[0] if unseen else None)
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
    return Reading(spec, tuple(notices(parts, unseen)), masks)


def _mask_entry(observation: gym.Space, length: int, masks: str) -> ObsPart | None:
    """The part of a Dict that is a mask of actions, if masks may come from there."""
    if masks not in ("auto", "key") or (masks == "auto" and not length):
        return None
    entries = observation.spaces if isinstance(observation, spaces.Dict) else {}
    name = next((name for name in NAMES if name in entries), None)
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
