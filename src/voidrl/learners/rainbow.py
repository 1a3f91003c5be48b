"""Rainbow (Hessel et al. 2018): DQN with distributional values (C51), noisy layers and n-step returns.

With `replay.priority_exponent` above 0 it is prioritized as well; the rest is `dqn`'s. Differences from the
paper and from public code:

- The target distribution is computed densely, m_i = Σ_j p_j · max(0, 1 − |b_j − i|) with b_j the place of the
  clipped r + γⁿ z_j between atoms 0 and N − 1. Public code scatters into the two nearest atoms, which loses
  the mass of an integer b unless it is treated apart.
- Convolutions are initialized like all encoders here, orthogonally, and so are heads without noise.
- The noise of a noisy layer's bias starts at σ₀ / √inputs, as in Fortunato et al. (Kaixhin: σ₀ / √outputs).
- One draw of noise serves a whole batch, as in public code, and all parallel environments.
- Priorities are the cross-entropy, or the KL divergence on demand (the paper, SPR); which of both changes
  nothing about gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from voidrl.config import require
from voidrl.config.checks import between
from voidrl.kernels.fusion import fusable
from voidrl.learners.dqn import DQN, DQNConfig
from voidrl.types import Batch, Metrics

MAX_ATOMS = 1001  # the projection is quadratic in them


@dataclass(frozen=True)
class RainbowConfig(DQNConfig):
    """Distributional Q-learning with noisy layers."""

    n_step: int = 3
    """Steps whose rewards are summed before the value is bootstrapped."""
    learning_rate: float = 6.25e-5
    """Learning rate."""
    noisy_sigma: float = 0.5
    """σ₀ of noisy layers in the heads, which explore (DER: 0.1); 0 for plain layers, which need ε."""
    epsilon_start: float = 0.0
    """Probability of a random action at the start."""
    epsilon_end: float = 0.0
    """Probability of a random action after the decay."""
    atoms: Annotated[int, between(2, MAX_ATOMS)] = 51
    """Atoms of the distribution of returns."""
    v_min: float = -10.0
    """The lowest return that can be represented."""
    v_max: float = 10.0
    """The highest return that can be represented."""
    priority: Literal["cross_entropy", "kl"] = "cross_entropy"
    """The priority of transitions: `cross_entropy` to the target distribution, or its `kl` divergence (SPR),
    which is 0 where the prediction is right."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(math.isfinite(self.v_max), "v_max", self.v_max, "a finite number")
        below = math.isfinite(self.v_min) and self.v_min < self.v_max
        require(below, "v_min", self.v_min, f"a finite number below v_max = {self.v_max}")
        explores = self.noisy_sigma or self.epsilon_start or self.epsilon_end
        remedy = (
            "a number above 0, such as 0.5, or an epsilon_start or epsilon_end above 0: nothing would explore"
        )
        require(bool(explores), "noisy_sigma", self.noisy_sigma, remedy)


class Rainbow(DQN):
    """Acts by the highest mean of the predicted distribution of returns."""

    Config = RainbowConfig
    config: RainbowConfig
    has_bounded_values = True
    takes_vector_rewards = False  # a distribution of ψ would have dim axes

    @property
    def critic_outputs(self) -> int | None:
        """The logits of each action's atoms."""
        return self.config.atoms

    def support(self, like: Tensor) -> Tensor:
        """(N,): z, on the device of a tensor. No buffer, since it follows from the config."""
        c = self.config
        return torch.linspace(c.v_min, c.v_max, c.atoms, device=like.device)

    def values(self, output: Tensor) -> Tensor:
        """(B, A, N) logits → Q = Σ p z, (B, A)."""
        return (output.softmax(-1) * self.support(output)).sum(-1)

    @fusable
    def critic_loss(self, batch: Batch, reward: Tensor) -> tuple[Tensor, Metrics, Tensor]:
        """Cross-entropy to the projected n-step target distribution; also the error of each transition."""
        with torch.no_grad():
            probabilities = self.next_output(batch).softmax(-1)  # (B, N)
            support = self.support(probabilities)
            value = (probabilities * support).sum(-1)
            target = self.average_views(project_distribution(reward, batch.discount, probabilities, support))
        log_p = self.output(batch).log_softmax(-1)  # (B, N)
        cross_entropy = -(target * log_p).sum(-1)
        loss = (batch.weight * cross_entropy).mean()
        error = cross_entropy.detach()
        if self.config.priority == "kl":
            entropy = torch.special.entr(target).sum(-1)
            error = (error - entropy).clamp(min=0)  # rounding may go below
        metrics = {
            "critic_loss": loss.detach(),
            "q_mean": (log_p.detach().exp() * support).sum(-1).mean(),
            "q_target": (reward + batch.discount * value).mean(),
            "support_share": (target[:, 0] + target[:, -1]).mean(),
        }
        return loss, metrics, error


def project_distribution(reward: Tensor, discount: Tensor, probabilities: Tensor, support: Tensor) -> Tensor:
    """The distribution of r + γⁿ z, clipped to the support and shared among its atoms, in float32.

    (B,), (B,), (B, N), (N,) with equal distances → (B, N). Each z goes to the two atoms around it, in
    proportion to how near they are: mass is conserved, and inside the support so is the mean.
    """
    atoms = len(support)
    low, high = support[0], support[-1]
    reached = reward.float()[:, None] + discount.float()[:, None] * support  # (B, N)
    place = ((reached - low) * ((atoms - 1) / (high - low))).clamp(0, atoms - 1)  # b
    index = torch.arange(atoms, device=support.device, dtype=support.dtype)
    share = (1 - (place[:, None] - index[:, None]).abs()).clamp(min=0)  # (B, to, from)
    return (share * probabilities.float()[:, None]).sum(-1)
