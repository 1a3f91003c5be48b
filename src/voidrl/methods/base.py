"""The contract of a method: it sees tensors and says what each transition is worth.

A new method is one new file in this folder, or a class of your own passed as `method=`. Only `reward` must be
written. Skill methods set `skill_dim` and get a vector drawn per episode, stored with every transition and
seen by the policy; methods on successor features also bring their own critic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from voidrl.config import LearnerConfig, MethodConfig
from voidrl.types import Batch, EnvSpec, Metrics


class Latents:
    """f(s) and f(s') of a batch, without gradients, encoded when first asked for."""

    def __init__(
        self, z: Callable[[], Tensor], z_next: Callable[[], Tensor], pool: Callable[[int], Tensor]
    ) -> None:
        self._z, self._z_next, self.pool = z, z_next, pool
        # `pool(n)`: (n, dim), f of n more states drawn from the replay

    @cached_property
    def z(self) -> Tensor:
        """f(s), (B, dim)."""
        return self._z()

    @cached_property
    def z_next(self) -> Tensor:
        """f(s'), (B, dim)."""
        return self._z_next()


class Method(nn.Module):
    """What is rewarded while pre-training. Never sees environment, replay, optimizers or loop."""

    Config: ClassVar[type[MethodConfig]] = MethodConfig
    learns: ClassVar[bool] = True
    """False: the agent acts uniformly at random and nothing is trained."""
    reads_latents: ClassVar[bool] = True
    """False: a representation that only the method would read is not trained."""
    skill_dim: int = 0
    """Width of the skill vector; 0 for methods without skills."""

    def __init__(self, spec: EnvSpec, config: MethodConfig, z_dim: int) -> None:
        super().__init__()
        self.spec, self.config, self.z_dim = spec, config, z_dim

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The intrinsic reward of each transition, (B,). Called without gradients.

        Once per update, or with n-step returns once for each of the n steps of every transition.
        """
        raise NotImplementedError

    def loss(self, batch: Batch, latents: Latents) -> tuple[Tensor, Metrics] | None:
        """What trains the method's own networks, if it has any; called once per update, before `reward`.

        The transitions are single steps also where the learner's are n-step, except for
        `intrinsic_n_step = "single"`. `latents` have no gradients: f is trained by the representation.
        """
        return None

    def after_step(self) -> None:
        """In-place changes after an update (queues, moving averages); may be captured in a CUDA graph."""

    def metrics(self) -> Metrics:
        """Scalars about the method's state, logged with every update."""
        return {}

    # Skills

    def sample_skill(self, n: int, device: torch.device) -> Tensor:
        """(n, skill_dim): one skill for each of n new episodes."""
        return torch.zeros(n, self.skill_dim, device=device)

    def select_skill(self, batch: Batch, latents: Latents) -> Tensor:
        """(skill_dim,): the skill with which a task is begun, given transitions with the task's reward.

        Called once, when the warm-up of fine-tuning is over. By default the skill whose transitions were
        rewarded best on average.
        """
        skills, inverse = torch.unique(batch.skill, dim=0, return_inverse=True)
        total = torch.zeros(len(skills), device=batch.reward.device).index_add_(0, inverse, batch.reward)
        best: Tensor = skills[(total / inverse.bincount(minlength=len(skills))).argmax()]
        return best

    def make_critic(self, feature_dim: int, config: LearnerConfig) -> nn.Module | None:
        """A critic of the method's own in place of the learner's, for instance on successor features.

        `critic(features, skill, action) -> (2, B)` for continuous actions,
        `critic(features, skill) -> (B, num_actions)` for discrete ones.
        """
        return None
