"""Vector environments with another autoreset mode, converted to Gymnasium's NEXT_STEP. Does not import torch.

A SAME_STEP environment resets within the step that ends an episode, and puts the episode's last observation
into `info["final_obs"]`; with DISABLED the caller resets. Neither can reset some environments and leave their
first action out while others step. The converted environment therefore hands out the last observation first.
The next step is the first one of the new episode for the environment, and the reset for all other code: its
observation begins the episode, and its transition is lost, one per episode. Its reward counts in the score.
The action for it was chosen by the last observation of the episode before, so that masks of actions must be
looked up again.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from voidrl.errors import VoidrlWarning

FINAL_OBS = ("final_obs", "final_observation")  # Gymnasium's key, and the one before 1.0
NO_FINAL_OBS = (
    "vector environment {name!r} resets in the step that ends an episode and reports no info['final_obs']: "
    "the observation before it takes its place, also for the value after a truncation"
)


def autoreset_mode(metadata: dict[str, Any] | None) -> AutoresetMode | None:
    """The mode in the metadata of a vector environment, which may be a text; None if it has none."""
    try:
        return AutoresetMode((metadata or {}).get("autoreset_mode"))
    except ValueError:
        return None


def next_step(vector: VectorEnv, name: str) -> VectorEnv:
    """The environments with NEXT_STEP autoreset. One without a known mode is returned unchanged."""
    mode = autoreset_mode(vector.metadata)
    if mode is None or mode is AutoresetMode.NEXT_STEP:
        return vector
    if type(vector) is SyncVectorEnv:  # it reads its mode in each step, so that no transition is lost
        vector.autoreset_mode = AutoresetMode.NEXT_STEP
        vector.metadata = {**vector.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        return vector
    if type(vector) is AsyncVectorEnv and getattr(vector, "worker", 0) is None:
        arguments = inspect.signature(AsyncVectorEnv).parameters
        if all(hasattr(vector, argument) for argument in arguments):  # its workers already have the mode
            made_with = {argument: getattr(vector, argument) for argument in arguments}
            vector.close()
            return AsyncVectorEnv(**made_with | {"autoreset_mode": AutoresetMode.NEXT_STEP})
    return NextStepVector(vector, name, mode)


class NextStepVector(VectorWrapper):
    """A vector environment with SAME_STEP or DISABLED autoreset, stepped as if it had NEXT_STEP."""

    score: np.ndarray
    """(N,) the reward of the last step, plus the reward of the step taken in place of the reset before it."""
    first_actions: Callable[[np.ndarray, np.ndarray, Any, dict[str, Any]], np.ndarray] | None = None
    """From actions, (N,) where episodes begin, and their first observations and info, to allowed actions."""

    def __init__(self, env: VectorEnv, name: str, mode: AutoresetMode) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self._name, self._resets_itself = name, mode is AutoresetMode.SAME_STEP
        self._before: Any = None  # the last observations
        self._first: Any = None  # observations and info of the last step, in which episodes may have begun
        self._reports_final = self._warned = False
        self._begin()

    def _begin(self) -> None:
        n = self.num_envs
        self._ended, self._uncounted, self.score = np.zeros(n, bool), np.zeros(n), np.zeros(n)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start all episodes."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._begin()
        self._remember(obs)
        return obs, info

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all environments; where an episode ended in the step before, the new one begins after this."""
        fresh = self._ended  # (N,)
        if not self._resets_itself and fresh.any():
            self._first = self.env.reset(options={"reset_mask": fresh.copy()})
        if self.first_actions is not None and fresh.any():
            actions = self.first_actions(actions, fresh, *self._first)
        obs, reward, terminated, truncated, info = self.env.step(actions)
        reward = np.asarray(reward)
        terminated, truncated = np.asarray(terminated, bool), np.asarray(truncated, bool)
        ended = terminated | truncated
        last, lost = ended & ~fresh, ended & fresh  # lost: an episode of one step, which is never seen
        if self._resets_itself:
            self._first = obs, info
            obs, info = self._with_final(obs, info, last)
        elif lost.any():
            started, _ = self.env.reset(options={"reset_mask": lost.copy()})
            obs = _replaced(obs, {i: _row(started, i) for i in np.flatnonzero(lost).tolist()})
        self.score = np.where(fresh, 0, reward + self._uncounted)
        self._uncounted = np.where(fresh & ~lost, reward, 0)
        self._ended = last
        self._remember(obs)
        return obs, np.where(fresh, 0, reward), terminated & ~fresh, truncated & ~fresh, info

    def _with_final(self, obs: Any, info: dict[str, Any], last: np.ndarray) -> tuple[Any, dict[str, Any]]:
        """Replace the first observations of new episodes by the final ones of those that ended."""
        if not last.any():
            return obs, info
        final = next((info[key] for key in FINAL_OBS if info.get(key) is not None), None)
        if final is not None:
            self._before = None
            self._reports_final = True
        elif not self._warned:
            self._warned = True
            warnings.warn(NO_FINAL_OBS.format(name=self._name), VoidrlWarning, stacklevel=4)
        source = self._before if final is None else final
        obs = _replaced(obs, {i: _row(source, i) for i in np.flatnonzero(last).tolist()})
        reported = info.get("final_info")
        return obs, _merged(info, reported, last) if isinstance(reported, dict) else info

    def _remember(self, obs: Any) -> None:
        """Keep the observations, as long as the environment has not reported a final one."""
        if self._resets_itself and not self._reports_final:
            self._before = copy.deepcopy(obs)


def _row(obs: Any, i: int) -> Any:
    """Observation i of N, which may be nested, or an array of N objects."""
    if isinstance(obs, dict):
        return {key: _row(value, i) for key, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_row(value, i) for value in obs)
    return obs[i]


def _replaced(obs: Any, rows: dict[int, Any]) -> Any:
    """A copy of the observations of N environments with other ones in some rows."""
    if isinstance(obs, dict):
        return {key: _replaced(part, {i: row[key] for i, row in rows.items()}) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_replaced(part, {i: row[k] for i, row in rows.items()}) for k, part in enumerate(obs))
    replaced = np.array(obs)
    for i, row in rows.items():
        replaced[i] = row
    return replaced


def _merged(info: dict[str, Any], final: dict[str, Any], last: np.ndarray) -> dict[str, Any]:
    """The info of a step, with the final info of ended episodes in place of their resets'."""
    merged = dict(info)
    for key, value in final.items():
        now = info.get(key)
        if isinstance(value, dict):
            merged[key] = _merged(now if isinstance(now, dict) else {}, value, last)
        elif isinstance(value, np.ndarray) and len(value) == len(last):
            rows = last.reshape(-1, *[1] * (value.ndim - 1))
            same = isinstance(now, np.ndarray) and now.shape == value.shape
            merged[key] = np.where(rows, value, np.asarray(now)) if same else value
    return merged
