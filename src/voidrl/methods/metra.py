"""METRA: skills that move in all directions of a space where adjacent states lie close (Park et al. 2024).

φ maps states to the space of skills. The reward (φ(s') − φ(s))·w pays for moving along the skill w; φ is
trained for the same, under the constraint ‖φ(s') − φ(s)‖² ≤ 1 for the two states of a step. φ therefore
spreads out what takes long to reach. A multiplier λ enforces the constraint by dual gradient descent.

`distance` replaces the constraint: ‖φ(s') − φ(s)‖ ≤ ‖s' − s‖ by spectral normalization is LSD (Park et al.
2022); the squared distance from the s' that a Gaussian p(s' | s) expects, in its standard deviations, is CSD
(Park et al. 2023).

Differences from the public code: norms are sums over components as in the papers, not means, which allow √dim
times the length; one network gives mean and deviation of p(s' | s). From pixels φ has the convolutions of
`rnd`. For a task, skills are tried in the warm-up: the papers train a policy over skills, or reach goals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.config import Config as RunConfig
from voidrl.config import EncoderConfig, Size
from voidrl.errors import ConfigError
from voidrl.kernels.fusion import fusable
from voidrl.methods._skills import DiscreteSkillMethod, EitherSkillConfig
from voidrl.methods.base import About, Latents
from voidrl.nets import Encoder, FullPrecisionLinear, Linear, TF32Linear, init_orthogonal, mlp
from voidrl.nets.encoder import stack_for
from voidrl.nets.layers import chain
from voidrl.nets.observations import visible, visible_numbers
from voidrl.nets.spectral import SpectralNorm, full_precision
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss, Metrics

LOG_STD = (math.log(1e-6), math.log(1e6))  # bounds of the deviations of p(s' | s)
LOG_2PI = math.log(2 * math.pi)
NORM_ITERATIONS = 1  # power iterations in each update
INITIAL_MULTIPLIER = 30.0  # λ at the start, as in METRA's code (CSD's: 3000)
MULTIPLIER_LEARNING_RATE = 1e-4  # of log λ
SLACK = 1e-3  # a constraint that is satisfied by more than this has no gradient (CSD's code: 1e-6)


@dataclass(frozen=True)
class METRAConfig(EitherSkillConfig):
    """r = (φ(s') − φ(s))·w, with φ bounded by a distance between s and s'."""

    distance: Literal["temporal", "euclidean", "controllability"] = "temporal"
    """Bound on ‖φ(s') − φ(s)‖: `temporal`, 1 per step (METRA); `euclidean`, ‖s' − s‖ (LSD);
    `controllability`, how unlikely s' is after s (CSD). Continuous skills have length 1 with `temporal`, else
    N(0, I)."""
    hidden_dim: Size = 1024
    """Width of the two hidden layers of φ and of p(s' | s)."""


class METRA(DiscreteSkillMethod):
    """Rewards moving along the skill in a space whose distances are bounded."""

    Config = METRAConfig
    config: METRAConfig
    about = About("competence", 2024, "Park et al., arXiv:2310.08887", skills="both")
    reads_latents = False

    def __init__(self, spec: EnvSpec, config: METRAConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        if not config.discrete_skills:
            self.skill_choice = "which earned most of those sampled in the warm-up"
        lipschitz, hidden = config.distance == "euclidean", config.hidden_dim
        self.encoder: Encoder | None = None
        width = visible_numbers(spec)
        if spec.pixels:
            iterations, stack = NORM_ITERATIONS if lipschitz else 0, stack_for(spec.obs_shape)
            config_of_f = {"feature_dim": 0, "activation": "relu", "spectral_norm_iterations": iterations}
            self.encoder = Encoder(spec, EncoderConfig(stack, **config_of_f))  # type: ignore[arg-type]
            width = self.encoder.feature_dim
        if lipschitz:
            self.heads = mlp([width, hidden, hidden, config.skill_dim], layer=Linear)
            for layer in self.heads:
                if isinstance(layer, Linear):
                    layer.spectral = SpectralNorm(layer.weight, NORM_ITERATIONS)
        else:
            self.heads = _network(width, hidden, config.skill_dim, pixels=spec.pixels)
            self.log_multiplier = nn.Parameter(torch.tensor(math.log(INITIAL_MULTIPLIER)))
        self.density = None
        if config.distance == "controllability":
            self.density = _network(width, hidden, 2 * width)
            with torch.no_grad():  # begin near N(0, I)
                self.density[-1].weight.mul_(0.01)  # type: ignore[operator]

    @classmethod
    def check(cls, spec: EnvSpec, config: RunConfig) -> None:
        """p(s' | s) needs vectors, and the constraint single steps."""
        method, learner = config.method, config.learner
        assert isinstance(method, METRAConfig)
        if method.distance == "controllability" and spec.pixels:
            raise ConfigError(
                f"method.distance = 'controllability' cannot be used on {spec.describe()}: it models s' by a "
                f"Gaussian around s, which says little about images; use 'temporal', or vectors"
            )
        if learner.n_step > 1 and learner.intrinsic_n_step == "single":
            raise ConfigError(
                f"learner.intrinsic_n_step = 'single' cannot be used with method {method.name!r} and "
                f"learner.n_step = {learner.n_step}: it bounds φ between the states of single steps; use "
                f"'summed', or learner.n_step = 1"
            )

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """φ and p(s' | s), and the multiplier."""
        mine = {"method": [p for name, p in self.named_parameters() if name != "log_multiplier"]}
        return mine if self.config.distance == "euclidean" else {**mine, "multiplier": [self.log_multiplier]}

    def learning_rate(self, group: str) -> float:
        """The multiplier has its own."""
        return MULTIPLIER_LEARNING_RATE if group == "multiplier" else self.config.learning_rate

    def phi(self, obs: Tensor) -> Tensor:
        """φ(s): (B, *obs_shape) → (B, skill_dim)."""
        x = visible(obs, self.spec) if self.encoder is None else self.encoder(obs).float()
        with full_precision(x):
            z: Tensor = self.heads(x)
        return z

    def displacement(self, obs: Tensor, next_obs: Tensor) -> Tensor:
        """φ(s') − φ(s), (B, skill_dim), in one pass."""
        z, z_next = self.phi(torch.cat([obs, next_obs])).chunk(2)
        return z_next - z

    def direction(self, skill: Tensor) -> Tensor:
        """(B, skill_dim): continuous skills unchanged, one-hot ones centered, so that no state suits all."""
        k = self.skill_dim
        return (skill - 1 / k) * (k / (k - 1)) if self.config.discrete_skills else skill

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The step along the skill; summed over a path, the way from its start to its end."""
        return self.score(batch.obs, batch.next_obs, batch.skill)

    @fusable
    def score(self, obs: Tensor, next_obs: Tensor, skill: Tensor) -> Tensor:
        """(φ(s') − φ(s))·w, (B,)."""
        return (self.displacement(obs, next_obs) * self.direction(skill)).sum(1)

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """Maximize the reward under the constraint; then move the multiplier."""
        loss, constraint, metrics = self.objective(batch.obs, batch.next_obs, batch.skill)
        yield Loss("method", loss, metrics)
        if constraint is not None:
            yield Loss("multiplier", self.log_multiplier * constraint, {})

    @fusable
    def objective(
        self, obs: Tensor, next_obs: Tensor, skill: Tensor
    ) -> tuple[Tensor, Tensor | None, Metrics]:
        """The loss of φ and p(s' | s), the mean constraint without gradients, and what to log."""
        step, direction = self.displacement(obs, next_obs), self.direction(skill)
        along, squared = (step * direction).sum(1).mean(), step.square().sum(1)  # (), (B,)
        length = squared.detach().sqrt()
        most = (length * torch.linalg.vector_norm(direction, dim=1)).mean()
        metrics = {
            "metra_step_length": length.mean(),
            "metra_alignment": along.detach() / most.clamp(min=1e-8),
        }
        loss = -along
        if self.config.distance == "euclidean":  # the weights of φ satisfy the constraint
            return loss, None, {"metra_loss": loss.detach(), **metrics}
        bound, nll = self.squared_bound(obs, next_obs)
        constraint = (bound - squared).clamp(max=SLACK).mean()
        loss = loss - self.log_multiplier.detach().exp() * constraint
        metrics = {"metra_loss": loss.detach(), **metrics, "metra_constraint": constraint.detach()}
        if nll is not None:
            loss = loss + nll
            metrics |= {"metra_bound": bound.sqrt().mean(), "metra_density_loss": nll.detach()}
        return loss, constraint.detach(), metrics

    def squared_bound(self, obs: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The bound on ‖φ(s') − φ(s)‖², (B,), without gradients; and the loss of p(s' | s), if any."""
        if self.density is None:
            return torch.ones(len(obs), device=obs.device), None
        x = visible(obs, self.spec)
        mean, log_std = self.density(x).chunk(2, 1)  # of s' − s
        log_std = log_std.clamp(*LOG_STD)
        error = (visible(next_obs, self.spec) - x - mean).square()  # (B, d)
        nll = (error * (-2 * log_std).exp() / 2 + log_std).sum(1).mean() + x.shape[1] * LOG_2PI / 2
        # In standard deviations, scaled to a geometric mean of 1: p changes the shape of the unit ball alone.
        weights = (2 * (log_std.mean(1, keepdim=True) - log_std)).exp()
        return (error * weights).sum(1).detach(), nll

    def metrics(self) -> Metrics:
        """The multiplier."""
        if self.config.distance == "euclidean":
            return {}
        return {"metra_multiplier": self.log_multiplier.detach().exp()}

    # Skills

    def sample_skill(self, episode_steps: Tensor) -> Tensor:
        """One-hot vectors, uniformly; or points of the unit sphere (METRA) or N(0, I) (LSD, CSD)."""
        if self.config.discrete_skills:
            return super().sample_skill(episode_steps)
        skill = torch.randn(len(episode_steps), self.skill_dim, device=episode_steps.device)
        return F.normalize(skill, dim=1) if self.config.distance == "temporal" else skill

    def trial_skills(self) -> Tensor | None:
        """All K one-hot skills; continuous ones are sampled."""
        return super().trial_skills() if self.config.discrete_skills else None

    @torch.no_grad()
    def skill_toward(self, obs: Tensor, goal: Tensor) -> Tensor:
        """(n, skill_dim): the skills that lead from states to goals, both (n, *obs_shape): w ∝ φ(g) − φ(s).

        A one-hot skill is the one in whose direction the goal lies farthest. N(0, I) gives √dim for a length.
        """
        way = self.displacement(obs, goal)
        if self.config.discrete_skills:
            return F.one_hot(way.argmax(1), self.skill_dim).float()
        length = 1.0 if self.config.distance == "temporal" else math.sqrt(self.skill_dim)
        return F.normalize(way, dim=1) * length


def _network(inputs: int, hidden: int, outputs: int, *, pixels: bool = False) -> nn.Sequential:
    """Two hidden layers, exact enough for φ(s') − φ(s) where φ is much longer than a step of it.

    Vectors enter in float32: TF32 rounds a position of 50 to multiples of 1/32, and all hidden units would
    share that error. Between hidden layers errors are independent and average out, and so do those of the
    many features of an image.
    """
    first = (TF32Linear if pixels else FullPrecisionLinear)(inputs, hidden)
    layers = [first, TF32Linear(hidden, hidden), FullPrecisionLinear(hidden, outputs)]
    return chain(layers).apply(init_orthogonal)
