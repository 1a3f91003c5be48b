"""Supported spaces, and the conversion of observations and actions. Does not import torch."""

from voidrl.envs.spaces.check import NUMBERS, ObservationCheck
from voidrl.envs.spaces.frames import (
    MisfitError,
    frames_of,
    info_mask,
    mask_method,
    mask_reader,
    masks_of,
    observed_frames,
    read_env,
    to_frames,
    to_picture,
)
from voidrl.envs.spaces.reading import Reading, env_action, read_spaces, spec_of
from voidrl.envs.spaces.saved import spec_from_json

__all__ = [
    "NUMBERS",
    "MisfitError",
    "ObservationCheck",
    "Reading",
    "env_action",
    "frames_of",
    "info_mask",
    "mask_method",
    "mask_reader",
    "masks_of",
    "observed_frames",
    "read_env",
    "read_spaces",
    "spec_from_json",
    "spec_of",
    "to_frames",
    "to_picture",
]
