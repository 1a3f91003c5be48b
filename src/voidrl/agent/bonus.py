"""The weight of an intrinsic reward that is added to the task's (`bonus.*`)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from voidrl.config import Config

DECAY_RATE = 1e-5  # of a geometric β (RE3)


class Bonus(nn.Module):
    """β_t, in a buffer that captured graphs read."""

    coefficient: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.total_steps = config.bonus, config.steps
        self.register_buffer("coefficient", torch.tensor(config.bonus.coefficient))

    def value(self, steps: int) -> float:
        """β after `steps` environment steps of the run."""
        config = self.config
        if config.decay == "geometric":
            return float(config.coefficient * (1 - DECAY_RATE) ** steps)
        if config.decay == "linear":
            return config.coefficient * max(0.0, 1 - steps / self.total_steps)
        return config.coefficient

    def set_progress(self, steps: int) -> None:
        """Move β to where it is after `steps` environment steps of the run."""
        if self.config.decay != "none":
            self.coefficient.fill_(self.value(steps))
