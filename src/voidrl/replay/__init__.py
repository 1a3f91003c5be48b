"""Experience: stored once, sampled on the device."""

from voidrl.replay.make import make_replay
from voidrl.replay.replay import Draw, Replay, Rollout, Segment
from voidrl.replay.ring import SKILL_ENDED, TERMINATED, TRUNCATED

__all__ = ["SKILL_ENDED", "TERMINATED", "TRUNCATED", "Draw", "Replay", "Rollout", "Segment", "make_replay"]
