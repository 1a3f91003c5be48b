"""The values that hold in a run: `finetune.*` over the rest of the config, decided once for its phase."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from voidrl.config.schema import Config, FinetuneConfig

Reward = Literal["intrinsic", "task", "both"]
Adaptation = Literal["none", "heads", "full"]
NEW_HEADS = ("random", "first_layer")  # of `finetune.heads`: those that leave the policy untrained


@dataclass(frozen=True)
class Effective:
    """The values of one phase. Other code reads these fields; `config.phase` is only for printing."""

    adapts: bool
    """Whether the run begins with a pre-trained agent, whose skills a task chooses from, and which adapts to
    the scale of the task's reward."""
    tuning: FinetuneConfig
    """`finetune.*` of a run that fine-tunes or pre-trains for it; from scratch, where none of it holds, the
    defaults."""
    reward: Reward
    """The reward that the learner maximizes; `both` adds the intrinsic one to the task's as a bonus."""
    warmup_steps: int
    """Environment steps before the first update."""
    warmup_is_random: bool
    """Whether actions are uniformly random until then, rather than the policy's."""
    explorer_warms_up: bool
    """Whether the warm-up is by the pre-trained policy while the agent's own heads are new."""
    adaptation: Adaptation
    """After the warm-up: `heads` decides which heads are kept; `full` also moves rewards, values and
    exploration to the task's scale."""
    noise: Literal["restart", "end", "auto"]
    """Exploration noise: from the start of its schedule, or at its end; `auto` ends it unless adaptation
    replaces the policy."""
    updates_per_step: Fraction
    planned_updates: int
    """Updates on samples of the replay in the whole run; on-policy, those of the representation."""
    learning_rate: float
    """The learner's learning rate."""
    encoder_learning_rate: float | None
    """Learning rate of the learner's encoder, if it has one of its own; 0 freezes it."""
    first_layer_learning_rate: float | None
    """Learning rate of the heads' first layer, if it has one of its own; 0 freezes it."""

    @property
    def learning_rate_field(self) -> str:
        """The field that sets the learner's learning rate."""
        return f"{'finetune' if self.adapts else 'learner'}.learning_rate"

    @property
    def pretrains(self) -> bool:
        """Whether the intrinsic reward is all there is, and the task's is not learned."""
        return self.reward == "intrinsic"

    @property
    def uses_method(self) -> bool:
        """Whether the method rewards and learns: in pre-training, and as a bonus."""
        return self.reward != "task"

    @property
    def has_bonus(self) -> bool:
        """Whether the method's reward is added to the task's."""
        return self.reward == "both"

    @property
    def samples_skills(self) -> bool:
        """Whether every episode draws its skills to the end of training; otherwise a task chooses one."""
        return self.uses_method and not self.adapts

    @property
    def waits_for_reward(self) -> bool:
        """Whether adaptation to the task waits until rewards differ."""
        return self.adaptation == "full" and not self.has_bonus

    @property
    def encoder_is_frozen(self) -> bool:
        """Whether the learner's encoder stays as it was pre-trained."""
        return self.encoder_learning_rate == 0

    @property
    def epsilon_hold_steps(self) -> int:
        """Steps for which exploration that decays with a task is held: the warm-up, none in pre-training."""
        return 0 if self.pretrains else self.warmup_steps


def resolve(config: Config) -> Effective:
    """Decide for a config what its phase means."""
    adapts, tuning, on_policy = config.phase == "finetune", config.finetune, config.learner.on_policy
    by_chance = not adapts or tuning.warmup_actions == "random"
    restarts = not adapts or (tuning.noise == "auto" and tuning.heads in NEW_HEADS)
    warmup_steps = tuning.warmup_steps if adapts else config.warmup_steps
    per_step = (adapts and tuning.updates_per_step) or config.updates_per_step
    exact_per_step = Fraction(str(per_step))  # 100 · 0.29 is 29, not 28.99…
    reward: Reward = "both" if config.bonus.coefficient > 0 else "task"
    adaptation: Adaptation = "full" if tuning.adapt else "heads"
    return Effective(
        adapts=adapts,
        tuning=tuning if config.phase != "train" else type(tuning)(),
        reward="intrinsic" if config.phase == "pretrain" else reward,
        warmup_steps=warmup_steps,
        warmup_is_random=by_chance and not on_policy,
        explorer_warms_up=not by_chance and tuning.heads in NEW_HEADS and not on_policy,
        adaptation="none" if not adapts or on_policy else adaptation,
        noise="restart" if restarts else tuning.noise,
        updates_per_step=exact_per_step,
        planned_updates=max(0, int((config.steps - warmup_steps) * exact_per_step)),
        learning_rate=(adapts and tuning.learning_rate) or config.learner.learning_rate,
        encoder_learning_rate=tuning.encoder_learning_rate if adapts else None,
        first_layer_learning_rate=tuning.first_layer_learning_rate if adapts else None,
    )
