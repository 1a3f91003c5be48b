"""Acting: from observations and skills to actions, in training and in a plain Gymnasium loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from voidrl.config import Config, require
from voidrl.config.effective import Effective
from voidrl.envs.spaces import env_action, observed_frames
from voidrl.errors import ConfigError, SpaceError
from voidrl.learners.base import Learner
from voidrl.methods.base import Method
from voidrl.nets.observations import action_mask, random_allowed
from voidrl.representations.base import Representation
from voidrl.system.device import random_state, restore_random_state, seeded, uses_bf16
from voidrl.types import EnvSpec

T = TypeVar("T")


class ActingAgent(nn.Module):
    """The part of an agent that an environment needs."""

    spec: EnvSpec
    config: Config
    effective: Effective
    learns: bool
    representation: Representation
    method: Method
    learner: Learner
    task_skill: Tensor
    task_skill_chosen: Tensor
    trials_dealt: Tensor

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.task_skill.device

    def precision(self) -> torch.autocast:
        """Autocast for products in bf16. No cache: within one update the weights change between losses."""
        on = uses_bf16(self.config.precision, self.device)
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on, cache_enabled=False)

    @torch.no_grad()
    def encode(self, obs: Tensor) -> Tensor:
        """The representation of observations, (B, dim)."""
        z: Tensor = self.representation.encode(obs).float()
        expected = n, dim = len(obs), self.representation.dim
        if z.shape != expected:
            raise ConfigError(
                f"encode of representation {self.config.representation.name!r} maps {n} observations "
                f"to {tuple(z.shape)}: expected {expected}, since its dim is {dim}"
            )
        return z

    @torch.no_grad()
    def choose(self, obs: Tensor, skill: Tensor, *, deterministic: bool) -> Tensor:
        """The learner's actions for observations on the device; random ones where nothing is learned."""
        if not self.learns:
            return self.random_actions(obs)
        with self.precision():
            return self.learner.act(obs, skill, deterministic=deterministic)

    def random_actions(self, obs: Tensor) -> Tensor:
        """Uniform actions for (n, …) observations as stored, among those that are allowed."""
        n, allowed = len(obs), action_mask(obs, self.spec)
        if allowed is not None:
            return random_allowed(allowed.to(self.device))
        if self.spec.discrete:
            return torch.randint(self.spec.num_actions, (n,), device=self.device)
        return torch.rand(n, self.spec.action_dim, device=self.device) * 2 - 1

    @property
    def skill_every_steps(self) -> int:
        """Environment steps for which a skill is kept; 0 for a whole episode."""
        return getattr(self.config.method, "skill_every_steps", 0)

    def new_skills(self, episode_steps: Tensor) -> Tensor:
        """(n, skill_dim): the task's skill once it is chosen, else samples for n environments."""
        if self.task_skill_chosen:  # host read, only where skills change
            return self.task_skill.expand(len(episode_steps), -1)
        return self.method.sample_skill(episode_steps)

    def trial_skills(self) -> Tensor | None:
        """The skills that the warm-up of fine-tuning deals in turn; None elsewhere, and where it samples."""
        return self.method.trial_skills() if self.effective.adapts else None

    def next_skills(self, skill: Tensor, needed: Tensor, episode_steps: Tensor) -> Tensor:
        """(N, skill_dim): new skills where `needed`, (N,), the given ones elsewhere."""
        if not self.method.skill_dim:
            return skill
        trials = self.trial_skills()
        if trials is None or self.task_skill_chosen:
            fresh = self.new_skills(episode_steps)
        else:
            turn = (self.trials_dealt + needed.cumsum(0) - 1) % len(trials)
            self.trials_dealt += needed.sum()
            fresh = trials.to(self.device)[turn]
        return torch.where(needed[:, None], fresh, skill)

    @torch.no_grad()
    def act(
        self,
        obs: Any,
        deterministic: bool = True,
        skill: np.ndarray | None = None,
        action_mask: np.ndarray | None = None,
    ) -> Any:
        """The action for one observation, or for a batch, as the environment gives and takes them.

        Args:
            obs: One observation or a batch: an array, or a dictionary or tuple of arrays. With `frame_stack`
                > 1 the last frames lie along an axis before each array's own, oldest first.
            deterministic: Without exploration noise.
            skill: One for all or one for each of the batch; by default the one chosen for the task.
            action_mask: Which actions are allowed (1) and which are not (0), one mask or one for each of the
                batch; for agents from environments that report masks outside of their observations.
        """
        frames, single = observed_frames(obs, self.spec, action_mask)
        stacked = torch.from_numpy(frames).to(self.device)
        skills = self.given_skill(skill, len(stacked))
        actions = self.choose(stacked, skills, deterministic=deterministic)
        taken = env_action(actions.cpu().numpy(), self.spec)
        return taken[0] if single else taken

    def player(
        self,
        skill: np.ndarray | None = None,
        deterministic: bool = True,
        *,
        num_envs: int | None = None,
        seed: int = 0,
    ) -> Player:
        """A player for a Gymnasium loop, which stacks frames, holds a skill, and acts as evaluations do.

        `skill` is by default the task's, or a sample for each episode; `num_envs` is for vector environments.
        """
        return Player(self, skill=skill, deterministic=deterministic, num_envs=num_envs, seed=seed)

    def given_skill(self, skill: np.ndarray | None, n: int) -> Tensor:
        """(n, skill_dim): a skill of the caller for n observations; by default the task's."""
        dim = self.method.skill_dim
        if skill is None:
            return self.task_skill.expand(n, dim)
        given = np.asarray(skill, np.float32)
        if given.shape not in ((dim,), (n, dim)):
            raise SpaceError(
                f"skill of shape {given.shape} cannot be followed: expected ({dim},) or ({n}, {dim})"
            )
        return torch.from_numpy(given).to(self.device).expand(n, dim)


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
        valid = num_envs is None or num_envs >= 1
        require(valid, "num_envs", num_envs, "None (one environment) or 1 or more")
        self.agent, self.num_envs = agent, num_envs
        self.deterministic = deterministic and not agent.learner.plays_by_sampling
        self._given = None if skill is None else np.asarray(skill, np.float32)
        n = self._count = num_envs or 1
        with seeded(seed, agent.device):
            self._random = random_state(agent.device)
        self._begun = False
        self._fresh, self._steps = np.ones(n, bool), np.zeros(n, np.int64)  # of the episode
        self._frames: list[Any] = []  # the last observations of a stack, oldest first

    @property
    def skill(self) -> np.ndarray:
        """The skill that is followed, (skill_dim,), or (N, skill_dim) with `num_envs`."""
        if not self._begun:
            self.reset()
        skills: np.ndarray = self._skill.cpu().numpy()
        return skills if self.num_envs else skills[0]

    def reset(self, ended: np.ndarray | None = None) -> None:
        """Mark the next observation as the start of an episode, everywhere or where (N,) `ended` is true."""
        everywhere = ended is None or not self._begun
        where = np.ones(self._count, bool) if everywhere else np.asarray(ended, bool).reshape(-1)
        if where.shape != (self._count,):
            raise SpaceError(
                f"ended of shape {np.asarray(ended).shape} cannot be used: expected ({self._count},)"
            )
        self._fresh |= where
        self._steps[where] = 0
        if self._begun:
            self._change_skills(where)
        else:
            self._begun, self._skill = True, self._new_skills()

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
        skill = self.skill if self._skill.shape[1] else None

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

    def _new_skills(self) -> Tensor:
        if self._given is not None:
            return self.agent.given_skill(self._given, self._count)
        age = torch.from_numpy(self._steps).to(self.agent.device)
        return self._randomly(lambda: self.agent.new_skills(age))

    def _change_skills(self, where: np.ndarray) -> None:
        """New skills where (N,) `where`, unless they are given."""
        if self._given is None and self._skill.shape[1] and where.any():
            needed = torch.from_numpy(where).to(self._skill.device)[:, None]
            self._skill = torch.where(needed, self._new_skills(), self._skill)

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
