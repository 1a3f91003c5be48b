"""Environments stepped in parallel, in worker processes that share memory. Does not import torch.

Gymnasium's `AsyncVectorEnv` creates one more environment in the run's own process, where a hanging
constructor cannot be stopped, needs semaphores and so `/dev/shm`, and runs one environment per process: with
8 walkers on 2 cores that is half as fast.
"""

from __future__ import annotations

import math
import mmap
import pickle
import traceback
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from voidrl.envs.failures import raised
from voidrl.envs.spaces import Reading
from voidrl.envs.workers import Worker, WorkerLostError, allocate, await_end, kill_with, shared_file
from voidrl.errors import EnvironmentFailedError, SpaceError, VoidrlError, VoidrlWarning, shown

MAP, RESET, STEP, RENDER, CLOSE = b"m", b"r", b"s", b"v", b"c"  # first bytes of messages
ALIGNMENT = 64  # bytes
Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]
MakeEnv = Callable[[int], gym.Env]
"""Creates environment i, with its `reading`; called in a worker."""


class EnvDescription(NamedTuple):
    """A worker's description of an environment."""

    observation: gym.Space
    action: gym.Space
    render_mode: str | None
    render_fps: float | None
    reading: Reading

    @classmethod
    def of(cls, env: gym.Env) -> EnvDescription:
        """The description of an environment that was made."""
        rate = (env.metadata or {}).get("render_fps")
        reading: Reading = env.reading  # type: ignore[attr-defined]
        return cls(env.observation_space, env.action_space, env.render_mode, rate, reading)


