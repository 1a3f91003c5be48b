"""The frozen pre-trained policy that explores for an agent which is fine-tuned (CPT, Campos et al. 2021).

It acts in the warm-up where the agent's own heads are new, and afterwards, where adaptation has replaced
them, in stretches. Differences from CPT: there, following the pre-trained policy is also one more action
whose value is learned; here it only explores, in stretches of geometric length that become rarer.

The policy is a copy of the pre-trained learner, with the exploration noise at the end of its schedule. It
belongs to a run, not to the agent: a run's checkpoints have it, saved agents do not.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from voidrl.agent.agent import Agent
from voidrl.config import Config, to_json, update
from voidrl.learners.base import Learner
from voidrl.types import EnvSpec

PROBABILITY = 0.02  # of a stretch: half of the steps at first
MEAN_STEPS = 50.0  # of a stretch


class Explorer:
    """A policy that never learns, and which environments it acts in."""

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

    # Schedules

    @staticmethod
    def is_needed(config: Config) -> bool:
        """Whether a run starts with an explorer; with `finetune.heads = "auto"` one may come later."""
        return config.effective.adapts and Explorer.warms_up(config)

    @staticmethod
    def warms_up(config: Config) -> bool:
        """Whether it acts in every environment of a warm-up by the policy, as the agent's own is new."""
        tuning = config.finetune
        by_policy = tuning.warmup_actions == "policy" and not config.learner.on_policy
        return by_policy and tuning.heads in ("random", "first_layer")

    def set_progress(self, config: Config, steps: int, *, in_warmup: bool, is_asked: bool) -> bool:
        """Move the schedule of a run to where it is after `steps` steps; returns whether it may act now.

        `is_asked`: adaptation has asked for stretches, which become rarer to the end of the run.
        """
        everywhere = in_warmup and self.warms_up(config)
        self.everywhere.fill_(everywhere)
        share = max(0.0, 1 - steps / config.steps) if is_asked and not in_warmup else 0.0
        self.start_probability.fill_(PROBABILITY * share)
        return everywhere or share > 0

    # Acting

    def begin(self, num_envs: int) -> None:
        """All environments start over, in no stretch."""
        if len(self.remaining) != num_envs:
            self.remaining = self.remaining.new_zeros(num_envs)
        self.remaining.zero_()

    @torch.no_grad()
    def replace(self, actions: Tensor, obs: Tensor, skill: Tensor, mean_steps: float) -> Tensor:
        """The agent's (N,) or (N, A) actions, with this policy's where it acts.

        Stretches do not end with episodes. Their lengths are 1 + ⌊E / −log(1 − 1/m)⌋ with E exponential:
        geometric, with mean m.
        """
        remaining = self.remaining  # written in place
        begins = torch.rand(remaining.shape, device=remaining.device) < self.start_probability
        rate = -math.log1p(-1 / mean_steps) if mean_steps > 1 else math.inf
        length = torch.empty(remaining.shape, device=remaining.device).exponential_() / rate
        drawn = begins * (1 + length.long())
        remaining.copy_(torch.where(remaining > 0, remaining, drawn))
        acts = (remaining > 0) | self.everywhere  # (N,)
        remaining.sub_(1).clamp_(min=0)
        own = self.policy.act(obs, skill, deterministic=False)
        return torch.where(acts.view(-1, *[1] * (actions.ndim - 1)), own, actions)

    # State

    def tensors(self) -> dict[str, Tensor]:
        """The policy's weights and buffers by name; stretches end where a checkpoint is written."""
        return {**dict(self.policy.named_parameters()), **dict(self.policy.named_buffers())}

    def state(self) -> dict[str, Tensor]:
        """Everything that acting changes."""
        buffers = dict(self.policy.named_buffers())
        return {**buffers, "remaining": self.remaining}

    def meta(self) -> dict[str, object]:
        """The config from which `load` builds the policy."""
        plain: dict[str, object] = to_json(self.config)
        return plain

    @classmethod
    @torch.no_grad()
    def load(cls, meta: object, tensors: dict[str, Tensor], spec: EnvSpec, device: torch.device) -> Explorer:
        """The inverse of `meta` and `tensors`. Draws random numbers, for weights that are then replaced."""
        assert isinstance(meta, dict)
        config = update(Config(), meta)
        explorer = cls(Agent(spec, config, torch.device("cpu")).learner.to(device), config)
        for name, value in explorer.tensors().items():
            value.copy_(tensors[name])
        return explorer
