"""Gymnasium environments that are stepped in parallel, each in a fork of this process. Does not import torch.

Gymnasium's `AsyncVectorEnv` creates one more environment in the run's own process, where a hanging
constructor cannot be stopped, needs semaphores and so `/dev/shm`, and ends its workers by SIGTERM, which
these ignore.
"""

from __future__ import annotations

import math
import mmap
import pickle
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from voidrl.envs.failures import raised
from voidrl.envs.memory import allocate, shared_file
from voidrl.envs.spaces import Reading
from voidrl.envs.workers import ForkedWorker, WorkerLostError, await_end, kill_with
from voidrl.errors import EnvironmentFailedError, SpaceError, VoidrlError, VoidrlWarning, shown

MAP, RESET, STEP, RENDER, CLOSE = range(5)
ALIGNMENT = 64  # bytes
Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]


class EnvDescription(NamedTuple):
    """A worker's description of its environment."""

    observation: gym.Space
    action: gym.Space
    render_mode: str | None
    render_fps: float | None
    reading: Reading


class SharedArrays:
    """The shapes and types of the observations and actions of N environments, which share one memory.

    Observations and actions of any size would not fit into a pipe.
    """

    def __init__(self, num_envs: int, described: EnvDescription) -> None:
        self._blocks = []
        for space in (described.observation, described.action):
            # Observations that are not one Box have been converted to one.
            self._blocks.append(((num_envs, *(space.shape or ())), np.dtype(space.dtype)))
        self._sizes = [
            -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT for shape, dtype in self._blocks
        ]
        self.size = max(1, sum(self._sizes))
        """Bytes needed."""

    def over(self, memory: mmap.mmap) -> tuple[np.ndarray, np.ndarray]:
        """Observations (N, *shape) and actions (N, *shape) as views into `memory`."""
        (obs_shape, obs_dtype), (action_shape, action_dtype) = self._blocks
        obs = np.ndarray(obs_shape, obs_dtype, memory)
        return obs, np.ndarray(action_shape, action_dtype, memory, offset=self._sizes[0])


