"""Environments of a run that step together, by turns with those of other lanes (`EnvConfig.lanes`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from voidrl.device import HostCopy
from voidrl.envs.vector import Envs
from voidrl.errors import EnvironmentFailedError


class Flight(NamedTuple):
    """A step that was sent to the environments and not yet received."""

    actions: HostCopy | Tensor
    skill: Tensor  # (n, skill_dim) by which they were chosen


class Lane:
    """n environments, and how far their episodes are."""

    score: np.ndarray  # (n,) return of the episode so far
    length: np.ndarray  # (n,) its steps
    skill: Tensor  # (n, skill_dim) by which the next actions are chosen
    skill_age: np.ndarray  # (n,) steps taken with the present skill
    ended: np.ndarray  # (n,) whether the last step ended the episode, so that the next one resets it

    def __init__(self, number: int, first_env: int, envs: Envs, device: torch.device) -> None:
        """`first_env` is the number of the first environment among those of all lanes of this process."""
        self.number, self.first_env, self.envs = number, first_env, envs
        self.num_envs = envs.num_envs
        self.columns = torch.arange(self.num_envs, device=device)
        self.flight: Flight | None = None

    def begin(self, skill: Tensor) -> None:
        """All episodes begin."""
        n = self.num_envs
        self.score, self.length, self.skill_age = np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.skill, self.ended = skill, np.zeros(n, bool)

    @property
    def env_numbers(self) -> Tensor:
        """(n,): the numbers of the environments among those of all lanes."""
        return self.columns + self.first_env

    @property
    def steps_in_flight(self) -> int:
        """How many steps will be recorded with the results that are awaited; resets are none."""
        return 0 if self.flight is None else int((~self.ended).sum())

    @contextmanager
    def named(self, lanes: int) -> Iterator[None]:
        """Inside, an error of an environment says in which of several `lanes` it has its number."""
        try:
            yield
        except EnvironmentFailedError as error:
            if lanes == 1:
                raise
            last = self.first_env + self.num_envs - 1
            raise EnvironmentFailedError(
                f"{error}, in lane {self.number} (environments {self.first_env} to {last} of the run)"
            ) from error


def make_lanes(envs: list[Envs], device: torch.device) -> list[Lane]:
    """The lanes of a process, given the environments of each."""
    firsts = np.cumsum([0, *(each.num_envs for each in envs)]).tolist()
    return [Lane(i, firsts[i], each, device) for i, each in enumerate(envs)]
