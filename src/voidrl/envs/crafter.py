"""Crafter (Hafner 2022) as a Gymnasium environment; its package speaks the old Gym's language."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Crafter(gym.Env[np.ndarray, np.int64]):
    """A world of 64 × 64 cells seen from above, 9 × 9 at a time, with 17 actions and 22 achievements.

    Death terminates an episode and its length truncates it. `info["achievements"]` counts achievements in the
    episode.

    Args:
        render_mode: None or "rgb_array".
        size: Pixels per side of the observation.
        options: Keyword arguments of `crafter.Env`: `area`, `view`, `reward`, `length`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, size: int = 64, **options: Any) -> None:
        import crafter  # type: ignore[import-not-found]

        self._game = crafter.Env(size=(size, size), **options)
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(len(self._game.action_names))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode in a new world; a seed determines it."""
        super().reset(seed=seed)
        if seed is not None:  # it makes each world from this number and the number of the episode
            self._game._seed, self._game._episode = seed, 0
        return self._game.reset(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        obs, reward, done, info = self._game.step(int(action))
        dead = info["discount"] == 0
        told = {"achievements": info["achievements"]}
        return obs, float(reward), bool(dead), bool(done and not dead), told

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """A picture of 256 × 256."""
        if self.render_mode is None:
            return None
        own, self._game._size = self._game._size, np.array((256, 256))  # it fails on a size as argument
        try:
            return np.asarray(self._game.render())
        finally:
            self._game._size = own
