"""Acting: from observations and skills to actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from voidrl.agent.player import Player
from voidrl.config import Config, SkillConfig
from voidrl.config.effective import Effective
from voidrl.envs.spaces import env_action, observed_frames
from voidrl.errors import ConfigError, SpaceError
from voidrl.learners.base import Learner
from voidrl.methods.base import Method
from voidrl.nets.observations import action_mask, random_allowed
from voidrl.representations.base import Representation
from voidrl.system.device import uses_bf16
from voidrl.types import EnvSpec


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
        if z.shape != (len(obs), self.representation.dim):
            expected = len(obs), self.representation.dim
            raise ConfigError(
                f"encode of representation {self.config.representation.name!r} maps {len(obs)} observations "
                f"to {tuple(z.shape)}: expected {expected}, since its dim is {self.representation.dim}"
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
        method = self.config.method
        return method.skill_every_steps if isinstance(method, SkillConfig) else 0

    def new_skills(self, episode_steps: Tensor) -> Tensor:
        """(n, skill_dim): the task's skill once it is chosen, else samples for n environments."""
        if self.task_skill_chosen:  # host read, only where skills change
            return self.task_skill.expand(len(episode_steps), -1)
        return self.method.sample_skill(episode_steps)

    def trial_skills(self) -> Tensor | None:
        """The skills that the warm-up of fine-tuning deals in turn; None elsewhere, and where it samples."""
        return self.method.trial_skills() if self.effective.adapts else None

    def next_skills(self, skill: Tensor, needed: Tensor, episode_steps: Tensor) -> Tensor:
        """(N, skill_dim): new skills where `needed`, (N,), the given ones elsewhere.

        In the warm-up of fine-tuning the method's trial skills are dealt in turn.
        """
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
