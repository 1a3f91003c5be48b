"""Critics on successor features: ψ(s, a, w), the discounted sum of a vector of cumulants φ, and Q = ψ·w.

With discrete actions ψ itself can be learned from vector rewards (`Method.reward_dim`), by component:
ψ(s, a, w) → Σ γ^i φ_i + γⁿ ψ⁻(s', a*, w) with a* = argmax ψ(s', a, w)·w. The Huber losses of the components
are added, not averaged as in VISR's notebook: an error along w then costs as much as the same error of a
scalar Q. ψ(s, a, w_i) is what the policy of another skill w_i collects, and ψ(s, a, w_i)·w what that is worth
to w: generalized policy improvement (Barreto et al. 2017) acts by the maximum over several w_i. Where ψ is
trained by the error of the scalar ψ·w, only its component along w means anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.config import LearnerConfig
from voidrl.kernels.fusion import fusable
from voidrl.nets.heads import DuelingQ, TrunkQ, TwinQ
from voidrl.nets.layers import scale_gradient
from voidrl.nets.observations import action_mask
from voidrl.types import Batch, EnvSpec, Metrics

if TYPE_CHECKING:
    from voidrl.learners.dqn import DQN


class _Product(nn.Module):
    """ψ(s, a, w)·w of the critic that it is derived with."""

    has_offset = False

    def rescale_output(self, scale: Tensor, shift: Tensor) -> None:
        """Replace ψ, and so all Q, by its multiple; a shift of ψ·w would depend on w."""
        super().rescale_output(scale, torch.zeros_like(shift))  # type: ignore[misc]


class _TwinProduct(_Product):
    """ψ(s, a, w)·w of twin critics."""

    def forward(self, features: Tensor, skill: Tensor, action: Tensor) -> Tensor:
        """(B, F), (B, S), (B, A) → (2, B)."""
        psi: Tensor = super().forward(features, skill, action)  # type: ignore[misc]
        return (psi * skill).sum(-1)


class SuccessorTwinQ(_TwinProduct, TwinQ):
    """Successor critics without a trunk."""


class SuccessorTrunkQ(_TwinProduct, TrunkQ):
    """Successor critics behind a trunk."""


class SuccessorCritic(nn.Module):
    """A critic of discrete actions on successor features, which learns from vector rewards by itself.

    Derive a critic of your own from it and write `successor`.
    """

    has_offset = False

    def successor(self, features: Tensor, skill: Tensor) -> Tensor:
        """(B, F), (B, S) → ψ, (B, A, S)."""
        raise NotImplementedError

    def forward(self, features: Tensor, skill: Tensor) -> Tensor:
        """(B, F), (B, S) → Q = ψ·skill, (B, A)."""
        return (self.successor(features, skill) * skill[:, None]).sum(-1)

    def invalidate_gpi(self) -> None:
        """Called where scalar rewards train ψ·w, so that ψ stops meaning anything for other skills."""

    def td_loss(self, learner: DQN, batch: Batch, reward: Tensor) -> tuple[Tensor, Metrics, Tensor]:
        """The loss of the learner that has this critic: by component for (B, S) rewards, as Q's for (B,)."""
        if reward.ndim > 1:
            return self.successor_loss(learner, batch, reward)
        for critic in (self, learner.target_critic):
            critic.invalidate_gpi()  # type: ignore[operator]
        return learner.critic_loss(batch, reward)

    @torch.no_grad()
    def successor_target(self, learner: DQN, batch: Batch, reward: Tensor) -> Tensor:
        """(B, S): φ + γⁿ ψ(s', a', w), a' the best action for w."""
        features = learner.target_encoder(batch.next_obs)
        psi: Tensor = learner.target_critic.successor(features, batch.skill)  # type: ignore[operator]
        if learner.config.double:
            q = self(learner.features(batch.next_obs), batch.skill)
        else:
            q = (psi * batch.skill[:, None]).sum(-1)
        best = learner.greedy(q, action_mask(batch.next_obs, learner.spec))
        target = reward + batch.discount[:, None] * learner.chosen(psi, best)
        return learner.average_views(learner.bounds.clamp(target))

    @fusable
    def successor_loss(self, learner: DQN, batch: Batch, reward: Tensor) -> tuple[Tensor, Metrics, Tensor]:
        """Huber losses of all components, added; also the error of each transition's ψ·w."""
        target = self.successor_target(learner, batch, reward)
        features = scale_gradient(learner.features(batch.obs), learner.config.head_gradient_scale)
        psi = learner.chosen(self.successor(features, batch.skill), batch.action)  # (B, S)
        loss = (batch.weight * F.smooth_l1_loss(psi, target, reduction="none").sum(-1)).mean()
        q = (psi.detach() * batch.skill).sum(-1)
        q_target = (target * batch.skill).sum(-1)
        metrics = {"critic_loss": loss.detach(), "q_mean": q.mean(), "q_target": q_target.mean()}
        return loss, metrics, (q - q_target).abs()


