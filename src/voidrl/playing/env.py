"""One environment as a plain `gymnasium.Env`, with its agents' observations. Does not import torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv

from voidrl.config import Config, EnvConfig, merge, require, update
from voidrl.envs.atari import AtariEnvs
from voidrl.envs.ids import ATARI, DMC
from voidrl.envs.make import EnvFactory, make_envs
from voidrl.envs.single import CheckedEnv
from voidrl.envs.vector import Envs
from voidrl.errors import ConfigError, UnknownNameError
from voidrl.presets.presets import default_preset, preset_for

PICTURE_HEIGHT = 420  # of `render`, where the world can be drawn at any size


def make_env(
    env: str | EnvFactory,
    config: Mapping[str, Any] | Config | None = None,
    render_mode: str | None = None,
) -> gym.Env:
    """One environment with the observations and actions of voidrl's agents, for a loop of your own.

    Frames come one at a time: `agent.player()` stacks them. Atari is preprocessed as in evaluations: whole
    games and the raw score.

    Args:
        env: As for `voidrl.pretrain`: `atari/<game>`, `dmc/<domain>_<task>`, a Gymnasium id, `module:factory`
            or a function that returns a `gymnasium.Env`.
        config: Changes, of which only `env` matters: `{"env.dmc.observation": "pixels"}`; or the
            config of an agent (`agent.config`), for the environment as it was trained in.
        render_mode: None, or `rgb_array`. A window of a Gymnasium environment is an option of its id:
            `CartPole-v1?render_mode=human`.
    """
    if not isinstance(env, str) and (not callable(env) or isinstance(env, gym.Env)):
        raise ConfigError(
            f"environment {env!r} cannot be used: expected an id or a function that returns a gymnasium.Env"
        )
    modes = "None or 'rgb_array'; for a window, an id such as 'CartPole-v1?render_mode=human'"
    require(render_mode in (None, "rgb_array"), "render_mode", render_mode, modes)
    name = env if isinstance(env, str) else getattr(env, "__qualname__", type(env).__qualname__)
    factory = None if isinstance(env, str) else env
    settings = dataclasses.replace(_env_config(env, config), id=name, count_states=False)
    native = factory is None and name.startswith((ATARI, DMC))  # which exist only as vectors
    if not (native or (factory is not None and settings.backend == "native")):
        settings = dataclasses.replace(settings, backend="sync")
    height = PICTURE_HEIGHT if render_mode == "rgb_array" else 0
    # DMControl's domains without a task have no evaluation.
    envs = make_envs(settings, factory, 1, evaluation=name.startswith(ATARI), render_height=height)
    if native or not isinstance(envs.vector, SyncVectorEnv):
        return NativeEnv(envs, render_mode)
    envs.vector.closed = True  # or it would close the environment that is handed out
    single: gym.Env = envs.vector.envs[0]
    while isinstance(single, CheckedEnv):
        single = single.env  # as the environment gives observations: agents convert them as well
    return single


def _env_config(env: str | EnvFactory, config: Mapping[str, Any] | Config | None) -> EnvConfig:
    """The settings that `voidrl.pretrain` would take for this environment."""
    if isinstance(config, Config):
        return config.env
    require(isinstance(config, Mapping | None), "config", config, "a mapping of values or a voidrl.Config")
    given, known = merge(config or {}), [field.name for field in dataclasses.fields(Config)]
    for key in (key for key in given if key not in known):
        raise UnknownNameError("config field", key, known, "Those of the environment begin with 'env.'.")
    require(isinstance(given.get("env", {}), Mapping), "env", given.get("env"), "a mapping of values")
    return update(EnvConfig(), merge(preset_for(env, default_preset(env)), given)["env"], "env.")


class NativeEnv(gym.Env):
    """One of N = 1 environments that are vectors by nature."""

    def __init__(self, envs: Envs, render_mode: str | None = None) -> None:
        self._envs = envs
        self.observation_space = envs.vector.single_observation_space
        self.action_space = envs.vector.single_action_space
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": envs.steps_per_second or 30}
        self.render_mode = render_mode
        self._ended: bool | None = None  # None before the first reset

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode. Without a seed, the environment's own random numbers run on after an end."""
        super().reset(seed=seed)
        if seed is None and self._ended:
            obs, *_, info = self._step(np.zeros_like(self.action_space.sample()))  # which is the reset
        else:
            seed = int(self.np_random.integers(2**31)) if seed is None else seed
            atari = isinstance(self._envs, AtariEnvs)  # which draws pictures in a separate game
            made: Any = self._envs if atari else self._envs.vector
            obs, info = self._envs._guarded(partial(made.reset, seed=seed))
        self._ended = False
        return _row(obs), _first(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step once, with an action in the environment's own range."""
        name = self._envs.name
        if self._ended is not False:
            raise gym.error.ResetNeeded(f"environment {name!r} needs a reset() before this step")
        taken = np.asarray(action).astype(self.action_space.dtype, copy=False)
        if not self.action_space.contains(taken if taken.ndim else taken[()]):
            raise ConfigError(
                f"action {action!r} cannot be taken in environment {name!r}: expected one of "
                f"{self.action_space}"
            )
        obs, reward, terminated, truncated, info = self._step(taken)
        self._ended = bool(terminated[0] or truncated[0])
        return _row(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), _first(info)

    def _step(self, action: np.ndarray) -> Any:
        """A step of the vector, with its observations unchanged."""
        if isinstance(self._envs, AtariEnvs):
            result = self._envs.step(np.asarray(action)[None])
            return result.frames, result.score, result.terminated, result.truncated, result.info
        return self._envs._guarded(partial(self._envs.vector.step, np.asarray(action)[None]))

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The current picture, (H, W, 3) uint8, in the mode `rgb_array`."""
        return self._envs.render().copy() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """End the simulation and its processes."""
        self._envs.close()


def _row(obs: Any) -> Any:
    """The observation of the only environment, copied."""
    if isinstance(obs, dict):
        return {key: _row(value) for key, value in obs.items()}
    return tuple(map(_row, obs)) if isinstance(obs, tuple) else np.array(obs[0])


def _first(info: dict[str, Any]) -> dict[str, Any]:
    """The info of a vector of one environment, as a single environment reports it."""
    found: dict[str, Any] = {}
    for key, value in info.items():
        if isinstance(value, dict):
            found[key] = _first(value)
        elif not key.startswith("_"):  # masks of who reports a key
            single = isinstance(value, np.ndarray | list | tuple) and len(value) == 1
            found[key] = value[0] if single else value
    return found
