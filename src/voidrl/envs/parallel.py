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
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from voidrl.envs.failures import raised
from voidrl.envs.spaces.reading import Reading
from voidrl.envs.workers import Worker, WorkerLostError, allocate, await_end, kill_with, shared_file
from voidrl.errors import EnvironmentFailedError, SpaceError, VoidrlError, VoidrlWarning, shown

START, RESET, STEP, RENDER, CLOSE = b"m", b"r", b"s", b"v", b"c"  # first bytes of messages
ALIGNMENT = 64  # bytes
Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]
MakeEnv = Callable[[int], gym.Env]
"""Creates environment i, with its `reading`; called in a worker."""


class EnvDescription(NamedTuple):
    """A worker's description of an environment."""

    observation: gym.Space
    action: gym.Space
    reading: Reading
    render_mode: str | None
    render_fps: float | None

    def __str__(self) -> str:
        """Its spaces."""
        return f"{self.observation} and {self.action} ({self.reading.spec.describe()})"


def shared_arrays(n: int, described: EnvDescription, map_memory: Callable[[int], Any]) -> list[np.ndarray]:
    """Observations, actions, rewards, terminated and truncated of N environments, (N, …) each.

    They are views into the memory that `map_memory` returns for a number of bytes, since observations of any
    size would not fit into a pipe.
    """
    spaces = described.observation, described.action  # Boxes and choices, converted where needed
    blocks = [((n, *(space.shape or ())), np.dtype(space.dtype)) for space in spaces]
    blocks += [((n,), np.dtype(kind)) for kind in (np.float64, np.bool_, np.bool_)]
    sizes = [-(-math.prod(shape) * kind.itemsize // ALIGNMENT) * ALIGNMENT for shape, kind in blocks]
    memory = map_memory(sum(sizes))
    return [np.ndarray(*block, memory, sum(sizes[:i])) for i, block in enumerate(blocks)]


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
        self.single_observation_space, self.single_action_space, self.reading, self.render_mode, rate = first
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_fps": rate}

    def _start(self, make: MakeEnv, variables: Mapping[str, str] | None) -> EnvDescription:
        when = "when it was created"
        with shared_file() as file:
            for numbers in self._numbers:
                arguments = make, numbers, self.num_envs, self._name, file.fileno()
                worker = Worker(_serve, *arguments, variables=variables, files=(file.fileno(),))
                self._workers.append(worker)
            described = [each for k in range(len(self._workers)) for each in self._answer(k, when)]
            first: EnvDescription = described[0]
            for i, other in enumerate(described):
                if other[:2] != first[:2] or other.reading.spec != first.reading.spec:
                    raise SpaceError(
                        f"environment {i} ({self._name!r}) has the spaces {other} and environment 0 has "
                        f"{first}: expected the same in all of them"
                    )
            self._arrays = shared_arrays(self.num_envs, first, lambda size: allocate(file, size, self._name))
            self._request_all(START, when)
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
        self._arrays[1][:] = actions
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
            failure = kind.__new__(kind, sentence)  # some errors take other arguments than a message
            failure.add_note(f"In the worker process:\n{trace}")
            raise failure
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
        for answer in _answers(pipe, [(i, make(i)) for i in numbers], num_envs, descriptor):
            try:
                message = b"" if answer is None else pickle.dumps((False, answer))
            except Exception as error:  # any error of an object's own code
                raise EnvironmentFailedError(
                    f"environment {numbers[0]} ({name!r}) has spaces or an info that cannot be sent between "
                    f"processes ({shown(error)}): use plain values, or env.backend = 'sync'"
                ) from error
            pipe.send_bytes(message)
    except (EOFError, ConnectionError):
        return  # the run's process has closed the pipe
    except BaseException as error:
        kind, sentence = type(error), str(error)
        if not isinstance(error, VoidrlError | gym.error.DependencyNotInstalled):
            kind = EnvironmentFailedError
            sentence = f"environment {numbers[0]} ({name!r}) {raised(error)}"
        trace = "".join(traceback.format_exception(error))
        pipe.send_bytes(pickle.dumps((True, (kind, sentence, trace))))


def _answers(
    pipe: Connection, envs: list[tuple[int, gym.Env]], num_envs: int, descriptor: int
) -> Iterator[Any]:
    """The descriptions of environments, then the answer to each request."""
    described = []
    for _, env in envs:
        reading: Reading = env.reading  # type: ignore[attr-defined]
        rate = (env.metadata or {}).get("render_fps")
        spaces = env.observation_space, env.action_space
        described.append(EnvDescription(*spaces, reading, env.render_mode, rate))
    yield described
    pipe.recv_bytes()
    arrays = shared_arrays(num_envs, described[0], lambda size: mmap.mmap(descriptor, size))
    obs, action, reward, terminated, truncated = arrays
    yield None
    while True:
        message = pipe.recv_bytes()
        command = message[:1]
        if command == CLOSE:
            for _, env in envs:
                env.close()
            yield None
            return
        if command == RENDER:
            yield envs[0][1].render()
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
        yield infos if any(infos) else None
