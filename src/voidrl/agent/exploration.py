"""Exploration beyond what an agent's policy does: detours, and the policy that was pre-trained.

A pre-trained policy repeats itself: a critic that sees only its actions cannot judge others, and a reward off
its path is never found. Uniform noise hardly leaves that path; a held action does (Dabney et al. 2021).

The frozen pre-trained policy explores for an agent whose heads are new (CPT, Campos et al. 2021): in the
warm-up, or, where adaptation has replaced the heads, in stretches. Differences from CPT: there, following the
pre-trained policy is also one more action whose value is learned; here it only explores, in stretches of
geometric length that become rarer.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from voidrl.agent.agent import Agent
from voidrl.config import Config, update
from voidrl.learners.base import Learner
from voidrl.nets.observations import action_mask
from voidrl.types import EnvSpec

DETOUR_STEPS = 10.0  # mean length of a detour
STRETCH_STEPS = 50.0  # mean length of a stretch of the pre-trained policy
STRETCH_PROBABILITY = 0.02  # per step: half of the steps at first


class Detours:
    """Stretches of each environment in which one random action is held."""

    def __init__(self, agent: Agent, num_envs: int) -> None:
        self.agent, self.num_envs = agent, num_envs
        self.begin()

    def begin(self) -> None:
        """All environments start over, on no detour."""
        self.remaining = torch.zeros(self.num_envs, dtype=torch.int64, device=self.agent.device)
        self.held: Tensor | None = None

    def replace(self, actions: Tensor, obs: Tensor, probability: float, mean_steps: float) -> Tensor:
        """The (N,) or (N, A) actions, with the held ones where a detour is under way or begins.

        Lengths are geometric. An action that is no longer allowed is replaced by one that is.
        """
        n, shape = len(obs), (-1, *[1] * (actions.ndim - 1))
        fresh = self.agent.random_actions(obs)
        held = torch.zeros_like(fresh) if self.held is None else self.held
        begins = (torch.rand(n, device=fresh.device) < probability) & (self.remaining == 0)
        length = 1 + torch.empty(n, device=fresh.device).exponential_(1 / mean_steps).long()
        remaining = torch.where(begins, length, self.remaining)
        changes = begins
        allowed = action_mask(obs, self.agent.spec)
        if allowed is not None:
            changes = begins | ~allowed.to(held.device).gather(1, held[:, None])[:, 0]
        self.held = torch.where(changes.view(shape), fresh, held)
        self.remaining = (remaining - 1).clamp(min=0)
        return torch.where((remaining > 0).view(shape), self.held, actions)


class Explorer:
    """A copy of the pre-trained policy that never learns, and the environments it acts in.

    Its exploration noise is at the end of its schedule. It belongs to a run, not to the agent: a run's
    checkpoints have it, saved agents do not.
    """

    def __init__(self, policy: Learner, config: Config) -> None:
        """`policy` is taken over; `config` made it."""
        self.policy = policy.requires_grad_(False).eval()
        self.policy.set_progress(math.inf)
        self.config = config
        device = next((t.device for t in (*policy.parameters(), *policy.buffers())), None)
        self.everywhere = torch.zeros((), dtype=torch.bool, device=device)
        """Whether it acts in all environments, as in the warm-up."""
        self.start_probability = torch.zeros((), device=device)
        """Probability of a stretch, in each step of an environment that is in none."""
        self.remaining = torch.zeros(0, dtype=torch.int64, device=device)
        """(N,) steps left of each environment's stretch."""

    @classmethod
    def copy_of(cls, pretrained: Agent, device: torch.device) -> Explorer:
        """The policy of a pre-trained agent, which is not changed."""
        return cls(copy.deepcopy(pretrained.learner).to(device), pretrained.config)

    def set_progress(self, *, everywhere: bool, share: float) -> None:
        """Act in all environments, or in stretches with this share of their probability at first."""
        self.everywhere.fill_(everywhere)
        self.start_probability.fill_(STRETCH_PROBABILITY * share)

    def begin(self, num_envs: int) -> None:
        """All environments start over, in no stretch."""
        if len(self.remaining) != num_envs:
            self.remaining = self.remaining.new_zeros(num_envs)
        self.remaining.zero_()

    @torch.no_grad()
    def replace(self, actions: Tensor, obs: Tensor, skill: Tensor) -> Tensor:
        """The agent's (N,) or (N, A) actions, with this policy's where it acts.

        Stretches do not end with episodes. Their lengths are 1 + ⌊E / −log(1 − 1/m)⌋ with E exponential:
        geometric, with mean m.
        """
        remaining = self.remaining  # written in place
        begins = torch.rand(remaining.shape, device=remaining.device) < self.start_probability
        rate = -math.log1p(-1 / STRETCH_STEPS)
        length = torch.empty(remaining.shape, device=remaining.device).exponential_() / rate
        drawn = begins * (1 + length.long())
        remaining.copy_(torch.where(remaining > 0, remaining, drawn))
        acts = (remaining > 0) | self.everywhere  # (N,)
        remaining.sub_(1).clamp_(min=0)
        own = self.policy.act(obs, skill, deterministic=False)
        return torch.where(acts.view(-1, *[1] * (actions.ndim - 1)), own, actions)

    def tensors(self) -> dict[str, Tensor]:
        """The policy's weights and buffers by name; stretches end where a checkpoint is written."""
        return {**dict(self.policy.named_parameters()), **dict(self.policy.named_buffers())}

    def state(self) -> dict[str, Tensor]:
        """Everything that acting changes."""
        return {**dict(self.policy.named_buffers()), "remaining": self.remaining}

    @classmethod
    @torch.no_grad()
    def load(
        cls, config: dict[str, object], tensors: dict[str, Tensor], spec: EnvSpec, device: torch.device
    ) -> Explorer:
        """An explorer from its config as JSON and its `tensors`; draws weights, which are then replaced."""
        made_by = update(Config(), config)
        explorer = cls(Agent(spec, made_by, torch.device("cpu")).learner.to(device), made_by)
        for name, value in explorer.tensors().items():
            value.copy_(tensors[name])
        return explorer
