"""Limits of config values, and the checks that refuse others."""

from __future__ import annotations

import math

from voidrl.errors import ConfigError, shown

LARGEST = 2**63  # numbers of a config are below it, as torch's are
MAX_ENVS = 8192
MAX_CPU_THREADS = 1024
MAX_FRAMES = 2**31 - 1  # of a game of Atari, which ALE counts in 32 bits
MAX_SKILLS = 2**16  # discrete ones
MAX_UPDATES_PER_STEP = 1024
MAX_EVAL_EPISODES = 10_000
LEAST_PROBE_STEPS, MAX_PROBE_STEPS = 100, 1_000_000
MAX_SNAPSHOTS = 1000
MAX_VIEWS = 16


def require(ok: bool, name: str, value: object, expected: str) -> None:
    """Raise one clear sentence unless `ok`."""
    if not ok:
        raise ConfigError(f"{name} = {shown(value)} cannot be used: expected {expected}")


def require_positive(config: object, *names: str) -> None:
    """Refuse values that are not above zero."""
    for name in names:
        value = getattr(config, name)
        require(0 < value < math.inf, name, value, "a finite number above 0")


def require_skills(name: str, count: int) -> None:
    """Refuse a number of discrete skills among which none could be told from another."""
    reason = "since a skill is rewarded for differing from others; apt and rnd do without skills"
    require(2 <= count <= MAX_SKILLS, name, count, f"2 to {MAX_SKILLS}, {reason}")


def require_update_rate(updates_per_step: float) -> None:
    """Refuse a number of updates per step that no training finishes with."""
    few = 0 < updates_per_step <= MAX_UPDATES_PER_STEP
    require(few, "updates_per_step", updates_per_step, f"a number above 0, up to {MAX_UPDATES_PER_STEP}")
