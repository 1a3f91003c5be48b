"""VIC: options that can be inferred from where they begin and where they end (Gregor et al. 2016).

An option w is drawn uniformly from K, and the policy follows it for `skill_every_steps` steps or until the
episode ends. A classifier q(w | s₀, s_f) infers it from the first and the last state. Only the last step is
rewarded, all others earn 0:

    r = log q(w | s₀, s_f) − log p(w | s₀),   p(w | s₀) = 1/K

So an option may pass through the same states as others as long as it ends elsewhere; a reward at every step
would be DIAYN's. The mean reward at the ends is a lower bound on the information I(w; s_f | s₀), at most
log K. In fine-tuning the warm-up tries every option with the policy and keeps the best.

q is trained on whole options: each sampled transition stands for the option it belongs to, weighted by one
over its length, so that every option that is over and stored counts the same.

Differences from the paper: p is uniform and fixed, where the paper also learns it; an option lasts a fixed
number of steps, where the paper's may end itself by an action; learning is off-policy from a replay, with the
learner's values bootstrapped across the end of an option that does not end the episode, as if it went on; the
policy sees neither s₀ nor how much time is left. On Atari a lost life ends an option too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from voidrl import dist
from voidrl.config import Size
from voidrl.config.checks import Limit
from voidrl.kernels.fusion import fusable
from voidrl.methods._skills import DiscreteSkillConfig, DiscreteSkillMethod
from voidrl.methods.base import About, Latents, Option
from voidrl.nets import join, mlp, top1_hits
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss

LENGTHS = "1 or more, for whole episodes their greatest length"


@dataclass(frozen=True)
class VICConfig(DiscreteSkillConfig):
    """r = log q(w | s₀, s_f) + log K at the end of an option, 0 before."""

    skill_every_steps: Annotated[int, Limit(lambda steps: steps >= 1, LENGTHS)] = 50
    """Environment steps of an option, unless its episode ends before. For one option per episode, the most
    steps that an episode can take."""
    hidden_dim: Size = 256
    """Width of the classifier's two hidden layers."""


class VIC(DiscreteSkillMethod):
    """Rewards final states from which the option can be inferred."""

    Config = VICConfig
    config: VICConfig
    about = About("competence", 2016, "Gregor et al., arXiv:1611.07507", skills="discrete")
    image_representation = "learner"
    can_train_encoder = True

    def __init__(self, spec: EnvSpec, config: VICConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        hidden = config.hidden_dim
        self.classifier = mlp([2 * representation.dim, hidden, hidden, config.num_skills])

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """Cross-entropy of the classifier on the options that transitions belong to."""
        option = latents.option(self.config.skill_every_steps)
        loss, accuracy = self.classify(option, batch.skill)
        information = math.log(self.skill_dim) - loss.detach()
        metrics = {"vic_loss": loss.detach(), "vic_accuracy": accuracy, "vic_information": information}
        yield Loss("method", loss, {**metrics, "vic_options": option.mask.mean()})

    @fusable
    def classify(self, option: Option, skill: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and accuracy over the options of B transitions and their (B, K) one-hot skills."""
        logits, label = self.logits(option), skill.argmax(1)
        weight = option.mask / option.steps  # a transition of a long option is drawn more often
        # On several ranks the mean of their losses is the sum over the options of all of them.
        weight = weight / dist.average(weight.sum()).clamp(min=1e-8)
        loss = (weight * F.cross_entropy(logits, label, reduction="none")).sum()
        right = logits.gather(1, label[:, None]).squeeze(1)
        return loss, (weight * top1_hits(logits, right)).sum()

    def logits(self, option: Option) -> Tensor:
        """The classifier's logits for q(w | s₀, s_f), (B, K)."""
        return self.classifier(join(option.first, option.last)).float()  # type: ignore[no-any-return]

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """Log-probability of the option relative to chance, where the step ends it."""
        option = latents.option(self.config.skill_every_steps)
        log_q = (self.logits(option).log_softmax(1) * batch.skill).sum(1)  # (B,)
        return batch.ended * option.mask * (log_q + math.log(self.skill_dim))
