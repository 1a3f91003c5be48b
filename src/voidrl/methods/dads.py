"""DADS: skills whose steps can be predicted, and told apart by them (Sharma et al. 2020).

The skill dynamics q(Δz | z, w) predict how a skill w changes the state: a mixture of Gaussians with a fixed
deviation on the standardized change Δz = f(s') − f(s), trained by maximum likelihood. The reward estimates
the mutual information between the skill and the next state, given the state:

    r = log(L + 1) − log(1 + Σ_{i ≤ L} q(Δz | z, w_i) / q(Δz | z, w)),  w_i drawn from p(w)

It is at most log(L + 1), whatever is learned. Skills are points of the box [−1, 1]^d, or one-hot; then the
w_i are the K − 1 other skills, each once, and r is at most log K.

Differences from the paper and its code:
- the policy does not plan over skills while it acts. For a task one skill is chosen, the one that earned
  most in the warm-up of fine-tuning. The paper plans by MPPI with a reward function that it knows;
- running moments standardize z and Δz instead of BatchNorm, whose output depends on the batch;
- the replay holds transitions of older policies, whose importance ratios the code clips to [0.1, 10]; here
  all of them count 1;
- q models all of z. The published runs with Ant model x and y alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from voidrl.config import Size
from voidrl.entropy import RunningMoments
from voidrl.kernels.fusion import fusable
from voidrl.methods._skills import DiscreteSkillMethod, EitherSkillConfig
from voidrl.methods.base import About, Latents
from voidrl.nets import TF32Linear, init_orthogonal, join, mlp
from voidrl.nets.spectral import full_precision
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss

CLIP = 5.0  # standard deviations; bounds the likelihood of a coordinate that had been constant
MOMENTUM = 0.99  # of the moments of z and Δz, since f changes
MAX_ROWS = 2**15  # rows of (z, w_i) that pass through q at once
LOG_2PI = math.log(2 * math.pi)
EXPERTS = 4  # Gaussians in the mixture, whose standard deviation is that of Δz, as in the authors' code
MAX_DIM = 64  # dimensions that q models: a wider z is projected to as many by a fixed random matrix
TRIALS = 16  # continuous skills that fine-tuning tries, evenly spread over the box


@dataclass(frozen=True)
class DADSConfig(EitherSkillConfig):
    """r = log(L + 1) − log(1 + Σ q(Δz | z, w_i) / q(Δz | z, w))."""

    learning_rate: float = 3e-4
    """Learning rate of q."""
    samples: Size = 100
    """L, the continuous skills drawn for each transition; discrete ones are all compared."""
    hidden_dim: Size = 512
    """Width of the two hidden layers of q."""


class SkillDynamics(nn.Module):
    """q(δ | x, w): a mixture of Gaussians of deviation 1, with means and weights predicted from x and w."""

    def __init__(self, dim: int, skill_dim: int, hidden: int) -> None:
        super().__init__()
        # Not bf16, whose rounding would be a difference between skills.
        self.trunk = nn.Sequential(*mlp([dim + skill_dim, hidden, hidden], layer=TF32Linear), nn.ReLU())
        self.weights = TF32Linear(hidden, EXPERTS)
        self.means = TF32Linear(hidden, EXPERTS * dim)
        for head in (self.weights, self.means):
            head.apply(init_orthogonal)

    def forward(self, x: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """(B, d), (B, S) → log-weights (B, M) and means (B, M, d)."""
        h = self.trunk(join(x, skill))
        return self.weights(h).log_softmax(1), self.means(h).unflatten(1, (EXPERTS, -1))

    def log_prob(self, x: Tensor, skill: Tensor, change: Tensor) -> Tensor:
        """The log-likelihood of the changes, (B,)."""
        log_weight, mean = self(x, skill)
        error = (change[:, None] - mean).square().sum(2)  # (B, M)
        return (log_weight - error / 2).logsumexp(1) - change.shape[1] * LOG_2PI / 2  # type: ignore[no-any-return]

    def expected(self, x: Tensor, skill: Tensor) -> Tensor:
        """The mean change, (B, d)."""
        log_weight, mean = self(x, skill)
        return (log_weight.exp()[:, :, None] * mean).sum(1)  # type: ignore[no-any-return]


class DADS(DiscreteSkillMethod):
    """Rewards changes of the state that the skill predicts and other skills do not."""

    Config = DADSConfig
    config: DADSConfig
    about = About("competence", 2020, "Sharma et al., arXiv:1907.01657", skills="both")

    def __init__(self, spec: EnvSpec, config: DADSConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        width, dim = representation.dim, min(representation.dim, MAX_DIM)
        self.projection = nn.Buffer(nn.init.orthogonal_(torch.empty(width, dim))) if width > dim else None
        self.dynamics = SkillDynamics(dim, self.skill_dim, config.hidden_dim)
        self.states = RunningMoments((dim,), floor=1e-6, momentum=MOMENTUM)
        self.changes = RunningMoments((dim,), floor=1e-6, momentum=MOMENTUM)

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """The negative log-likelihood of the changes."""
        x, x_next = self._project(latents.z), self._project(latents.z_next)
        self.states.update(x)
        self.changes.update(x_next - x)
        loss, error = self.likelihood(x, x_next, batch.skill)
        yield Loss("method", loss, {"dads_loss": loss.detach(), "dads_error": error})

    @fusable
    def likelihood(self, x: Tensor, x_next: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """−log q, and the squared error of the mean of q: 1 where it knows only the mean change."""
        x, change = self._standardize(x, x_next)
        with torch.no_grad():
            error = (self.dynamics.expected(x, skill) - change).square().mean()
        return -self.dynamics.log_prob(x, skill, change).mean(), error

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """How much more likely the change is with the skill than with others."""
        x, change = self._standardize(self._project(latents.z), self._project(latents.z_next))
        if self.config.discrete_skills:
            others = torch.eye(self.skill_dim, device=x.device).expand(len(x), -1, -1)  # the skill among them
        else:
            drawn = torch.rand(len(x), self.config.samples, self.skill_dim, device=x.device) * 2 - 1
            others = torch.cat([batch.skill[:, None], drawn], 1)
        return self.information(x, change, batch.skill, others)

    def information(self, x: Tensor, change: Tensor, skill: Tensor, skills: Tensor) -> Tensor:
        """The reward, log n − log Σ_i q(δ | x, w_i) / q(δ | x, w), (B,).

        The skills w_i, (B, n, S), are w and those to compare it with.
        """
        n = skills.shape[1]
        log_q = self.dynamics.log_prob(x, skill, change)  # (B,)
        groups = skills.split(max(1, MAX_ROWS // len(x)), 1)
        others = torch.cat([self.log_probs(x, change, group) for group in groups], 1)  # (B, n)
        # Its own ratio is 1, but for rounding: r never exceeds log n.
        total = others.logsumexp(1)
        return math.log(n) - (total - log_q).clamp(min=0)

    @fusable
    def log_probs(self, x: Tensor, change: Tensor, skills: Tensor) -> Tensor:
        """The log-likelihood of the changes with each of (B, n, S) skills, (B, n)."""
        n = skills.shape[1]
        x, change = (t[:, None].expand(-1, n, -1).flatten(0, 1) for t in (x, change))  # (B · n, d)
        log_q = self.dynamics.log_prob(x, skills.flatten(0, 1), change)
        return log_q.unflatten(0, (-1, n))  # type: ignore[no-any-return]

    def _project(self, z: Tensor) -> Tensor:
        with full_precision(z):
            return z.float() if self.projection is None else z.float() @ self.projection

    def _standardize(self, x: Tensor, x_next: Tensor) -> tuple[Tensor, Tensor]:
        """State and change in standard deviations, (B, d) each."""
        change = self.changes.standardize(x_next - x).clamp(-CLIP, CLIP)
        return self.states.standardize(x).clamp(-CLIP, CLIP), change

    # Skills

    def sample_skill(self, episode_steps: Tensor) -> Tensor:
        """Uniform in the box, or one-hot."""
        if self.config.discrete_skills:
            return super().sample_skill(episode_steps)
        return torch.rand(len(episode_steps), self.skill_dim, device=episode_steps.device) * 2 - 1

    def trial_skills(self) -> Tensor:
        """All K one-hot skills, or points spread evenly over the box, always the same."""
        if self.config.discrete_skills:
            return torch.eye(self.skill_dim)
        spread: Tensor = SobolEngine(self.skill_dim).fast_forward(1).draw(TRIALS)  # without the corner 0
        return spread * 2 - 1
