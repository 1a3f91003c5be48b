"""One interface to N environments of any kind. Does not import torch.

All of them autoreset on the *next* step (Gymnasium's NEXT_STEP): the step after an episode's end ignores the
action and returns the new episode's first frame. The replay stores no transition for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from voidrl.envs.autoreset import NextStepVector, next_step
from voidrl.envs.failures import raised
from voidrl.envs.forked import ForkedVector
from voidrl.envs.variables import Variable, reported_state
from voidrl.errors import ConfigError, EnvironmentFailedError, SpaceError, VoidrlError, VoidrlWarning, shown
from voidrl.spaces import Mismatch, ObservationCheck, env_action, spec_of, to_frames, to_picture
from voidrl.types import EnvSpec

NUMBERS = "fiub"  # kinds of NumPy types that can be a reward or a flag


class Counter(Protocol):
    """Counts or measures the visited states."""

    def counts(self) -> Mapping[str, float]:
        """The value of each measure over all steps so far."""

    def recent(self) -> Mapping[str, float]:
        """The value of each measure that is taken over the steps since the last call."""

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
    _variables: tuple[Variable, ...] = ()
    _state: np.ndarray | None = None  # (N, V)

    def __init__(
        self,
        vector: VectorEnv,
        name: str,
        frame_stack: int,
        *,
        check_bounds: bool = True,
        true_state: bool = False,
    ) -> None:
        self.vector, self.name, self._tracks_state = next_step(vector, name), name, true_state
        self.num_envs = vector.num_envs
        self._sent: np.ndarray | None = None
        self._own_steps = np.zeros(self.num_envs, np.int64)  # of each environment; resets do not count
        self._resets = np.ones(self.num_envs, bool)  # where the call under way starts an episode
        try:
            self.spec: EnvSpec = self._check(frame_stack)
        except VoidrlError:
            self.close()
            raise
        assert isinstance(vector.single_observation_space, gym.spaces.Box)  # as any other is refused
        self._check_obs = ObservationCheck(vector.single_observation_space, check_bounds=check_bounds)

    def _check(self, frame_stack: int) -> EnvSpec:
        mode = self.vector.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.NEXT_STEP:
            raise ConfigError(
                f"vector environment {self.name!r} has autoreset_mode {getattr(mode, 'name', mode)}: expected "
                f"one of gymnasium.vector.AutoresetMode in its metadata; set it, or use env.backend = 'sync'"
            )
        try:
            return spec_of(self.vector.single_observation_space, self.vector.single_action_space, frame_stack)
        except SpaceError as error:
            raise SpaceError(f"environment {self.name!r}: {error}") from None

    def reset(self, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Start new episodes; environment i is seeded with seed + i."""
        self._resets[:] = True
        obs, info = self._guarded(lambda: self.vector.reset(seed=seed))
        self._newest = to_frames(self._valid_obs(obs), self.spec)
        self._resets = np.zeros(self.num_envs, bool)
        if self._tracks_state:
            self._read_state(info)
        return self._newest, info

    def send(self, action: np.ndarray) -> None:
        """Start one step of each environment; `recv` waits for those that run in parallel."""
        self._sent = self._env_action(action)
        if isinstance(self.vector, ForkedVector):
            self._guarded(partial(self.vector.send, self._sent))

    def recv(self, counted: np.ndarray | None = None) -> StepResult:
        """Wait for the results of the step; `counted` (N,) says which states the `counter` counts."""
        step: Callable[[], Any] = partial(self.vector.step, self._sent)
        if isinstance(self.vector, ForkedVector):
            step = self.vector.recv
        return self._result(self._guarded(step))

    def _env_action(self, action: np.ndarray) -> np.ndarray:
        """The action in the environment's own range and shape."""
        return env_action(action, self.spec, self.vector.single_action_space.dtype or np.float32)

    def _result(self, stepped: tuple[Any, Any, Any, Any, dict[str, Any]]) -> StepResult:
        """Check and convert what the vector environment returned."""
        obs, reward, terminated, truncated, info = stepped
        self._own_steps += ~self._resets
        self._newest = to_frames(self._valid_obs(obs), self.spec)
        reward = self._valid_reward(reward)
        terminated = self._valid_flag("terminated", terminated)
        truncated = self._valid_flag("truncated", truncated)
        ended = terminated | truncated
        self._resets = ended & ~self._resets
        if self._tracks_state:
            self._read_state(info)
        score = self.vector.score if isinstance(self.vector, NextStepVector) else reward
        return StepResult(
            self._newest, reward, terminated, truncated, info, ended, score.astype(np.float32, copy=False)
        )

    def _valid_obs(self, obs: Any) -> np.ndarray:
        """The observations of all environments (N, *raw_shape), after a check against their space."""
        found = np.asarray(obs)
        mismatch = self._check_obs.mismatch(found, self.num_envs)
        if mismatch is not None:
            raise EnvironmentFailedError(
                f"vector environment {self.name!r} returned observations {mismatch[0]}: {mismatch[1]}"
            )
        if not self._check_obs.contains(found):
            self._refuse(*self._check_obs.violation(found))
        return found

    def _valid_reward(self, reward: Any) -> np.ndarray:
        """The rewards of all environments (N,)."""
        found = np.asarray(reward)
        if found.dtype.kind not in NUMBERS or found.shape != (self.num_envs,):
            raise EnvironmentFailedError(
                f"vector environment {self.name!r} returned rewards of type {found.dtype} and shape "
                f"{found.shape}: expected {self.num_envs} numbers"
            )
        found = found.astype(np.float32)
        if not np.isfinite(found).all():
            env = int(np.flatnonzero(~np.isfinite(found))[0])
            self._refuse(env, (f"reward {found[env]}", "expected a finite number"))
        return found

    def _valid_flag(self, name: str, flag: Any) -> np.ndarray:
        """`terminated` or `truncated` of all environments (N,)."""
        found = np.asarray(flag)
        if found.dtype.kind not in NUMBERS or found.shape != (self.num_envs,):
            raise EnvironmentFailedError(
                f"vector environment {self.name!r} returned {name} of type {found.dtype} and shape "
                f"{found.shape}: expected {self.num_envs} values True or False"
            )
        flags = found.astype(bool, copy=False)
        if flags is not found and (flags != found).any():
            env = int(np.flatnonzero(flags != found)[0])
            self._refuse(env, (f"{name} = {found[env]}", "expected True or False"))
        return flags

    def _refuse(self, env: int, mismatch: Mismatch) -> NoReturn:
        steps, (found, expected) = self._own_steps[env], mismatch
        when = f"in reset after {steps} steps" if self._resets[env] else f"at its own step {steps}"
        raise EnvironmentFailedError(f"environment {env} ({self.name!r}) returned {found} {when}: {expected}")

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
        drawn = self._guarded(self.vector.render)
        picture = np.asarray(drawn[0] if drawn is not None else None)
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] not in (3, 4):
            raise EnvironmentFailedError(
                f"environment {self.name!r} rendered {picture.dtype} of shape {picture.shape}: expected a "
                f"uint8 picture (height, width, 3) from its render()"
            )
        return picture[..., :3]

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables of `true_state`, known after the first reset; none if it is not reported."""
        self._require_state()
        return self._variables

    def true_state(self) -> np.ndarray:
        """The true state behind the newest frames, (N, V) float64."""
        return self._require_state().copy()

    def _require_state(self) -> np.ndarray:
        assert self._tracks_state, "create the environments with true_state=True"
        assert self._state is not None, "call reset first"
        return self._state

    def _read_state(self, info: dict[str, Any]) -> None:
        """Keep the true state of a step or reset."""
        variables, self._state = reported_state(info, self._newest, pixels=self.spec.pixels)
        if self._variables and variables != self._variables:
            before, now = (
                ", ".join(v.name for v in found) or "none" for found in (self._variables, variables)
            )
            raise EnvironmentFailedError(
                f"environment {self.name!r} reported the variables {before} and then {now}: expected the "
                f"same numbers from every copy in each reset and step"
            )
        self._variables = variables

    @property
    def counter(self) -> Counter | None:
        """The counter of visited states, if the config asks for one."""
        return None

    def close(self) -> None:
        """Close the environments."""
        self.vector.close()

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (VoidrlError, KeyboardInterrupt):
            raise
        except gym.error.DependencyNotInstalled as error:  # its message says what to install
            raise EnvironmentFailedError(f"environment {self.name!r} cannot be rendered: {error}") from error
        except BaseException as error:  # SystemExit too: it is not the environment's to end the run
            raise EnvironmentFailedError(f"environment {self.name!r} {raised(error)}") from error


class Guarded(gym.Wrapper):
    """Names the environment and the step of everything that goes wrong in it.

    The values of observations and rewards are checked by `Envs`, for all environments at once.
    """

    def __init__(self, env: gym.Env, name: str, index: int) -> None:
        super().__init__(env)
        self.name, self.index, self.steps = name, index, 0
        space = self.observation_space
        self._check = ObservationCheck(space) if isinstance(space, gym.spaces.Box) else None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, count the steps, and check what it returns."""
        self.steps += 1
        try:
            result = self.env.step(action)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: it is not the environment's to end the run
            self._fail(raised(error), self._at_step(), error)
        if not isinstance(result, tuple | list) or len(result) != 5:
            self._refuse(
                result, "5 values: observation, reward, terminated, truncated, info", self._at_step()
            )
        obs, reward, terminated, truncated, info = result
        obs = self._valid_obs(obs, self._at_step)
        if type(reward) is not float:
            reward = self._valid_reward(reward)
        if type(terminated) is not bool:
            terminated = self._valid_flag("terminated", terminated)
        if type(truncated) is not bool:
            truncated = self._valid_flag("truncated", truncated)
        if not isinstance(info, dict):
            self._refuse(info, "a dictionary as info", self._at_step())
        return obs, reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new episode."""
        try:
            result = self.env.reset(seed=seed, options=options)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._fail(raised(error), self._in_reset(), error)
        if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[1], dict):
            self._refuse(result, "2 values: observation and info, a dictionary", self._in_reset())
        return self._valid_obs(result[0], self._in_reset), result[1]

    def render(self) -> Any:
        """A picture."""
        try:
            return self.env.render()
        except (KeyboardInterrupt, gym.error.DependencyNotInstalled):
            raise
        except BaseException as error:
            self._fail(raised(error), f"when it rendered after {self.steps} steps", error)

    def close(self) -> None:
        """Close the environment; a failure is a warning, since the run no longer needs it."""
        try:
            self.env.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            sentence = f"environment {self.index} ({self.name!r}) {raised(error)} when it was closed"
            warnings.warn(sentence, VoidrlWarning, stacklevel=2)

    def _valid_obs(self, obs: Any, when: Callable[[], str]) -> Any:
        if self._check is None:
            return obs
        try:
            found = np.asarray(obs)
        except Exception as error:  # whatever an object's own code raises
            self._fail(f"returned an observation that is no array ({shown(error)})", when(), error)
        mismatch = self._check.mismatch(found)
        if mismatch is not None:
            self._fail(f"returned an observation {mismatch[0]}", f"{when()}: {mismatch[1]}")
        return found

    def _valid_reward(self, reward: Any) -> float:
        number = _number(reward)
        if number is None:
            self._refuse(reward, "a number as reward", self._at_step())
        return number

    def _valid_flag(self, name: str, flag: Any) -> bool:
        number = _number(flag)
        if number not in (0, 1):
            self._refuse(flag, f"True or False as {name}", self._at_step())
        return bool(number)

    def _at_step(self) -> str:
        return f"at its own step {self.steps}"

    def _in_reset(self) -> str:
        return f"in reset after {self.steps} steps"

    def _refuse(self, value: Any, expected: str, when: str) -> NoReturn:
        self._fail(f"returned {shown(value)}", f"{when}: expected {expected}")

    def _fail(self, what: str, when: str, cause: BaseException | None = None) -> NoReturn:
        raise EnvironmentFailedError(f"environment {self.index} ({self.name!r}) {what} {when}") from cause


def _number(value: Any) -> float | None:
    """The number that a value means, which may be an array with one entry; None if it means none."""
    try:
        found = np.asarray(value)
    except Exception:  # whatever an object's own code raises; the value is refused and named
        return None
    return float(found.item()) if found.dtype.kind in NUMBERS and found.size == 1 else None
