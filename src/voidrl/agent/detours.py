"""Detours: stretches in which one random action is held, for experience beyond what the policy does.

A pre-trained policy repeats itself: a critic that sees only its actions cannot judge others, and a reward off
its path is never found. Uniform noise hardly leaves that path; a held action does (Dabney et al. 2021).
"""

from __future__ import annotations

import torch
from torch import Tensor

from voidrl.agent.agent import Agent
from voidrl.nets.observations import action_mask

MEAN_STEPS = 10.0


class Detours:
    """Detours of each environment: the steps left and the action that is held."""

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
