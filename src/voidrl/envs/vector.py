"""One interface to N environments of any kind. Does not import torch.

All of them autoreset on the *next* step (Gymnasium's NEXT_STEP): the step after an episode's end ignores the
action and returns the new episode's first frame. The replay stores no transition for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from voidrl.config import EnvConfig
from voidrl.envs.coverage import StateCounter
from voidrl.envs.failures import raised, torch_untouched
from voidrl.envs.parallel import ParallelVector
from voidrl.envs.spaces.check import NUMBERS, ObservationReader
from voidrl.envs.spaces.frames import MisfitError, read_env, to_picture
from voidrl.envs.spaces.reading import Reading, env_action
from voidrl.errors import ConfigError, EnvironmentFailedError, VoidrlError


class Variable(NamedTuple):
    """One number of the true state."""

    name: str
    controllable: bool
    """Whether actions change it at once, as they do the player's position, but not a ghost's."""
    discrete: bool
    """Whether its values are categories, such as a room or a direction, without meaningful distances."""


class StepResult(NamedTuple):
    """The result of one step of N environments."""

    frames: np.ndarray  # (N, *stored_shape)
    reward: np.ndarray  # (N,) float32
    terminated: np.ndarray  # (N,) bool: the value after this step is 0
    truncated: np.ndarray  # (N,) bool
    info: dict[str, Any]
    ended: np.ndarray  # (N,) bool: the episode is over, and the next step resets it
    score: np.ndarray  # (N,) float32: the unclipped reward, for reports


class Envs:
    """N environments stepped together, with frames and actions in [−1, 1].

    Args:
        vector: The environments.
        config: Their config.
        true_state: Whether `true_state` is available.
        reading: The reading of the spaces of separate environments, which return frames if observations are
            not one plain array. None for a vector environment, whose spaces are read here.
    """

    game: str | None = None
    """The Atari game, if a human score is known for it."""
    frames_per_step: int = 1
    """Frames or control steps per agent step (the action repeat)."""
    _newest: np.ndarray  # (N, *stored_shape), the latest frames
    _sent: np.ndarray  # the actions of the step under way, in the environment's own range and shape
    _variables: tuple[Variable, ...] = ()
    _state: np.ndarray | None = None  # (N, V)

    def __init__(
        self,
        vector: VectorEnv,
        config: EnvConfig,
        *,
        true_state: bool = False,
        reading: Reading | None = None,
    ) -> None:
        self.vector, self.name, self._tracks_state = vector, config.id, true_state
        self.num_envs: int = vector.num_envs
        self._own_steps = np.zeros(self.num_envs, np.int64)  # of each environment; resets do not count
        self._resets = np.ones(self.num_envs, bool)  # where the call under way starts an episode
        try:
            require_next_step(vector, config.id)
            self.reading = reading or read_env(vector, config)
        except VoidrlError:
            self.close()
            raise
        self.spec = self.reading.spec
        self._reader: ObservationReader | None = None
        if reading is None or not self.spec.parts:
            self._reader = ObservationReader(vector, self.reading, config.check_bounds)

    def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """Start new episodes; environment i is seeded with seed + i."""
        self._resets[:] = True
        obs, info = self._guarded(lambda: self.vector.reset(seed=seed))
        with self._misfits_named():
            self._newest = self._frames(obs, info)
        self._resets = np.zeros(self.num_envs, bool)
        if self._tracks_state:
            self._read_state(info)
        return self._newest, info

    def send(self, action: Any) -> None:
        """Start one step of each environment; `recv` waits for those that run in parallel."""
        self._sent = env_action(action, self.spec, self.vector.single_action_space.dtype or np.float32)
        if isinstance(self.vector, ParallelVector):
            self._guarded(partial(self.vector.send, self._sent))

    def recv(self, counted: np.ndarray | None = None) -> StepResult:
        """Wait for the results of the step; `counted` (N,) says which states the `counter` counts."""
        step: Callable[[], Any] = partial(self.vector.step, self._sent)
        if isinstance(self.vector, ParallelVector):
            step = self.vector.recv
        obs, reward, terminated, truncated, info = self._guarded(step)
        self._own_steps += ~self._resets
        with self._misfits_named():
            reward = self._valid_reward(reward)
            terminated = self._valid_flag("terminated", terminated)
            truncated = self._valid_flag("truncated", truncated)
            ended = terminated | truncated
            self._newest = self._frames(obs, info, ended)
        self._resets = ended & ~self._resets
        if self._tracks_state:
            self._read_state(info)
        return StepResult(self._newest, reward, terminated, truncated, info, ended, reward)

    def _frames(self, obs: Any, info: Mapping[str, Any], ended: np.ndarray | bool = False) -> np.ndarray:
        """Frames (N, *stored_shape) of observations, which separate environments may have converted."""
        if self._reader is None:
            return obs  # type: ignore[no-any-return]
        return self._reader.frames(obs, info, self.num_envs, ended=ended)

    def _valid_reward(self, reward: Any) -> np.ndarray:
        """The rewards of all environments (N,)."""
        found = self._numbers(reward, "rewards", "numbers").astype(np.float32)
        if not np.isfinite(found).all():
            env = int(np.flatnonzero(~np.isfinite(found))[0])
            raise MisfitError(f"reward {found[env]}", "expected a finite number", env)
        return found

    def _valid_flag(self, name: str, flag: Any) -> np.ndarray:
        """`terminated` or `truncated` of all environments (N,)."""
        found = self._numbers(flag, name, "values True or False")
        flags = found.astype(bool, copy=False)
        if flags is not found and (flags != found).any():
            env = int(np.flatnonzero(flags != found)[0])
            raise MisfitError(f"{name} = {found[env]}", "expected True or False", env)
        return flags

    def _numbers(self, values: Any, name: str, expected: str) -> np.ndarray:
        found = np.asarray(values)
        if found.dtype.kind not in NUMBERS or found.shape != (self.num_envs,):
            raise MisfitError(
                f"{name} of type {found.dtype} and shape {found.shape}",
                f"expected {self.num_envs} {expected}",
            )
        return found

    @contextmanager
    def _misfits_named(self) -> Iterator[None]:
        """Name the environment, and its step, in the error about a value that does not fit."""
        try:
            yield
        except MisfitError as misfit:
            found, expected, env = misfit.found, misfit.expected, misfit.env
            if env is None:
                sentence = f"vector environment {self.name!r} returned {found}: {expected}"
            else:
                steps = self._own_steps[env]
                when = f"in reset after {steps} steps" if self._resets[env] else f"at its own step {steps}"
                sentence = f"environment {env} ({self.name!r}) returned {found} {when}: {expected}"
            raise EnvironmentFailedError(sentence) from misfit.__cause__

    def step(self, action: np.ndarray) -> StepResult:
        """Step every environment once."""
        self.send(action)
        return self.recv()

    @property
    def steps_per_second(self) -> float | None:
        """Agent steps per second of simulated time; None if unknown."""
        rate = (getattr(self.vector, "metadata", None) or {}).get("render_fps")
        return float(rate) if rate else None

    def render(self) -> np.ndarray:
        """The current picture of environment 0, (H, W, 3) uint8; needs a `render_height`.

        An environment that cannot render shows its observation.
        """
        if getattr(self.vector, "render_mode", None) != "rgb_array":
            return to_picture(self._newest[0], self.spec)
        drawn = self._guarded(self.vector.render)
        several = isinstance(drawn, tuple | list) or np.ndim(drawn) == 4
        picture = np.asarray(drawn[0] if several else drawn)
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
        hidden = self.spec.num_actions if self.spec.masked and not self.spec.pixels else 0
        seen = self._newest[:, : self._newest.shape[1] - hidden]  # without masks
        variables, self._state = reported_state(info, seen, pixels=self.spec.pixels)
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
    def counter(self) -> StateCounter | None:
        """The counter of visited states, if the config asks for one."""
        return None

    def close(self) -> None:
        """Close the environments."""
        self.vector.close()

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            with torch_untouched(self.name):
                return call()
        except (VoidrlError, KeyboardInterrupt):
            raise
        except gym.error.DependencyNotInstalled as error:  # its message names the package to install
            raise EnvironmentFailedError(f"environment {self.name!r} cannot be used: {error}") from error
        except BaseException as error:  # SystemExit too: it is not the environment's to end the run
            raise EnvironmentFailedError(f"environment {self.name!r} {raised(error)}") from error


def require_next_step(vector: VectorEnv, name: str) -> None:
    """Refuse another autoreset mode, which is an attribute or in the metadata."""
    found = getattr(vector, "autoreset_mode", None) or (vector.metadata or {}).get("autoreset_mode")
    if found not in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP.value):
        raise ConfigError(
            f"vector environment {name!r} has autoreset_mode {getattr(found, 'name', found)}: expected "
            f"gymnasium.vector.AutoresetMode.NEXT_STEP, as an attribute or in its metadata; set it, or use "
            f"env.backend = 'sync'"
        )


def reported_state(
    info: Mapping[str, Any], frames: np.ndarray, *, pixels: bool
) -> tuple[tuple[Variable, ...], np.ndarray]:
    """The variables that N environments report, and their values (N, V) float64.

    The first of these that there is: `info["variables"]`, `info["cell"]`, the components of a vector
    observation. Control is unknown in a custom environment, so all count as controllable.
    """
    n = len(frames)
    told = info.get("variables")
    if isinstance(told, Mapping):
        columns = {str(name): column(values, n) for name, values in told.items() if name[:1] != "_"}
        found = {name: column for name, column in columns.items() if column is not None}
        if found:
            variables = tuple(Variable(name, controllable=True, discrete=False) for name in found)
            return variables, np.stack([*found.values()], 1)
    cell = column(info.get("cell"), n)
    if cell is not None:
        return (Variable("cell", controllable=True, discrete=True),), cell[:, None]
    if pixels:
        return (), np.zeros((n, 0))
    flat = frames.reshape(n, -1).astype(np.float64)
    names = (f"observation_{i}" for i in range(flat.shape[1]))
    return tuple(Variable(name, controllable=True, discrete=False) for name in names), flat


def column(values: Any, n: int, kinds: str = NUMBERS) -> np.ndarray | None:
    """(n,) float64 if these are n numbers."""
    try:
        found = np.asarray(values)
    except (TypeError, ValueError):  # lists of different lengths, tensors on a GPU
        return None
    return found.astype(np.float64) if found.shape == (n,) and found.dtype.kind in kinds else None
