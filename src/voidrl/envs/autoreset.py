"""Environments that reset in the step that ends an episode, seen as if they did in the next one. No torch.

A SAME_STEP environment puts an episode's last observation into `info["final_obs"]`. It cannot reset some
environments and leave their first action out while others step. So the last observation is handed out first.
The next step is the first one of the new episode for the environment, and the reset for all other code: its
observation begins the episode, and its transition is lost, one per episode. Its reward counts in the score.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from voidrl.errors import ConfigError, VoidrlWarning

KNOWN = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)


def autoreset_of(env: Any, name: str) -> AutoresetMode:
    """The mode of N environments, an attribute or in their metadata: NEXT_STEP or SAME_STEP."""
    found = getattr(env, "autoreset_mode", None)
    if found is None:
        found = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if found not in (*KNOWN, *(mode.value for mode in KNOWN)):
        raise ConfigError(
            f"vector environment {name!r} has autoreset_mode {getattr(found, 'name', found)}: expected "
            f"gymnasium.vector.AutoresetMode.NEXT_STEP or SAME_STEP, as an attribute or in its metadata; set "
            f"it, or use env.backend = 'sync'"
        )
    return AutoresetMode(found)


class SameStep:
    """Converts the results of N environments with SAME_STEP autoreset."""

    def __init__(self, num_envs: int, name: str) -> None:
        self._name, self._warned = name, False
        self.fresh = np.zeros(num_envs, bool)
        """(N,) whether the next step is taken for a reset."""
        self._uncounted = np.zeros(num_envs, np.float32)

    def begin(self) -> None:
        """Forget what had ended."""
        self.fresh[:], self._uncounted[:] = False, 0

    def convert(
        self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Reward, terminated, truncated and score (N,) of a step; then `fresh` says which episodes ended."""
        fresh, ended = self.fresh, terminated | truncated
        score = np.where(fresh, 0, reward + self._uncounted)
        self._uncounted = np.where(fresh & ~ended, reward, 0)
        self.fresh = ended & ~fresh
        return np.where(fresh, 0, reward), terminated & ~fresh, truncated & ~fresh, score

    def final_obs(self, info: dict[str, Any]) -> Any:
        """The last observations of the episodes that ended; None, with one warning, if there are none."""
        final = info.get("final_obs")
        if final is None and not self._warned:
            self._warned = True
            warnings.warn(
                f"vector environment {self._name!r} resets in the step that ends an episode and reports no "
                f"info['final_obs']: the observation before it takes its place, also for the value after a "
                f"truncation",
                VoidrlWarning,
                stacklevel=4,
            )
        return final

    def final_info(self, info: dict[str, Any]) -> dict[str, Any]:
        """The info of a step, with the final values of ended episodes in place of their resets'."""
        final = info.get("final_info")
        if not isinstance(final, dict) or not self.fresh.any():
            return info
        merged = dict(info)
        for key, value in final.items():
            now = info.get(key)
            if isinstance(value, np.ndarray) and isinstance(now, np.ndarray) and now.shape == value.shape:
                rows = self.fresh.reshape(-1, *[1] * (value.ndim - 1))
                merged[key] = np.where(rows, value, now)
            else:
                merged[key] = value
        return merged
