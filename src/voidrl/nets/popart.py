"""PopArt: targets of any scale for a network whose outputs stay the same (van Hasselt et al. 2016).

A critic predicts normalized values n(s, a), and Q = σ n + μ with the running mean μ and deviation σ of the
targets. When new targets move them to μ', σ', the last layer becomes

    W' = σ/σ' W,   b' = (σ b + μ − μ') / σ',

so that σ' n' + μ' = σ n + μ: no value changes, only the scale on which the loss is computed. With dueling
heads n = v + a − mean(a): both streams take the factor and the value alone takes the shift, since a shift of
all advantages would be subtracted with their mean. Noisy layers are linear in μ and σ of their weights, which
take the factor alike.

The target network is rescaled with the online one, by the same statistics. Its values are preserved too, and
a Polyak average of the normalized last layers remains the average of the unnormalized ones: σ((1 − τ) W⁻ +
τ W) = (1 − τ) σ W⁻ + τ σ W, and likewise for biases. With statistics of its own it would not be.

Differences from the papers:

- Statistics are weighted moments of whole batches, exact from the first batch on, instead of averages from
  μ = 0 and σ = 1; once about 1 / rate batches were seen, both have the same weights.
- The variance is summed around the mean and in float64: E[y²] − μ² in float32 cancels where μ is large.
- There is one pair of statistics for all actions and skills, and no upper limit to σ.
- Optimizers keep their moments as they are.
- A periodic reset (`reset.*`) reinitializes the heads and keeps the statistics, since the returns of the task
  are what they were: fresh heads predict their mean. Fine-tuning with fresh heads begins with fresh ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voidrl.entropy import RunningMoments
from voidrl.nets.heads import DuelingQ

SMALLEST_STD = 1e-4
"""Lower limit of σ (Hessel et al. 2019): weights would grow without limit where all targets are equal."""


class PopArt(nn.Module):
    """Running mean and deviation of targets, and critics that follow them.

    Args:
        rate: Weight of the newest batch, in (0, 1].
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.moments = RunningMoments(floor=SMALLEST_STD, momentum=1 - rate)

    @property
    def mean(self) -> Tensor:
        """(1,): μ."""
        return self.moments.mean

    @property
    def std(self) -> Tensor:
        """(1,): σ."""
        return self.moments.std

    @torch.no_grad()
    def update(self, targets: Tensor, *critics: nn.Module) -> None:
        """Update the statistics with (B,) targets, and rescale the critics so that their values stay."""
        mean, std = self.mean.clone(), self.std.clone()
        self.moments.update(targets.float())
        for critic in critics:
            assert isinstance(critic, DuelingQ)
            critic.rescale_output(std / self.std, (mean - self.mean) / self.std)

    def normalize(self, values: Tensor) -> Tensor:
        """(y − μ) / σ."""
        return self.moments.standardize(values)

    def denormalize(self, outputs: Tensor) -> Tensor:
        """σ n + μ."""
        return self.std * outputs + self.mean
