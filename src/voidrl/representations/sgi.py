"""SGI: self-prediction, inverse dynamics and goal-conditioned RL (Schwarzer et al. 2021, arXiv:2106.04799).

Three losses on one latent, none of which needs a reward. `spr` rolls it forward through K actions and
predicts the states reached. An inverse model predicts each of these actions from the predicted latent before
it and the true one after it. A Q function learns to reach goals: states up to 50 steps ahead, mixed with
noise, some of them swapped for those of other trajectories. It is rewarded for progress, as differences of 1
− exp(−5 d²) with d the distance between latents of length 1. Its first layer is the projection of the other
two losses.

Differences from the public code: values are scalars under a Huber loss, where it has distributions; the goal
passes an MLP, where it passes convolutions; noise has the length of the goal that it is mixed with, where
there its length is 1 and the latent's is not; goals are 1 to 50 steps ahead and in the same episode, each
step equally likely, where it draws 2 to 49; a step that ends its episode has a reward and no inverse loss,
where there it is the other way round; a step's own reward is not discounted. Where the encoder has a trunk
behind its convolutions, latents are its output, z.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.config import EncoderConfig, RepresentationConfig, require
from voidrl.errors import ConfigError, shown
from voidrl.kernels.fusion import fusable
from voidrl.nets import Encoder, polyak_update, target_copy
from voidrl.nets.layers import FullPrecisionLinear, init_orthogonal, join, mlp, rescale, unit_vectors
from voidrl.nets.observations import action_mask
from voidrl.representations.base import Representation, Views
from voidrl.representations.icm import inverse_errors
from voidrl.representations.spr import SPR, SPRConfig
from voidrl.types import EnvSpec, Metrics

# The settings of the paper and its code.
PREDICTION_STEPS = 5  # K
MOMENTUM = 0.99  # of the target networks
HIDDEN_DIM = 512  # of each stream of the Q function and of other layers; the projection is twice as wide
GOAL_STEPS = 50  # the most between a state and its goal
GOAL_SWAP = 0.2  # probability that a goal is swapped for one of another trajectory
GOAL_NOISE = 0.5  # the largest share of noise in a goal, drawn from 0 up to this
GOAL_REWARD_SCALE = 10.0  # multiplies the progress
GOAL_DISTANCE_SCALE = 5.0  # multiplies d² in 1 − exp(−5 d²)
GOAL_DISCOUNT = 0.99


@dataclass(frozen=True)
class SGIConfig(RepresentationConfig):
    """Predict, tell actions apart, and reach goals."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """The encoder."""
    learning_rate: float = 1e-4
    """Learning rate of the encoder and all heads."""
    batch_size: int = 256
    """Sequences in one update, each of K + 1 states and a goal; 0 starts them at the learner's own
    transitions."""
    losses: tuple[Literal["spr", "inverse", "goal"], ...] = ("spr", "inverse", "goal")
    """Losses that are added up: self-prediction, inverse dynamics, and goal-conditioned RL, which takes
    discrete actions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.losses), "losses", self.losses, "at least one of spr, inverse, goal")


class FeatureSPR(SPR):
    """Self-prediction of all of an encoder's output, trunk included, as a part of other representations."""

    predicts_features = True


class GoalSPR(FeatureSPR):
    """SPR whose projection is the first layer of the Q function."""

    projection_dim = 2 * HIDDEN_DIM