class SharedArrays(NamedTuple):
    """Values of N environments in one memory; observations of any size would not fit into a pipe."""

    obs: np.ndarray  # (N, *shape)
    action: np.ndarray  # (N, *shape)
    reward: np.ndarray  # (N,) float64
    terminated: np.ndarray  # (N,) bool
    truncated: np.ndarray  # (N,) bool

    @classmethod
    def over(cls, num_envs: int, described: EnvDescription, map_memory: Callable[[int], Any]) -> SharedArrays:
        """Views into the memory that `map_memory` returns for a number of bytes."""
        spaces = described.observation, described.action  # Boxes and choices, converted where needed
        blocks = [((num_envs, *(space.shape or ())), np.dtype(space.dtype)) for space in spaces]
        blocks += [((num_envs,), np.dtype(kind)) for kind in (np.float64, np.bool_, np.bool_)]
        sizes = [-(-math.prod(shape) * kind.itemsize // ALIGNMENT) * ALIGNMENT for shape, kind in blocks]
        memory = map_memory(sum(sizes))
        offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        return cls(*(np.ndarray(*block, memory, at) for block, at in zip(blocks, offsets, strict=True)))


class WorkerTracebackError(Exception):
    """The traceback of a worker, as text; the cause of the error that the run sees."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class ParallelVector(VectorEnv):
    """N environments in worker processes; the step after an episode's end resets it.

    Args:
        make: Creates environment i.
        num_envs: N.
        name: The environment id, for error messages.
        timeout_s: Seconds without an answer after which a worker counts as hung.
        processes: Number of workers, each with some of the environments; one for each by default.
        variables: As for `Worker`, by default forks.
    """

    def __init__(
        self,
        make: MakeEnv,
        num_envs: int,
        name: str,
        timeout_s: float,
        *,
        processes: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.num_envs = num_envs
        self._name, self._timeout_s = name, timeout_s
        self._steps, self._ended = np.zeros(num_envs, np.int64), np.zeros(num_envs, bool)
        self._busy = False
        self._workers: list[Worker] = []
        self._numbers = [part.tolist() for part in np.array_split(np.arange(num_envs), processes or num_envs)]
        self._end = kill_with(self, self._workers)
        try:
            first = self._start(make, variables)
        except BaseException:
            self._end()
            raise
        self.single_observation_space, self.single_action_space = first.observation, first.action
        self.render_mode = first.render_mode
        self.reading = first.reading
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_fps": first.render_fps}

    def _start(self, make: MakeEnv, variables: Mapping[str, str] | None) -> EnvDescription:
        when = "when it was created"
        with shared_file() as file:
            for numbers in self._numbers:
                arguments = make, numbers, self.num_envs, self._name, file.fileno()
                worker = Worker(_serve, *arguments, variables=variables, files=(file.fileno(),))
                self._workers.append(worker)
            described: list[EnvDescription] = []
            for i in range(len(self._workers)):
                described += self._answer(i, when)
            first = described[0]
            for i, other in enumerate(described):
                spaces = [(each.observation, each.action, each.reading.spec) for each in (first, other)]
                if spaces[0] != spaces[1]:
                    raise SpaceError(
                        f"environment {i} ({self._name!r}) has the spaces {other.observation} and "
                        f"{other.action} ({other.reading.spec.describe()}) and environment 0 has "
                        f"{first.observation} and {first.action} ({first.reading.spec.describe()}): expected "
                        f"the same in all of them"
                    )
            arrays = SharedArrays.over(self.num_envs, first, lambda size: allocate(file, size, self._name))
            self._request_all(MAP, when)
        self._arrays = arrays
        return first

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start new episodes; environment i is seeded with seed + i. Options are not passed on."""
        self._ended[:] = True
        self._busy = True
        self._send_all(RESET + pickle.dumps(seed))
        obs, *_, infos = self.recv()
        return obs, infos

    def send(self, actions: np.ndarray) -> None:
        """Start one step of each environment."""
        self._steps += ~self._ended
        self._busy = True
        self._arrays.action[:] = actions
        self._send_all(STEP)

    def recv(self) -> Step:
        """Wait for the results of the step."""
        infos: dict[str, Any] = {}
        for k, numbers in enumerate(self._numbers):
            for i, info in zip(numbers, self._answer(k) or (), strict=False):
                infos = self._add_info(infos, info, i)
        self._busy = False
        obs, _, *results = self._arrays
        reward, terminated, truncated = (array.copy() for array in results)
        self._ended = terminated | truncated
        return obs.copy(), reward, terminated, truncated, infos

    def step(self, actions: np.ndarray) -> Step:
        """Step every environment once."""
        self.send(actions)
        return self.recv()

    def render(self) -> tuple[Any]:  # type: ignore[override]
        """A picture of environment 0."""
        when = f"when it rendered after {self._steps[0]} steps"
        self._busy = True
        self._send(0, RENDER, when)
        picture = self._answer(0, when)
        self._busy = False
        return (picture,)

    def close_extras(self, **kwargs: Any) -> None:
        """Let the environments close and end the worker processes; one in the middle of a step is killed."""
        if self._end.still_active() and not self._busy:
            try:
                self._request_all(CLOSE, "when it was closed")
            except EnvironmentFailedError as error:
                warnings.warn(str(error), VoidrlWarning, stacklevel=2)
            await_end(self._workers)
        self._end()

    def _request_all(self, message: bytes, when: str) -> None:
        self._send_all(message, when)
        for k in range(len(self._workers)):
            self._answer(k, when)

    def _send_all(self, message: bytes, when: str = "") -> None:
        for k in range(len(self._workers)):
            self._send(k, message, when)

    def _send(self, k: int, message: bytes, when: str = "") -> None:
        try:
            self._workers[k].send(message)
        except WorkerLostError as lost:
            self._fail(k, lost, when)

    def _answer(self, k: int, when: str = "") -> Any:
        """The answer of worker k, None if it is empty; an error there is raised here."""
        try:
            message = self._workers[k].receive(self._timeout_s)
        except WorkerLostError as lost:
            self._fail(k, lost, when)
        if not message:
            return None
        fails, answer = pickle.loads(message)
        if fails:
            self._end()
            kind, sentence, trace = answer
            # Some errors take other arguments than a message.
            raise kind.__new__(kind, sentence) from WorkerTracebackError(trace)
        return answer

    def _fail(self, k: int, lost: WorkerLostError, when: str = "") -> NoReturn:
        self._end()
        first, *others = self._numbers[k]
        steps = self._steps[first]
        when = when or (f"in reset after {steps} steps" if self._ended[first] else f"at its own step {steps}")
        which = f"environments {first} to {others[-1]}" if others else f"environment {first}"
        raise EnvironmentFailedError(f"{lost}, while it ran {which} ({self._name!r}) {when}") from None


def _serve(
    pipe: Connection, make: MakeEnv, numbers: list[int], num_envs: int, name: str, descriptor: int
) -> None:
    """Run some of the environments until they are closed or one of them fails."""
    try:
        envs = [(i, make(i)) for i in numbers]
        _describe_and_step(pipe, envs, num_envs, name, descriptor)
    except (EOFError, ConnectionError):
        return  # the run's process has closed the pipe
    except BaseException as error:
        kind, sentence = type(error), str(error)
        if not isinstance(error, VoidrlError | gym.error.DependencyNotInstalled):
            kind = EnvironmentFailedError
            sentence = f"environment {numbers[0]} ({name!r}) {raised(error)}"
        trace = "".join(traceback.format_exception(error))
        pipe.send_bytes(pickle.dumps((True, (kind, sentence, trace))))


def _describe_and_step(
    pipe: Connection, envs: list[tuple[int, gym.Env]], num_envs: int, name: str, descriptor: int
) -> None:
    def answer(value: Any) -> None:
        try:
            message = pickle.dumps((False, value))
        except Exception as error:  # any error of an object's own code
            raise EnvironmentFailedError(
                f"environment {envs[0][0]} ({name!r}) has spaces or an info that cannot be sent between "
                f"processes ({shown(error)}): use plain values, or env.backend = 'sync'"
            ) from error
        pipe.send_bytes(message)

    described = [EnvDescription.of(env) for _, env in envs]
    answer(described)
    pipe.recv_bytes()
    arrays = SharedArrays.over(num_envs, described[0], lambda size: mmap.mmap(descriptor, size))
    obs, action, reward, terminated, truncated = arrays
    pipe.send_bytes(b"")
    while True:
        message = pipe.recv_bytes()
        command = message[:1]
        if command == CLOSE:
            for _, env in envs:
                env.close()
            pipe.send_bytes(b"")
            return
        if command == RENDER:
            answer(envs[0][1].render())
            continue
        seed = pickle.loads(message[1:]) if command == RESET else None
        infos = []
        for i, env in envs:
            if command == RESET or terminated[i] or truncated[i]:
                obs[i], info = env.reset(seed=None if seed is None else seed + i)
                reward[i], terminated[i], truncated[i] = 0.0, False, False
            else:
                obs[i], reward[i], terminated[i], truncated[i], info = env.step(action[i].copy())
            infos.append(info)
        if any(infos):
            answer(infos)
        else:
            pipe.send_bytes(b"")
