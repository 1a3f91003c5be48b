"""A trained agent in a plain Gymnasium loop: it stacks frames, holds a skill, and acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from voidrl.config import require
from voidrl.errors import SpaceError
from voidrl.system.device import random_state, restore_random_state, seeded

if TYPE_CHECKING:
    from voidrl.agent.acting import ActingAgent

T = TypeVar("T")


class Player:
    """Acts in one environment, or in N side by side, as voidrl's evaluations do.

    ```
    player = agent.player()
    obs, info = env.reset(seed=0)
    player.reset()
    while not ended:
        obs, reward, terminated, truncated, info = env.step(player(obs))
        ended = terminated or truncated
    ```

    Args:
        agent: The agent, whose weights are read at each step.
        skill: The skill to follow, or one for each environment, (N, skill_dim); None takes the task's, or
            samples one for each episode if no task has chosen one yet.
        deterministic: Without exploration noise. As in evaluations, a policy that is a distribution is
            sampled all the same (`Learner.plays_by_sampling`).
        num_envs: N, for observations with an axis of environments; None for one environment without it.
        seed: Of skills and noise; they do not change torch's random numbers, and are not changed by them.
    """

    def __init__(
        self,
        agent: ActingAgent,
        *,
        skill: np.ndarray | None = None,
        deterministic: bool = True,
        num_envs: int | None = None,
        seed: int = 0,
    ) -> None:
        require(
            num_envs is None or num_envs >= 1, "num_envs", num_envs, "None (one environment) or 1 or more"
        )
        self.agent, self.num_envs = agent, num_envs
        self.deterministic = deterministic and not agent.learner.plays_by_sampling
        self._given = None if skill is None else np.asarray(skill, np.float32)
        self._count = num_envs or 1
        with seeded(seed, agent.device):
            self._random = random_state(agent.device)
        self._begun = False

    @property
    def skill(self) -> np.ndarray:
        """The skill that is followed, (skill_dim,), or (N, skill_dim) with `num_envs`."""
        if not self._begun:
            self.reset()
        skills: np.ndarray = self._skill.cpu().numpy()
        return skills if self.num_envs else skills[0]

    def reset(self, ended: np.ndarray | None = None) -> None:
        """Mark the next observation as the start of an episode, everywhere or where (N,) `ended` is true."""
        n = self._count
        if ended is None or not self._begun:
            self._begun = True
            self._fresh = np.ones(n, bool)
            self._skill = self._new_skills(np.zeros(n))
            self._frames: list[Any] = []  # the last observations of a stack, oldest first
            self._steps = np.zeros(n, np.int64)  # of the episode
            return
        where = np.asarray(ended, bool).reshape(-1)
        if where.shape != (n,):
            raise SpaceError(f"ended of shape {np.shape(ended)} cannot be used: expected ({n},)")
        if where.any():
            self._fresh |= where
            self._steps[where] = 0
            self._change_skills(where)

    def __call__(self, obs: Any, action_mask: np.ndarray | None = None) -> Any:
        """The action for an observation, as the environment gives and takes them.

        `action_mask` says which actions are allowed, for environments whose masks are not in the observation.
        """
        if not self._begun:
            self.reset()
        agent, period = self.agent, self.agent.skill_every_steps
        if period and not agent.task_skill_chosen:
            self._change_skills((self._steps > 0) & (self._steps % period == 0))
        if agent.spec.frame_stack > 1:
            self._remember(obs)
            obs = _each(lambda *frames: np.stack(frames, 1 if self.num_envs else 0), *self._frames)
        skill = self._skill.cpu().numpy() if self._skill.shape[1] else None
        if skill is not None and not self.num_envs:
            skill = skill[0]

        def act() -> Any:
            return agent.act(obs, self.deterministic, skill, action_mask)

        action = act() if self.deterministic else self._randomly(act)
        self._fresh[:] = False
        self._steps += 1
        return action

    act = __call__

    def _remember(self, obs: Any) -> None:
        """Add an observation to the stacks; an episode begins with its first one repeated."""
        obs = _each(np.array, obs)  # a copy: an environment may write the next one into the same memory
        stack = self.agent.spec.frame_stack
        self._frames = [obs] * stack if self._fresh.all() else [*self._frames[1:], obs]
        if self._fresh.any() and not self._fresh.all():
            self._frames = [_each(self._renewed, obs, frame) for frame in self._frames]

    def _renewed(self, new: np.ndarray, old: np.ndarray) -> np.ndarray:
        """(N, …) observations, the new ones where an episode begins."""
        return np.where(self._fresh.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    # Skills

    def _new_skills(self, steps: np.ndarray) -> Tensor:
        if self._given is not None:
            return self.agent.given_skill(self._given, self._count)
        age = torch.from_numpy(steps.astype(np.int64)).to(self.agent.device)
        return self._randomly(lambda: self.agent.new_skills(age))

    def _change_skills(self, where: np.ndarray) -> None:
        """New skills where (N,) `where`, unless they are given."""
        if self._given is None and self._skill.shape[1] and where.any():
            needed = torch.from_numpy(where).to(self._skill.device)[:, None]
            self._skill = torch.where(needed, self._new_skills(self._steps), self._skill)

    def _randomly(self, draw: Callable[[], T]) -> T:
        """Call a function with the player's own random numbers."""
        device = self.agent.device
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            restore_random_state(self._random, device)
            drawn = draw()
            self._random = random_state(device)
        return drawn


def _each(function: Callable[..., Any], *obs: Any) -> Any:
    """Apply a function to the arrays of observations, in each entry of a dictionary or tuple."""
    if isinstance(obs[0], Mapping):
        return {key: _each(function, *(each[key] for each in obs)) for key in obs[0]}
    if isinstance(obs[0], tuple):
        return tuple(_each(function, *parts) for parts in zip(*obs, strict=True))
    return function(*obs)
