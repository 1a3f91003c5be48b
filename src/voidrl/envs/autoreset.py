"""Resets of N environments: in the step after an episode's end, or, for tensors, in that step. No torch.

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


def autoreset_of(env: Any, name: str, *known: AutoresetMode) -> AutoresetMode:
    """The mode of N environments, an attribute or in their metadata; refused if it is not a known one."""
    found = getattr(env, "autoreset_mode", None)
    if found is None:
        found = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if found not in (*known, *(mode.value for mode in known)):
        modes = " or ".join(mode.name for mode in known)
        raise ConfigError(
            f"vector environment {name!r} has autoreset_mode {getattr(found, 'name', found)}: expected "
            f"gymnasium.vector.AutoresetMode.{modes}, as an attribute or in its metadata; set it, or use "
            f"env.backend = 'sync'"
        )
    return AutoresetMode(found)


class SameStep:
    """Converts the results of N environments with SAME_STEP autoreset."""

    def __init__(self, num_envs: int, name: str) -> None:
        self._name, self._warned = name, False
        self._fresh = np.zeros(num_envs, bool)  # whether the next step is taken for a reset
        self._uncounted = np.zeros(num_envs, np.float32)

    def begin(self) -> None:
        """Forget what had ended."""
        self._fresh[:], self._uncounted[:] = False, 0

    def convert(
        self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Reward, terminated, truncated and score (N,) of a step."""
        fresh, ended = self._fresh, terminated | truncated
        score = np.where(fresh, 0, reward + self._uncounted)
        self._uncounted = np.where(fresh & ~ended, reward, 0)
        self._fresh = ended & ~fresh
        return np.where(fresh, 0, reward), terminated & ~fresh, truncated & ~fresh, score

    def final_obs(self, info: dict[str, Any]) -> Any:
        """The last observations of the episodes that ended; None, with one warning, if there are none."""
        final = info.get("final_obs")
        if final is None and not self._warned:
            self._warned = True
            warnings.warn(
                f"environment {self._name!r} resets in the step that ends an episode and reports no "
                f"info['final_obs']: the observation before it takes its place, also for the value after a "
                f"truncation",
                VoidrlWarning,
                stacklevel=4,
            )
        return final
