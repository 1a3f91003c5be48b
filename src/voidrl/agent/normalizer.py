"""Intrinsic rewards on a scale that does not depend on the method (`intrinsic_normalization`)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voidrl.config import Config
from voidrl.entropy import RunningMoments
from voidrl.kernels.fusion import fusable
from voidrl.types import Metrics

CONSTANT_SPREAD = 1e-5
"""Largest standard deviation of a constant reward, relative to its mean: above the rounding of float32, 1e-7,
and far below that of any informative reward."""


class RewardNormalizer(nn.Module):
    """Divides rewards of single transitions by their running deviation, or standardizes them.

    Only runs that use the method have intrinsic rewards, and state for them. In an n-step return each of the
    n rewards is normalized by the same moments, then discounted: Σ γ^i (r_i − μ) / σ over the steps up to the
    end of the episode. With `intrinsic_n_step = "single"` the one reward of n steps is normalized.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.variant = config.intrinsic_normalization
        self.is_used = config.effective.uses_method and self.variant != "none"
        self.logs = self.is_used or config.effective.has_bonus
        if self.is_used:
            self.moments = RunningMoments(momentum=config.intrinsic_momentum)

    @fusable
    @torch.no_grad()
    def observe(self, reward: Tensor) -> tuple[Tensor, Metrics]:
        """Update the moments with (B,) rewards; returns these normalized, and what is logged of them."""
        found = reward.float()
        if self.is_used:
            self.moments.update(found)
        normalized = self(reward)
        metrics = {"reward_std": normalized.float().std(correction=0)}
        if self.logs:
            metrics |= {"intrinsic_mean": found.mean(), "intrinsic_std": found.std(correction=0)}
        return normalized, metrics

    def forward(self, reward: Tensor) -> Tensor:
        """(B,) → (B,), by the moments of all that was observed; vectors (B, dim) by those of their scalars.

        A reward that is constant up to rounding is not divided: `scale` would make it huge, and `standardize`
        would make noise of it.
        """
        if not self.is_used:
            return reward
        mean, std = self.moments.mean, self.moments.std
        centered = reward - mean if self.variant == "standardize" else reward
        return centered / std.masked_fill(std <= CONSTANT_SPREAD * mean.abs(), 1.0)
