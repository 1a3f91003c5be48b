"""DADS: skills whose steps can be predicted, and told apart by them (Sharma et al. 2020).

The skill dynamics q(Δz | z, w) predict how a skill w changes the state: a mixture of Gaussians with a fixed
deviation on the standardized change Δz = f(s') − f(s), trained by maximum likelihood. The reward estimates
the mutual information between the skill and the next state, given the state:

    r = log(L + 1) − log(1 + Σ_{i ≤ L} q(Δz | z, w_i) / q(Δz | z, w)),  w_i drawn from p(w)

It is at most log(L + 1), whatever is learned. Skills are points of the box [−1, 1]^d, or one-hot; then the
w_i are the K − 1 other skills, each once, and r is at most log K.

Differences from the paper and its code:
- the policy does not plan over skills while it acts. For a task one skill is chosen in the warm-up of
  fine-tuning: the one that earned most, or the one that does in rollouts through q, scored by a small network
  that is fitted to the rewards of the warm-up (`selection = "dynamics"`). The paper plans by MPPI with a
  reward function that it knows;
- running moments standardize z and Δz instead of BatchNorm, whose output depends on the batch;
- the replay holds transitions of older policies, whose importance ratios the code clips to [0.1, 10]; here
  all of them count 1;
- q models all of z. The published runs with Ant model x and y alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from voidrl.config import MAX_SKILLS, SkillConfig, require, require_positive, require_skills
from voidrl.entropy import RunningMoments
from voidrl.kernels.fusion import fusable
from voidrl.methods.base import About, Latents, Method, one_hot_skills
from voidrl.nets import TF32Linear, init_orthogonal, join, mlp
from voidrl.nets.spectral import full_precision
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss

CLIP = 5.0  # standard deviations; bounds the likelihood of a coordinate that had been constant
MOMENTUM = 0.99  # of the moments of z and Δz, since f changes
MAX_ROWS = 2**15  # rows of (z, w_i) that pass through q at once
LOG_2PI = math.log(2 * math.pi)
# Of the selection through q:
CANDIDATES = 256  # points of the box
START_STATES = 64
FIT_UPDATES, FIT_BATCH, FIT_HIDDEN = 300, 256, 64


@dataclass(frozen=True)
class DADSConfig(SkillConfig):
    """r = log(L + 1) − log(1 + Σ q(Δz | z, w_i) / q(Δz | z, w))."""

    learning_rate: float = 3e-4
    """Learning rate of q."""
    skills: Literal["continuous", "discrete"] = "continuous"
    """Points of the box [−1, 1]^d, or one-hot vectors."""
    skill_dim: int = 2
    """d, the width of continuous skills."""
    num_skills: int = 16
    """K, the number of discrete skills."""
    samples: int = 100
    """L, the continuous skills drawn for each transition; discrete ones are all compared."""
    num_experts: int = 4
    """Gaussians in the mixture."""
    std: float = 1.0
    """Their standard deviation, relative to that of Δz."""
    hidden_dim: int = 512
    """Width of the two hidden layers of q."""
    rep_dim: int = 64
    """Most dimensions that q models: a wider z is projected to as many by a fixed random matrix."""
    selection: Literal["trials", "dynamics"] = "trials"
    """How fine-tuning chooses a skill: by what was earned with it, or by rollouts through q."""
    trials: int = 16
    """Continuous skills that fine-tuning tries, evenly spread over the box; discrete ones are all tried."""
    horizon: int = 10
    """Steps of a rollout with `selection = "dynamics"`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.skills == "discrete":
            require_skills("num_skills", self.num_skills)
        expected = f"1 to {MAX_SKILLS}, the width of the skills; apt and rnd do without skills"
        require(1 <= self.skill_dim <= MAX_SKILLS, "skill_dim", self.skill_dim, expected)
        require(1 <= self.trials <= MAX_SKILLS, "trials", self.trials, f"1 to {MAX_SKILLS}")
        require_positive(self, "samples", "num_experts", "std", "hidden_dim", "rep_dim", "horizon")


class SkillDynamics(nn.Module):
    """q(δ | x, w): a mixture of Gaussians with a fixed deviation, of which x and w say means and weights."""

    def __init__(self, dim: int, skill_dim: int, config: DADSConfig) -> None:
        super().__init__()
        hidden = config.hidden_dim
        self.std, self.experts = config.std, config.num_experts
        # Not bf16, whose rounding would be a difference between skills.
        self.trunk = nn.Sequential(*mlp([dim + skill_dim, hidden, hidden], layer=TF32Linear), nn.ReLU())
        self.weights = TF32Linear(hidden, self.experts)
        self.means = TF32Linear(hidden, self.experts * dim)
        for head in (self.weights, self.means):
            head.apply(init_orthogonal)

    def forward(self, x: Tensor, skill: Tensor) -> tuple[Tensor, Tensor]:
        """(B, d), (B, S) → log-weights (B, M) and means (B, M, d)."""
        h = self.trunk(join(x, skill))
        return self.weights(h).log_softmax(1), self.means(h).unflatten(1, (self.experts, -1))

    def log_prob(self, x: Tensor, skill: Tensor, change: Tensor) -> Tensor:
        """The log-likelihood of the changes, (B,)."""
        log_weight, mean = self(x, skill)
        error = (change[:, None] - mean).square().sum(2)  # (B, M)
        scale = change.shape[1] * (math.log(self.std) + LOG_2PI / 2)
        log_q: Tensor = (log_weight - error / (2 * self.std**2)).logsumexp(1) - scale
        return log_q

    def expected(self, x: Tensor, skill: Tensor) -> Tensor:
        """The mean change, (B, d)."""
        log_weight, mean = self(x, skill)
        change: Tensor = (log_weight.exp()[:, :, None] * mean).sum(1)
        return change