class GoalQ(nn.Module):
    """Values of all actions given a goal, which scales and shifts the hidden units (FiLM)."""

    def __init__(self, width: int, goal_dim: int, hidden_dim: int, num_actions: int) -> None:
        super().__init__()
        self.film = mlp([goal_dim, hidden_dim, 2 * width], full_precision=False)
        self.advantage = FullPrecisionLinear(width // 2, num_actions).apply(init_orthogonal)
        self.value = FullPrecisionLinear(width // 2, 1).apply(init_orthogonal)

    def forward(self, projected: Tensor, goal: Tensor) -> Tensor:
        """(B, width), (B, goal_dim) → (B, A)."""
        scale, shift = self.film(goal).chunk(2, -1)
        hidden = projected.relu() * (1 + scale) + shift
        for_advantage, for_value = hidden.chunk(2, -1)  # (B, width / 2) each
        advantage: Tensor = self.advantage(for_advantage)
        return advantage - advantage.mean(-1, keepdim=True) + self.value(for_value)  # type: ignore[no-any-return]


class SGI(Representation):
    """An encoder trained by three losses of sequences."""

    Config = SGIConfig
    has_loss = True

    def __init__(self, spec: EnvSpec, config: SGIConfig, encoder: Encoder) -> None:
        super().__init__(spec, config, encoder)
        self.config: SGIConfig = config
        if "goal" in config.losses and not spec.discrete:
            raise ConfigError(
                f"representation.losses = {shown(config.losses)} cannot be used with {spec.describe()}: "
                f"goal-conditioned RL compares the values of discrete actions; use losses = spr,inverse"
            )
        self.spr = GoalSPR(spec, SPRConfig(config.name, encoder=config.encoder, momentum=MOMENTUM), encoder)
        width = self.spr.projection_dim
        self.rolls = set(config.losses) != {"goal"}
        if "inverse" in config.losses:
            actions = spec.num_actions or spec.action_dim
            self.inverse_net = mlp([2 * width, HIDDEN_DIM, actions], full_precision=False)
        if "goal" in config.losses:
            goal_dim = math.prod(self.spr.latent_shape)
            self.head = GoalQ(width, goal_dim, HIDDEN_DIM, spec.num_actions)
            self.target_head = target_copy(self.head)

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        """The sum of the losses of each sequence."""
        sequence = views.sequence(PREDICTION_STEPS if self.rolls else 1)
        goal = views.future(GOAL_STEPS) if "goal" in self.config.losses else None
        return self.objectives(*sequence, goal)

    @fusable
    def objectives(
        self, obs: Tensor, action: Tensor, mask: Tensor, goal: Tensor | None
    ) -> tuple[Tensor, Metrics]:
        """The (B,) losses of (K + 1, B, *obs_shape), (K, B, …) actions, the (K, B) mask and (B, …) goals."""
        chosen, spr, size = self.config.losses, self.spr, obs.shape[1]
        with torch.no_grad():
            seen = obs if goal is not None else obs[1:]  # progress is measured from s on
            reached = spr.latent(seen.flatten(0, 1), target=True)
            target = spr.project(reached[-mask.numel() :], target=True)  # (K · B, width)
        rolled = spr.roll(spr.latent(obs[0]), action if self.rolls else action[:0])
        projected = spr.project(torch.cat(rolled))  # ((K + 1) · B, width)
        losses: list[Tensor] = []
        metrics: Metrics = {"z_std": rolled[0].detach().float().std(0).mean()}
        if "spr" in chosen:
            error = spr.errors(projected[size:], target, mask)
            losses.append(error)
            metrics["spr_loss"] = error.detach().mean()
        if "inverse" in chosen:
            predicted = self.inverse_net(join(projected[:-size], target)).float()  # (K · B, A)
            error = inverse_errors(self.spec, predicted, action.flatten(0, 1)).view_as(mask)
            error = (error * mask).mean(0)
            losses.append(error)
            # Of the valid steps only, so that log A is a guess.
            metrics["inverse_loss"] = error.detach().mean() / mask.mean().clamp(min=1 / mask.numel())
        if goal is not None:
            goals = self.make_goals(spr.latent(goal, target=True))
            near, near_next = (self.nearness(latent, goals) for latent in reached[: 2 * size].chunk(2))
            wanted = self._goal_targets(near, near_next, obs[1], target[:size], goals, mask[0])
            q = self.head(projected[:size], rescale(goals)).gather(1, action[0][:, None])[:, 0]
            error = F.smooth_l1_loss(q, wanted, reduction="none")
            losses.append(error)
            metrics |= {"goal_loss": error.detach().mean(), "goal_nearness": near.mean()}
            metrics["goal_q"] = q.detach().mean()
        return torch.stack(losses).sum(0), metrics

    @torch.no_grad()
    def make_goals(self, latent: Tensor) -> Tensor:
        """(B, d) goals of length 1 from (B, *shape) latents: mixed with noise, some of other trajectories."""
        goal = unit_vectors(latent.flatten(1).float())
        share = torch.rand_like(goal[:, :1]) * GOAL_NOISE
        goal = unit_vectors(torch.lerp(goal, unit_vectors(torch.randn_like(goal)), share))
        other = goal[torch.randint(len(goal), (len(goal),), device=goal.device)]
        return torch.where(torch.rand_like(share) < GOAL_SWAP, other, goal)

    @torch.no_grad()
    def nearness(self, latent: Tensor, goal: Tensor) -> Tensor:
        """(B,) in [0, 1]: exp(−5 d²) for (B, *shape) latents and (B, d) goals."""
        squared = (unit_vectors(latent.flatten(1).float()) - goal).square().sum(1)
        return torch.exp(-GOAL_DISTANCE_SCALE * squared)

    @torch.no_grad()
    def _goal_targets(
        self, near: Tensor, near_next: Tensor, obs: Tensor, projected: Tensor, goal: Tensor, mask: Tensor
    ) -> Tensor:
        """(B,): the progress of a step, and the value of s' for the action preferred there (double Q).

        `obs` is s' and `projected` its projection by the target networks.
        """
        scale, goal = GOAL_REWARD_SCALE, rescale(goal)
        values, allowed = self.head(self.spr.project(self.spr.latent(obs)), goal), action_mask(obs, self.spec)
        if allowed is not None:
            values = values.masked_fill(~allowed, -torch.inf)
        best = values.argmax(1, keepdim=True)
        value = self.target_head(projected, goal).gather(1, best)[:, 0]
        target = scale * (near_next - near) + GOAL_DISCOUNT * mask * value
        # Discounted progress adds up to 1 − near at most, and to −near at least. Nothing else would stop
        # values from growing; the public code has the support of its distributions.
        return torch.minimum(torch.maximum(target, -scale * near), scale * (1 - near))

    def after_update(self) -> None:
        """Move the target networks."""
        self.spr.after_update()
        if "goal" in self.config.losses:
            polyak_update(self.target_head, self.head, 1 - MOMENTUM)
