"""The values that hold in a run: `finetune.*` over the rest of the config, decided once for its phase."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from voidrl.config.schema import Config


@dataclass(frozen=True)
class Effective:
    """The values of one phase. Other code reads these fields; `config.phase` is only for printing."""

    learns_task: bool
    """Whether the learner maximizes the task's reward; in pre-training it has the intrinsic one only."""
    adapts: bool
    """Whether the run begins with a pre-trained agent."""
    may_adapt: bool
    """Whether this run fine-tunes an agent, or pre-trains one for fine-tuning."""
    has_bonus: bool
    """Whether the method's reward is added to the task's."""
    steps: int
    warmup_steps: int
    """Environment steps before the first update."""
    warmup_is_random: bool
    """Whether actions are uniformly random until then, rather than the policy's."""
    updates_per_step: Fraction
    learning_rate: float
    """The learner's learning rate."""
    learning_rate_field: str
    """The field that sets it."""
    encoder_learning_rate: float | None
    """Learning rate of the learner's encoder, if it has one of its own; 0 freezes it."""
    first_layer_learning_rate: float | None
    """Learning rate of the heads' first layer, if it has one of its own; 0 freezes it."""
    """The frozen pre-trained encoder alongside a new one."""

    @property
    def uses_method(self) -> bool:
        """Whether the method rewards and learns: in pre-training, and as a bonus."""
        return not self.learns_task or self.has_bonus

    @property
    def pretrains(self) -> bool:
        """Whether the intrinsic reward is all there is."""
        return not self.learns_task

    @property
    def encoder_is_frozen(self) -> bool:
        """Whether the learner's encoder stays as it was pre-trained."""
        return self.encoder_learning_rate == 0

    @property
    def epsilon_hold_steps(self) -> int:
        """Steps for which exploration that decays with a task is held: the warm-up, none in pre-training."""
        return self.warmup_steps if self.learns_task else 0

    @property
    def planned_updates(self) -> int:
        """Updates on samples of the replay in the whole run; on-policy, those of the representation."""
        return max(0, int((self.steps - self.warmup_steps) * self.updates_per_step))


def resolve(config: Config) -> Effective:
    """Decide for a config what its phase means."""
    adapts, learns_task, tuning = config.phase == "finetune", config.phase != "pretrain", config.finetune
    by_chance = not adapts or tuning.warmup_actions == "random"
    per_step = (adapts and tuning.updates_per_step) or config.updates_per_step
    return Effective(
        learns_task=learns_task,
        adapts=adapts,
        may_adapt=config.phase != "train",
        has_bonus=learns_task and config.bonus.coefficient > 0,
        steps=config.steps,
        warmup_steps=tuning.warmup_steps if adapts else config.warmup_steps,
        warmup_is_random=by_chance and not config.learner.on_policy,
        updates_per_step=Fraction(str(per_step)),  # 100 · 0.29 is 29, not 28.99…
        learning_rate=(adapts and tuning.learning_rate) or config.learner.learning_rate,
        learning_rate_field=f"{'finetune' if adapts else 'learner'}.learning_rate",
        encoder_learning_rate=tuning.encoder_learning_rate if adapts else None,
        first_layer_learning_rate=tuning.first_layer_learning_rate if adapts else None,
    )