class SuccessorDuelingQ(SuccessorCritic, _Product, DuelingQ):
    """ψ(s, a, w) of all discrete actions, and ψ·skill; the dueling streams are vectors.

    The network reads the first `condition_dim` numbers of the skill, w. Those behind them only weigh further
    components of ψ.

    Args:
        features: Width of the features; the next four are those of `DuelingQ`.
        skill_dim: Width of skills, and of ψ.
        condition_dim: Width of w; None for whole skills.
        gpi_skills: Number of other w, fixed unit vectors, whose policies `acting_values` considers.
        layers: `noisy_sigma` and `shared_hidden` of `DuelingQ`.
    """

    def __init__(
        self,
        features: int,
        num_actions: int,
        hidden_dim: int,
        hidden_layers: int,
        dueling: bool = False,
        *,
        skill_dim: int,
        condition_dim: int | None = None,
        gpi_skills: int = 0,
        **layers: Any,
    ) -> None:
        condition = skill_dim if condition_dim is None else condition_dim
        sizes = (features + condition, num_actions, hidden_dim, hidden_layers)
        super().__init__(*sizes, dueling, outputs=skill_dim, **layers)
        self.condition_dim, self.gpi_skills = condition, gpi_skills
        if gpi_skills:
            # Fixed, so that a policy without noise is a function of state and skill, also after a resume.
            self.gpi_directions = nn.Buffer(F.normalize(torch.randn(gpi_skills, condition), dim=1))
            self.gpi_valid = nn.Buffer(torch.ones((), dtype=torch.bool))

    def successor(self, features: Tensor, skill: Tensor) -> Tensor:
        """(B, F), (B, S) → ψ, (B, A, S)."""
        return DuelingQ.forward(self, features, skill[:, : self.condition_dim])

    def acting_values(self, features: Tensor, skill: Tensor) -> Tensor:
        """(B, F), (B, S) → (B, A): the maximum of ψ(s, a, w_i)·skill over the skill's own w and the others.

        Only the own w once ψ has been trained by scalar rewards (`invalidate_gpi`).
        """
        if not self.gpi_skills:
            return self.forward(features, skill)
        batch, count = skill.shape[0], 1 + self.gpi_skills
        others = self.gpi_directions[:, None].expand(-1, batch, -1)
        conditions = torch.cat([skill[None, :, : self.condition_dim], others])  # (1 + n, B, dim)
        states = features.expand(count, -1, -1).flatten(0, 1)
        psi = DuelingQ.forward(self, states, conditions.flatten(0, 1)).unflatten(0, (count, batch))
        values = (psi * skill[:, None]).sum(-1)  # (1 + n, B, A)
        best: Tensor = values[1:].masked_fill(~self.gpi_valid, -torch.inf).amax(0)
        return torch.maximum(values[0], best)

    def invalidate_gpi(self) -> None:
        """Stop comparing policies: scalar rewards train ψ·w of one w, and the other values become stale."""
        if self.gpi_skills:
            self.gpi_valid.zero_()


def successor_critic(
    spec: EnvSpec,
    config: LearnerConfig,
    feature_dim: int,
    skill_dim: int,
    condition_dim: int | None = None,
    *,
    gpi_skills: int = 0,
) -> nn.Module:
    """The critic for `Method.make_critic`, with the widths and layers of the learner's own.

    All actions' where they are discrete; else twin critics, behind the learner's trunk if it has one, which
    read whole skills. Arguments are those of `SuccessorDuelingQ`.
    """
    heads = (config.hidden_dim, config.hidden_layers)
    if spec.discrete:
        of_learner = ("dueling", "noisy_sigma", "shared_hidden")
        options: dict[str, Any] = {
            name: getattr(config, name) for name in of_learner if hasattr(config, name)
        }
        options |= {"skill_dim": skill_dim, "condition_dim": condition_dim, "gpi_skills": gpi_skills}
        return SuccessorDuelingQ(feature_dim, spec.num_actions, *heads, **options)  # type: ignore[misc]
    inputs = feature_dim + skill_dim
    if width := getattr(config, "trunk_dim", 0):
        return SuccessorTrunkQ(
            inputs, spec.action_dim, width, *heads, skill_dim, action_first=not spec.pixels
        )
    return SuccessorTwinQ(inputs + spec.action_dim, *heads, skill_dim)
