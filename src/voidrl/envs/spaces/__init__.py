"""Supported spaces, and the conversion of observations and actions. Does not import torch."""

from voidrl.envs.spaces.frames import observed_frames, to_frames
from voidrl.envs.spaces.reading import env_action, read_spaces, spec_of
from voidrl.envs.spaces.saved import spec_from_json

__all__ = ["env_action", "observed_frames", "read_spaces", "spec_from_json", "spec_of", "to_frames"]
