"""EnvPool's environments: `envpool/Pong-v5?episodic_life=true`. Does not import torch.

EnvPool steps all copies in C++ threads. Its seeds are fixed when a pool is made, so a reset with a seed makes
a new pool; training does that at checkpoints, which makes resuming exact.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from voidrl.errors import ConfigError, UnknownNameError

PREFIX = "envpool/"
OWN_OPTIONS = {  # options of EnvPool that belong to the run, and the fields that set them
    "num_envs": "env.num_envs",
    "seed": "the seed of the run",
    "batch_size": "env.num_envs, since all environments are stepped together",
}
MAX_SEED = 2**31 - 2**16  # seeds are int32, and copy i has seed + i


def make_envpool(name: str, num_envs: int, *, render_mode: str | None = None, **options: Any) -> VectorEnv:
    """Create N copies of an environment of EnvPool.

    Args:
        name: `envpool/<id>`.
        num_envs: N.
        render_mode: None or "rgb_array".
        options: EnvPool's options for this environment.
    """
    envpool = _import(name)
    task = name.removeprefix(PREFIX)
    known = envpool.list_all_envs()
    if task not in known:
        raise UnknownNameError("environment of EnvPool", task, known)
    for option, instead in OWN_OPTIONS.items():
        if option in options:
            raise ConfigError(f"environment {name!r} got {option}={options[option]!r}: set {instead}")
    try:
        spec = envpool.make_spec(task, num_envs=num_envs, **options)
    except (TypeError, ValueError, AssertionError, RuntimeError, ImportError) as error:
        raise ConfigError(f"environment {name!r} cannot be made: {error}") from error
    players = spec.config.max_num_players
    if players != 1:
        raise ConfigError(f"environment {name!r} has {players} players: expected one")
    if render_mode is not None:
        options["render_mode"] = render_mode
    make = partial(envpool.make_gymnasium, task, num_envs=num_envs, **options)
    return EnvPoolVector(make, spec.gymnasium_observation_space, spec.gymnasium_action_space)


def _import(name: str) -> ModuleType:
    try:
        import envpool  # type: ignore[import-not-found]
    except ImportError as error:
        why = "" if isinstance(error, ModuleNotFoundError) and error.name == "envpool" else f" ({error})"
        raise ConfigError(
            f"environment {name!r} needs the package envpool, which cannot be imported{why}: "
            f"pip install envpool"
        ) from None
    return envpool  # type: ignore[no-any-return]


class EnvPoolVector(VectorEnv):
    """N environments of EnvPool as a vector environment of Gymnasium, with seeds that work."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, make: partial[Any], observation_space: gym.Space, action_space: gym.Space) -> None:
        self._make = make
        self._pool: Any = None  # a pool is made by the first reset, with its seed
        num_envs = self.num_envs = make.keywords["num_envs"]
        self.render_mode = make.keywords.get("render_mode")
        self.single_observation_space = _with_true_bounds(observation_space)
        self.single_action_space = action_space
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start all episodes; with a seed, in a new pool."""
        if seed is not None or self._pool is None:
            assert seed is None or isinstance(seed, int), "EnvPool has one seed for all copies"
            self.close_extras()
            self._pool = self._make(seed=(seed or 0) % MAX_SEED)
        obs, info = self._pool.reset()
        return self._in_order(info, obs)[0], self._info(info)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all environments; where an episode ended in the step before, it is reset instead."""
        if self._pool is None:
            raise gym.error.ResetNeeded("environments of EnvPool were stepped before their first reset")
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        ordered = self._in_order(info, obs, reward, terminated, truncated)
        return (*ordered, self._info(info))  # type: ignore[return-value]

    def _in_order(self, info: dict[str, Any], *values: Any) -> tuple[Any, ...]:
        """Values with row i of environment i: the copies answer in any order."""
        order = np.argsort(info["env_id"], kind="stable")
        if (order == np.arange(self.num_envs)).all():
            return values
        return tuple(_permuted(value, order) for value in values)

    def _info(self, info: dict[str, Any]) -> dict[str, Any]:
        order = np.argsort(info["env_id"], kind="stable")
        return {
            key: _permuted(value, order) for key, value in info.items() if key not in ("env_id", "players")
        }

    def render(self) -> tuple[np.ndarray, ...] | None:  # type: ignore[override]
        """A picture of environment 0."""
        if self.render_mode is None or self._pool is None:
            return None
        return tuple(np.asarray(self._pool.render()))

    def close_extras(self, **kwargs: Any) -> None:
        """End the threads, which the pool's own destructor does."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def _permuted(value: Any, order: np.ndarray) -> Any:
    if isinstance(value, dict):
        return {key: _permuted(part, order) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_permuted(part, order) for part in value)
    return value[order] if isinstance(value, np.ndarray) and len(value) == len(order) else value


def _with_true_bounds(space: gym.Space) -> gym.Space:
    """The space without the bounds that EnvPool writes where there are none.

    They are the largest float and the smallest one above 0, which would exclude all negative numbers.
    """
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: _with_true_bounds(part) for key, part in space.items()})
    if not isinstance(space, gym.spaces.Box) or space.dtype.kind != "f":
        return space
    limits = np.finfo(space.dtype)
    low = np.where(space.low == limits.tiny, -np.inf, space.low)
    low = np.where(low <= limits.min, -np.inf, low)
    high = np.where(space.high >= limits.max, np.inf, space.high)
    return gym.spaces.Box(low.astype(space.dtype), high.astype(space.dtype), space.shape, space.dtype.type)
