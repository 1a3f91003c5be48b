"""One interface to N environments of any kind. Does not import torch.

All of them autoreset on the *next* step (Gymnasium's NEXT_STEP): the step after an episode's end ignores the
action and returns the new episode's first frame. The replay stores no transition for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from voidrl.errors import ConfigError, EnvironmentFailedError, SpaceError, VoidrlError
from voidrl.spaces import env_action, spec_of, to_frames, to_picture
from voidrl.types import EnvSpec


class Counter(Protocol):
    """Counts or measures the visited states."""

    def counts(self) -> Mapping[str, float]:
        """The value of each measure over all steps so far."""

    def state(self) -> dict[str, np.ndarray]:
        """The state for a checkpoint."""

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned."""


class StepResult(NamedTuple):
    """The result of one step of N environments."""

    frames: np.ndarray  # (N, *frame_shape)
    reward: np.ndarray  # (N,) float32
    terminated: np.ndarray  # (N,) bool: the value after this step is 0
    truncated: np.ndarray  # (N,) bool
    info: dict[str, Any]
    ended: np.ndarray  # (N,) bool: the episode is over, and the next step resets it
    score: np.ndarray  # (N,) float32: the unclipped reward, for reports


class Envs:
    """N environments stepped together, with frames and actions in [−1, 1]."""

    game: str | None = None
    """The Atari game, if a human score is known for it."""
    frames_per_step: int = 1
    """Frames or control steps per agent step (the action repeat)."""
    _newest: np.ndarray  # (N, *frame_shape), the latest frames

    def __init__(self, vector: VectorEnv, name: str, frame_stack: int) -> None:
        self.vector, self.name = vector, name
        self.num_envs = vector.num_envs
        self._failed = False
        self._sent: np.ndarray | None = None
        try:
            self.spec: EnvSpec = self._check(frame_stack)
        except VoidrlError:
            self.close()
            raise

    def _check(self, frame_stack: int) -> EnvSpec:
        mode = self.vector.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.NEXT_STEP:
            raise ConfigError(
                f"vector environment {self.name!r} has autoreset_mode {getattr(mode, 'name', mode)}: "
                f"expected NEXT_STEP; change it, or use env.backend = 'sync'"
            )
        try:
            return spec_of(self.vector.single_observation_space, self.vector.single_action_space, frame_stack)
        except SpaceError as error:
            raise SpaceError(f"environment {self.name!r}: {error}") from None

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Start new episodes; environment i is seeded with seed + i."""
        obs, info = self._guarded(lambda: self.vector.reset(seed=seed))
        self._newest = to_frames(obs, self.spec)
        return self._newest, info

    def send(self, action: np.ndarray) -> None:
        """Start one step of each environment; `recv` waits for those that run in parallel."""
        self._sent = self._env_action(action)
        if isinstance(self.vector, AsyncVectorEnv):
            self._guarded(partial(self.vector.step_async, self._sent))

    def recv(self, counted: np.ndarray | None = None) -> StepResult:
        """Wait for the results of the step; `counted` (N,) says which states the `counter` counts."""
        step: Callable[[], Any] = partial(self.vector.step, self._sent)
        if isinstance(self.vector, AsyncVectorEnv):
            step = self.vector.step_wait
        return self._result(self._guarded(step))

    def _env_action(self, action: np.ndarray) -> np.ndarray:
        """The action in the environment's own range and shape."""
        return env_action(action, self.spec, self.vector.single_action_space.dtype or np.float32)

    def _result(self, stepped: tuple[Any, Any, Any, Any, dict[str, Any]]) -> StepResult:
        """Convert what the vector environment returned."""
        obs, reward, terminated, truncated, info = stepped
        reward = np.asarray(reward, np.float32)
        self._newest, ended = to_frames(obs, self.spec), terminated | truncated
        return StepResult(self._newest, reward, terminated, truncated, info, ended, reward)

    def step(self, action: np.ndarray) -> StepResult:
        """Step every environment once."""
        self.send(action)
        return self.recv()

    @property
    def steps_per_second(self) -> float | None:
        """Agent steps per second of simulated time; None if unknown."""
        rate = self.vector.metadata.get("render_fps")
        return float(rate) if rate else None

    def render(self) -> np.ndarray:
        """The current picture of environment 0, (H, W, 3) uint8; needs a `render_height`.

        An environment that cannot render shows its observation.
        """
        if self.vector.render_mode != "rgb_array":
            return to_picture(self._newest[0])
        try:
            drawn = self._guarded(self.vector.render)
        except EnvironmentFailedError as error:
            missing = error.__cause__
            if isinstance(missing, gym.error.DependencyNotInstalled):  # its message says what to install
                raise EnvironmentFailedError(
                    f"environment {self.name!r} cannot be rendered: {missing}"
                ) from error
            raise
        picture = np.asarray(drawn[0] if drawn is not None else None)
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] not in (3, 4):
            raise EnvironmentFailedError(
                f"environment {self.name!r} rendered {picture.dtype} of shape {picture.shape}: expected a "
                f"uint8 picture (height, width, 3) from its render()"
            )
        return picture[..., :3]

    @property
    def counter(self) -> Counter | None:
        """The counter of visited states, if the config asks for one."""
        return None

    def close(self) -> None:
        """Close the environments."""
        if self._failed and isinstance(self.vector, AsyncVectorEnv):
            self.vector._state = AsyncState.DEFAULT  # otherwise it waits for a dead worker
            self.vector.close(terminate=True)
        else:
            self.vector.close()

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            self._failed = True
            if isinstance(error, VoidrlError):
                raise
            if isinstance(error, EOFError | ConnectionError):
                sentence = f"a worker process of environment {self.name!r} died ({error!r})"
            else:
                sentence = f"environment {self.name!r} raised {error!r}"
            raise EnvironmentFailedError(sentence) from error


class Guarded(gym.Wrapper):
    """Reports which environment raised, and at which step."""

    def __init__(self, env: gym.Env, name: str, index: int) -> None:
        super().__init__(env)
        self.name, self.index, self.steps = name, index, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and count the steps."""
        self.steps += 1
        result: tuple[Any, Any, bool, bool, dict[str, Any]]
        result = self._checked(partial(self.env.step, action), f"at its own step {self.steps}")
        return result

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode."""
        reset = partial(self.env.reset, seed=seed, options=options)
        result: tuple[Any, dict[str, Any]] = self._checked(reset, f"in reset after {self.steps} steps")
        return result

    def _checked(self, call: Callable[[], Any], when: str) -> Any:
        try:
            result = call()
        except Exception as error:
            raise EnvironmentFailedError(
                f"environment {self.index} ({self.name!r}) raised {error!r} {when}"
            ) from error
        expected, shape = self.observation_space.shape, np.shape(result[0])
        if expected is not None and shape != expected:
            raise EnvironmentFailedError(
                f"environment {self.index} ({self.name!r}) returned an observation of shape {shape} {when}: "
                f"expected {expected}, as in its observation_space"
            )
        return result
