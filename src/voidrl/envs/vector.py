"""One interface to N environments, whatever is behind it. Does not import torch.

All of them autoreset on the *next* step (Gymnasium's NEXT_STEP): the step after an episode's end ignores the
action and returns the new episode's first frame. The replay knows and records no transition for it.
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
    """What measures which states are visited."""

    def counts(self) -> Mapping[str, float]:
        """By measure, of all steps so far."""

    def state(self) -> dict[str, np.ndarray]:
        """What a resumed run needs."""

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Go on from what `state` returned."""


class StepResult(NamedTuple):
    """What one step of N environments gave."""

    frames: np.ndarray  # (N, *frame_shape)
    reward: np.ndarray  # (N,) float32
    terminated: np.ndarray  # (N,) bool: nothing is to be expected after this step
    truncated: np.ndarray  # (N,) bool
    info: dict[str, Any]
    ended: np.ndarray  # (N,) bool: the episode is over, and the next step resets it
    score: np.ndarray  # (N,) float32: what is reported; `reward`, unless that is clipped


class Envs:
    """N environments stepped together, as frames and [−1, 1] actions."""

    game: str | None = None
    """The Atari game, if a human's score is known for it."""
    frames_per_step: int = 1
    """Frames, or control steps, of the world in one step of the agent."""
    _newest: np.ndarray  # (N, *frame_shape), what was seen last

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
                f"expected NEXT_STEP; build it so, or use env.backend = 'sync'"
            )
        try:
            return spec_of(self.vector.single_observation_space, self.vector.single_action_space, frame_stack)
        except SpaceError as error:
            raise SpaceError(f"environment {self.name!r}: {error}") from None

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin new episodes; environment i is seeded with seed + i."""
        obs, info = self._guarded(lambda: self.vector.reset(seed=seed))
        self._newest = to_frames(obs, self.spec)
        return self._newest, info

    def send(self, action: np.ndarray) -> None:
        """Begin one step of each. Where environments run beside this thread, `recv` waits for them."""
        self._sent = self._env_action(action)
        if isinstance(self.vector, AsyncVectorEnv):
            self._guarded(partial(self.vector.step_async, self._sent))

    def recv(self, counted: np.ndarray | None = None) -> StepResult:
        """What came of the step that was sent; `counted` (N,) tells whose states the `counter` counts."""
        step: Callable[[], Any] = partial(self.vector.step, self._sent)
        if isinstance(self.vector, AsyncVectorEnv):
            step = self.vector.step_wait
        return self._result(self._guarded(step))

    def _env_action(self, action: np.ndarray) -> np.ndarray:
        """As the environments take it."""
        return env_action(action, self.spec, self.vector.single_action_space.dtype or np.float32)

    def _result(self, stepped: tuple[Any, Any, Any, Any, dict[str, Any]]) -> StepResult:
        """What they gave, as we have it."""
        obs, reward, terminated, truncated, info = stepped
        reward = np.asarray(reward, np.float32)
        self._newest, ended = to_frames(obs, self.spec), terminated | truncated
        return StepResult(self._newest, reward, terminated, truncated, info, ended, reward)

    def step(self, action: np.ndarray) -> StepResult:
        """One step of each."""
        self.send(action)
        return self.recv()

    @property
    def steps_per_second(self) -> float | None:
        """How many steps of the agent are a second of its world; None where nobody says."""
        rate = self.vector.metadata.get("render_fps")
        return float(rate) if rate else None

    def render(self) -> np.ndarray:
        """A picture of environment 0 as it is now, (H, W, 3) uint8, for those made with a `render_height`.

        What the agent sees, where the environment does not draw itself.
        """
        if self.vector.render_mode != "rgb_array":
            return to_picture(self._newest[0])
        try:
            drawn = self._guarded(self.vector.render)
        except EnvironmentFailedError as error:
            missing = error.__cause__
            if isinstance(missing, gym.error.DependencyNotInstalled):  # it says what to install
                raise EnvironmentFailedError(
                    f"environment {self.name!r} cannot be drawn: {missing}"
                ) from error
            raise
        picture = np.asarray(drawn[0] if drawn is not None else None)
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] not in (3, 4):
            raise EnvironmentFailedError(
                f"environment {self.name!r} drew {picture.dtype} of shape {picture.shape}: expected a uint8 "
                f"picture (height, width, 3) from its render()"
            )
        return picture[..., :3]

    @property
    def counter(self) -> Counter | None:
        """What counts the states that are visited, where that was asked for."""
        return None

    def close(self) -> None:
        """Free what they hold."""
        if self._failed and isinstance(self.vector, AsyncVectorEnv):
            self.vector._state = AsyncState.DEFAULT  # else it waits for the answer of a worker that is gone
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
    """Says which environment raised, and at which of its own steps."""

    def __init__(self, env: gym.Env, name: str, index: int) -> None:
        super().__init__(env)
        self.name, self.index, self.steps = name, index, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step, counted."""
        self.steps += 1
        try:
            result = self.env.step(action)
        except Exception as error:
            raise EnvironmentFailedError(
                f"environment {self.index} ({self.name!r}) raised {error!r} at its own step {self.steps}"
            ) from error
        self._check(result[0], f"at its own step {self.steps}")
        return result

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new episode."""
        try:
            result = self.env.reset(seed=seed, options=options)
        except Exception as error:
            raise EnvironmentFailedError(
                f"environment {self.index} ({self.name!r}) raised {error!r} in reset after {self.steps} steps"
            ) from error
        self._check(result[0], f"in reset after {self.steps} steps")
        return result

    def _check(self, obs: Any, when: str) -> None:
        expected = self.observation_space.shape
        if expected is not None and np.shape(obs) != expected:
            raise EnvironmentFailedError(
                f"environment {self.index} ({self.name!r}) returned an observation of shape {np.shape(obs)} "
                f"{when}: expected {expected}, as its observation_space says"
            )
