"""Experience: stored once, sampled on the device."""

from voidrl.replay.make import make_replay
from voidrl.replay.replay import Replay
from voidrl.replay.samples import SKILL_ENDED, TERMINATED, TRUNCATED, Draw, Rollout, Segment

__all__ = [
    "SKILL_ENDED",
    "TERMINATED",
    "TRUNCATED",
    "Draw",
    "Replay",
    "Rollout",
    "Segment",
    "make_replay",
]
