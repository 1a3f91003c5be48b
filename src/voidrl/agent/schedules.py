"""Values that change on the device, where a captured update sees them: n, γ (BBF) and β of a bonus."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from voidrl.config import Config, LearnerConfig
from voidrl.replay import Replay, Segment

BONUS_DECAY = 1e-5  # of a geometric β (RE3)


class Horizon(nn.Module):
    """The n and γ of returns: fixed, or annealed from the start and from each reset."""

    updates: Tensor

    def __init__(self, config: LearnerConfig) -> None:
        super().__init__()
        self.config = config
        self.is_annealed = config.n_step_end is not None or config.discount_end is not None
        if self.is_annealed:
            self.register_buffer("updates", torch.zeros(()))  # since the start or the last reset

    def segment(self, replay: Replay, slots: Tensor) -> Segment:
        """The next n steps from each slot."""
        c = self.config
        n, discount = self.now() if self.is_annealed else (c.n_step, c.discount)
        return replay.segment(slots, n, discount, c.longest_n_step)

    def now(self) -> tuple[Tensor, Tensor]:
        """n, rounded, and γ: log-linear in n and in 1 − γ."""
        c = self.config
        progress = (self.updates / c.anneal_updates).clamp(max=1)

        def log_linear(start: float, end: float) -> Tensor:
            return start * torch.exp(progress * math.log(end / start))

        n = log_linear(c.n_step, c.n_step_end or c.n_step).round().long()
        return n, 1 - log_linear(1 - c.discount, 1 - (c.discount_end or c.discount))

    def after_update(self) -> None:
        """Count an update."""
        if self.is_annealed:
            self.updates.add_(1)

    def restart(self) -> None:
        """Anneal from the start again."""
        if self.is_annealed:
            self.updates.zero_()


class Bonus(nn.Module):
    """β_t, the weight of an intrinsic reward that is added to the task's (`bonus.*`)."""

    coefficient: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.total_steps = config.bonus, config.steps
        self.register_buffer("coefficient", torch.tensor(config.bonus.coefficient))

    def set_progress(self, steps: int) -> None:
        """Move β to where it is after `steps` environment steps of the run."""
        decay, left = self.config.decay, max(0.0, 1 - steps / self.total_steps)
        if decay != "none":
            factor = left if decay == "linear" else (1 - BONUS_DECAY) ** steps
            self.coefficient.fill_(self.config.coefficient * factor)