class WorkerTracebackError(Exception):
    """The traceback of a worker, as text; the cause of the error that the run sees."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class ForkedVector(VectorEnv):
    """N environments in worker processes; the step after an episode's end resets it.

    Args:
        makers: Functions that create the environments, each with its `reading`; called in the workers.
        name: The environment id, for error messages.
        timeout_s: Seconds without an answer after which a worker counts as hung.
    """

    def __init__(self, makers: Sequence[Callable[[], gym.Env]], name: str, timeout_s: float) -> None:
        self.num_envs = len(makers)
        self._name, self._timeout_s = name, timeout_s
        self._steps, self._ended = np.zeros(self.num_envs, np.int64), np.zeros(self.num_envs, bool)
        self._busy = False
        self._workers: list[ForkedWorker] = []
        self._end = kill_with(self, self._workers)
        try:
            first = self._start(makers)
        except BaseException:
            self._end()
            raise
        self.single_observation_space, self.single_action_space = first.observation, first.action
        self.render_mode = first.render_mode
        self.reading = first.reading
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_fps": first.render_fps}

    def _start(self, makers: Sequence[Callable[[], gym.Env]]) -> EnvDescription:
        with shared_file() as file:
            for i, make in enumerate(makers):
                self._workers.append(ForkedWorker(_serve, make, i, self._name, file.fileno()))
            first: EnvDescription = self._answer(0, "when it was created")
            for i in range(1, self.num_envs):
                other: EnvDescription = self._answer(i, "when it was created")
                same = (other.observation, other.action) == (first.observation, first.action)
                if same and other.reading.spec != first.reading.spec:
                    raise SpaceError(
                        f"environment {i} ({self._name!r}) has {other.reading.spec.describe()} and "
                        f"environment 0 has {first.reading.spec.describe()}: expected the same spaces in all "
                        f"of them"
                    )
                if not same:
                    raise SpaceError(
                        f"environment {i} ({self._name!r}) has the spaces {other.observation} and "
                        f"{other.action} and environment 0 has {first.observation} and {first.action}: "
                        f"expected the same in all of them"
                    )
            arrays = SharedArrays(self.num_envs, first)
            self._obs, self._actions = arrays.over(allocate(file, arrays.size, self._name))
            for i in range(self.num_envs):
                self._send(i, MAP, arrays, "when it was created")
            for i in range(self.num_envs):
                self._answer(i, "when it was created")
        return first

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start new episodes; environment i is seeded with seed + i."""
        self._ended[:] = True
        self._busy = True
        for i in range(self.num_envs):
            self._send(i, RESET, {"seed": None if seed is None else seed + i, "options": options})
        obs, *_, infos = self.recv()
        return obs, infos

    def send(self, actions: np.ndarray) -> None:
        """Start one step of each environment."""
        self._steps += ~self._ended
        self._busy = True
        self._actions[:] = actions
        for i, ended in enumerate(self._ended.tolist()):
            self._send(i, *((RESET, {}) if ended else (STEP, None)))

    def recv(self) -> Step:
        """Wait for the results of the step."""
        results = []
        infos: dict[str, Any] = {}
        for i in range(self.num_envs):
            *result, info = self._answer(i)
            results.append(result)
            infos = self._add_info(infos, info, i)
        self._busy = False
        rewards, *flags = zip(*results, strict=True)
        terminated, truncated = np.array(flags, bool)
        self._ended = terminated | truncated
        return self._obs.copy(), np.array(rewards, np.float64), terminated, truncated, infos

    def step(self, actions: np.ndarray) -> Step:
        """Step every environment once."""
        self.send(actions)
        return self.recv()

    def render(self) -> tuple[Any]:  # type: ignore[override]
        """A picture of environment 0."""
        self._busy = True
        self._send(0, RENDER, None)
        picture = self._answer(0, f"when it rendered after {self._steps[0]} steps")
        self._busy = False
        return (picture,)

    def close_extras(self, **kwargs: Any) -> None:
        """Let the environments close and end the worker processes; one in the middle of a step is killed."""
        if self._end.still_active() and not self._busy:
            try:
                for i in range(self.num_envs):
                    self._send(i, CLOSE, None, "when it was closed")
                for i in range(self.num_envs):
                    self._answer(i, "when it was closed")
            except EnvironmentFailedError as error:
                warnings.warn(str(error), VoidrlWarning, stacklevel=2)
            await_end(self._workers)
        self._end()

    def _send(self, i: int, command: int, argument: Any, when: str = "") -> None:
        try:
            self._workers[i].send(pickle.dumps((command, argument)), self._timeout_s)
        except WorkerLostError as lost:
            self._fail(i, lost, when)

    def _answer(self, i: int, when: str = "") -> Any:
        """The answer of a worker; an error there is raised here."""
        try:
            fails, answer = pickle.loads(self._workers[i].receive(self._timeout_s))
        except WorkerLostError as lost:
            self._fail(i, lost, when)
        if fails:
            self._end()
            kind, sentence, trace = answer
            # Some errors take other arguments than a message.
            raise kind.__new__(kind, sentence) from WorkerTracebackError(trace)
        return answer

    def _fail(self, i: int, lost: WorkerLostError, when: str = "") -> NoReturn:
        self._end()
        steps = self._steps[i]
        when = when or (f"in reset after {steps} steps" if self._ended[i] else f"at its own step {steps}")
        raise EnvironmentFailedError(
            f"{lost}, while it ran environment {i} ({self._name!r}) {when}"
        ) from None


def _serve(pipe: Connection, make: Callable[[], gym.Env], number: int, name: str, descriptor: int) -> None:
    """Run one environment until it is closed or fails."""
    try:
        env = make()
        _describe_and_step(pipe, env, number, name, descriptor)
    except (EOFError, ConnectionError):
        return  # the run's process has closed the pipe
    except BaseException as error:
        kind, sentence = type(error), str(error)
        if not isinstance(error, VoidrlError | gym.error.DependencyNotInstalled):
            kind = EnvironmentFailedError
            sentence = f"environment {number} ({name!r}) {raised(error)}"
        trace = "".join(traceback.format_exception(error))
        pipe.send_bytes(pickle.dumps((True, (kind, sentence, trace))))


def _describe_and_step(pipe: Connection, env: gym.Env, number: int, name: str, descriptor: int) -> None:
    def answer(value: Any) -> None:
        try:
            message = pickle.dumps((False, value))
        except Exception as error:  # any error of an object's own code
            raise EnvironmentFailedError(
                f"environment {number} ({name!r}) has spaces or an info that cannot be sent between "
                f"processes ({shown(error)}): use plain values, or env.backend = 'sync'"
            ) from error
        pipe.send_bytes(message)

    rate = (env.metadata or {}).get("render_fps")
    reading: Reading = env.reading  # type: ignore[attr-defined]
    answer(EnvDescription(env.observation_space, env.action_space, env.render_mode, rate, reading))
    _, arrays = pickle.loads(pipe.recv_bytes())
    obs, actions = arrays.over(mmap.mmap(descriptor, arrays.size))  # of all environments
    answer(None)
    while True:
        command, argument = pickle.loads(pipe.recv_bytes())
        if command == STEP:
            obs[number], *result = env.step(actions[number].copy())
            answer(result)
        elif command == RESET:
            obs[number], info = env.reset(**argument)
            answer((0.0, False, False, info))
        elif command == RENDER:
            answer(env.render())
        else:
            env.close()
            answer(None)
            return
