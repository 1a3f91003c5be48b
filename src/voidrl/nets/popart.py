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

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.entropy import RunningMoments
from voidrl.errors import ConfigError
from voidrl.kernels.fusion import fusable
from voidrl.nets.heads import DuelingQ
from voidrl.types import Batch, Metrics

if TYPE_CHECKING:
    from voidrl.learners.dqn import DQN

RATE = 3e-4
"""Weight of the newest batch (Hessel et al. 2019): statistics look back about 1 / rate updates."""
SMALLEST_STD = 1e-4
"""Lower limit of σ (Hessel et al. 2019): weights would grow without limit where all targets are equal."""


class PopArt(nn.Module):
    """Running mean and deviation of targets, and critics that follow them.

    Args:
        rate: Weight of the newest batch, in (0, 1].
    """

    def __init__(self, rate: float = RATE) -> None:
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

    def td_loss(self, learner: DQN, batch: Batch, reward: Tensor) -> tuple[Tensor, Metrics, Tensor]:
        """Huber loss of the normalized error, after the targets have moved the statistics."""
        target = self.target(learner, batch, reward)
        self.update(target, learner.critic, learner.target_critic)
        return self.normalized_loss(learner, batch, target)

    @fusable
    def target(self, learner: DQN, batch: Batch, reward: Tensor) -> Tensor:
        """The target, compiled by itself: the last layers are rescaled by it before the loss is computed."""
        return learner.target(batch, reward)

    @fusable
    def normalized_loss(self, learner: DQN, batch: Batch, target: Tensor) -> tuple[Tensor, Metrics, Tensor]:
        """The loss, what to log about it, and the error of each transition in units of the reward."""
        output = learner.output(batch)
        goal = self.normalize(target)
        loss = (batch.weight * F.smooth_l1_loss(output, goal, reduction="none")).mean()
        q = self.denormalize(output.detach())
        metrics = {"critic_loss": loss.detach(), "q_mean": q.mean(), "q_target": target.mean()}
        metrics |= {"popart_mean": self.mean[0], "popart_std": self.std[0]}
        return loss, metrics, (q - target).abs()


def popart_for(critic: nn.Module) -> PopArt:
    """PopArt for a critic, which must have linear outputs."""
    if not isinstance(critic, DuelingQ) or critic.outputs is not None:
        raise ConfigError(
            f"learner.popart = True cannot be used with {type(critic).__name__}, the method's own critic: "
            f"expected one whose last layers give the values themselves; use learner.popart = False, or a "
            f"method without a critic of its own"
        )
    return PopArt()