class DADS(Method):
    """Rewards changes of the state that the skill predicts and other skills do not."""

    Config = DADSConfig
    about = About(
        family="competence",
        year=2020,
        reward="change of state that is likely with the skill and unlikely with others",
        paper="Sharma et al., arXiv:1907.01657",
        skills="both",
    )
    splits_over_ranks = True
    projection: Tensor

    def __init__(self, spec: EnvSpec, config: DADSConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.config: DADSConfig = config
        self.discrete_skills = config.skills == "discrete"
        self.skill_dim = config.num_skills if self.discrete_skills else config.skill_dim
        width, dim = representation.dim, min(representation.dim, config.rep_dim)
        self.projects = width > dim
        if self.projects:
            self.register_buffer("projection", nn.init.orthogonal_(torch.empty(width, dim)))
        self.dynamics = SkillDynamics(dim, self.skill_dim, config)
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
        if self.discrete_skills:
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
        columns = [
            self.log_probs(x, change, some) for some in skills.split(max(1, MAX_ROWS // len(x)), 1)
        ]  # (B, ≤ n) each
        # Its own ratio is 1, but for rounding: r never exceeds log n.
        total = torch.cat(columns, 1).logsumexp(1)
        return math.log(n) - (total - log_q).clamp(min=0)

    @fusable
    def log_probs(self, x: Tensor, change: Tensor, skills: Tensor) -> Tensor:
        """The log-likelihood of the changes with each of (B, n, S) skills, (B, n)."""
        n = skills.shape[1]
        x, change = (t[:, None].expand(-1, n, -1).flatten(0, 1) for t in (x, change))  # (B · n, d)
        log_q: Tensor = self.dynamics.log_prob(x, skills.flatten(0, 1), change).unflatten(0, (-1, n))
        return log_q

    def _project(self, z: Tensor) -> Tensor:
        with full_precision(z):
            return z.float() @ self.projection if self.projects else z.float()

    def _standardize(self, x: Tensor, x_next: Tensor) -> tuple[Tensor, Tensor]:
        """State and change in standard deviations, (B, d) each."""
        change = self.changes.standardize(x_next - x).clamp(-CLIP, CLIP)
        return self.states.standardize(x).clamp(-CLIP, CLIP), change

    # Skills

    def sample_skill(self, episode_steps: Tensor) -> Tensor:
        """Uniform in the box, or one-hot."""
        if self.discrete_skills:
            return one_hot_skills(episode_steps, self.skill_dim)
        return torch.rand(len(episode_steps), self.skill_dim, device=episode_steps.device) * 2 - 1

    def trial_skills(self) -> Tensor | None:
        """All K, or points of the box; None where q chooses, for which skills are drawn as before."""
        if self.config.selection == "dynamics":
            return None
        return self._all_skills(self.config.trials)

    def _all_skills(self, points: int) -> Tensor:
        """The one-hot skills, or this many points spread evenly over the box, always the same."""
        if self.discrete_skills:
            return torch.eye(self.skill_dim)
        spread: Tensor = SobolEngine(self.skill_dim).fast_forward(1).draw(points)  # without the corner 0
        return spread * 2 - 1

    def select_skill(self, batch: Batch, latents: Latents) -> Tensor:
        """The skill that earned most in the warm-up, or that does in rollouts through q."""
        constant = bool((batch.reward == batch.reward[0]).all())  # host read, once in a run
        if self.config.selection == "trials" or constant:
            return super().select_skill(batch, latents)
        x, x_next = self._project(latents.z), self._project(latents.z_next)
        earns = self._fit_reward(x_next, batch.reward)
        skills = self._all_skills(CANDIDATES).to(x.device)
        starts = x[:: -(-len(x) // START_STATES)]  # from all of the warm-up
        skill = skills.repeat_interleave(len(starts), 0)
        x = starts.repeat(len(skills), 1)
        total = torch.zeros(len(x), device=x.device)
        for _ in range(self.config.horizon):
            change = self.dynamics.expected(self._standardize(x, x)[0], skill)
            x = x + self.changes.mean + self.changes.std * change
            total += earns(self.states.standardize(x).clamp(-CLIP, CLIP))[:, 0]
        best: Tensor = skills[total.unflatten(0, (len(skills), -1)).mean(1).argmax()]
        self.skill_choice = "which the learned dynamics predict to earn most"
        return best

    def _fit_reward(self, x_next: Tensor, reward: Tensor) -> nn.Sequential:
        """A network that predicts the reward of a state, fitted to the warm-up."""
        states = self.states.standardize(x_next).clamp(-CLIP, CLIP)
        target = (reward - reward.mean()) / reward.std(correction=0)
        network = mlp([states.shape[1], FIT_HIDDEN, FIT_HIDDEN, 1], layer=TF32Linear).to(x_next.device)
        adam = torch.optim.Adam(network.parameters(), lr=3e-3)
        with torch.enable_grad():
            for _ in range(FIT_UPDATES):
                rows = torch.randint(len(states), (min(FIT_BATCH, len(states)),), device=states.device)
                loss = F.mse_loss(network(states[rows])[:, 0], target[rows])
                adam.zero_grad(set_to_none=True)
                loss.backward()
                adam.step()
        return network
