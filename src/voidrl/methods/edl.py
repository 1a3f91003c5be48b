"""EDL: explore, discover, learn: skills that reach the codes of what was explored (Campos et al. 2020).

One run has three stages:

1. Explore. The reward is that of `apt`: states far from their nearest neighbors.
2. Fit. The reward is the same. A copy of f, which has followed f so far, is kept as it is: the space of the
   codes. A VQ-VAE with K codes, trained from the beginning on the states of the replay, adapts to it:
   ‖x − x̂‖² + ‖sg(e) − c‖² + β‖e − sg(c)‖², with x = f(s') standardized, e its code and c the nearest of K.
3. Skills. The VQ-VAE no longer changes. Skill w is rewarded for reaching what its code stands for:
   r = 1 − ‖x' − dec(c_w)‖² / m, where m is the mean of that square over the states explored and all codes.

Skills are drawn from the first step on, so that the whole replay can serve the third stage, but do not count
before it. In fine-tuning the warm-up tries every skill with the policy and keeps the best.

Differences from the paper:
- it explores by SMM, or has an oracle for states; here APT explores;
- its reward is −‖s' − dec(c_w)‖². Negative rewards make it worthwhile to end an
  episode; 1 − ‖·‖²/m ranks states alike, is 0 for an average state and at most 1;
- codes that are hardly used are moved to states far from all codes (k-means++);
- no Sibling Rivalry against local optima, and an off-policy learner in place of PPO, which keeps the replay;
- the stages share one run and one policy: the learner goes from one reward to the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from voidrl import dist
from voidrl.config import Config as RunConfig
from voidrl.config import PositiveCount
from voidrl.entropy import RunningMoments
from voidrl.errors import ConfigError
from voidrl.methods._skills import DiscreteSkillConfig, DiscreteSkillMethod
from voidrl.methods.apt import APT, APTConfig, ParticleConfig
from voidrl.methods.base import About, Latents
from voidrl.nets import TF32Linear, mlp, polyak_update, target_copy
from voidrl.nets.spectral import full_precision
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss, Metrics

EXPLORE, FIT, SKILLS = 0, 1, 2  # stages
CLIP = 5.0  # standard deviations; bounds the distance to a coordinate that had been constant
MOMENTUM = 0.99  # of the moments of x, since f changes
EXPLORE_FRACTION = 0.5  # of the run
FIT_FRACTION = 0.25  # of the exploration, its last steps
CODE_DIM = 16  # width of a code
HIDDEN = [128] * 3  # layers of the VQ-VAE's encoder and decoder
BETA = 1.5  # β, weight of the commitment of the encoder to the codes
USAGE_RATE = 0.05  # by which the share of states of each code is averaged
DEAD = 0.5  # of an equal share


@dataclass(frozen=True)
class EDLConfig(ParticleConfig, DiscreteSkillConfig):
    """r of `apt` while exploring; then r = 1 − ‖x' − dec(c_w)‖² / m."""

    learning_rate: float = 2e-4
    """Learning rate of the VQ-VAE."""
    num_skills: int = 10
    """K, codes and skills."""
    max_explore_steps: PositiveCount = 100_000
    """Skills are learned after half of the run, or after this many environment steps, which the replay must
    hold."""

    def explored_steps(self, total: int) -> int:
        """Environment steps before skills are learned, in a run of `total`."""
        return min(int(EXPLORE_FRACTION * total), self.max_explore_steps)


class VQVAE(nn.Module):
    """K codes, an encoder to their space and a decoder back."""

    def __init__(self, dim: int, k: int) -> None:
        super().__init__()
        self.encoder = mlp([dim, *HIDDEN, CODE_DIM], layer=TF32Linear)
        self.decoder = mlp([CODE_DIM, *HIDDEN, dim], layer=TF32Linear)
        self.codes = nn.Parameter(torch.empty(k, CODE_DIM).uniform_(-1 / k, 1 / k))
        # At first all are dead: each update moves one of them to a state.
        self.usage = nn.Buffer(torch.zeros(k))

    def distances(self, e: Tensor) -> Tensor:
        """(B, CODE_DIM) → squared distances to the codes, (B, K)."""
        return (e[:, None] - self.codes).square().sum(2)

    def goals(self) -> Tensor:
        """dec(c_k), (K, dim)."""
        return self.decoder(self.codes)  # type: ignore[no-any-return]

    def forward(self, x: Tensor, revive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Squared errors, (B,) each: of x̂, of the codes, and of the encoder; `revive`: move dead codes."""
        e = self.encoder(x)
        with torch.no_grad():
            self._revive(dist.all_gather(e), revive)
            index = self.distances(e).argmin(1)  # (B,)
            share = (index[:, None] == torch.arange(len(self.codes), device=x.device)).float().mean(0)
            self.usage.lerp_(dist.average(share), USAGE_RATE)
        c = self.codes.index_select(0, index)
        error = (self.decoder(e + (c - e).detach()) - x).square().sum(1)
        return error, (e.detach() - c).square().sum(1), (e - c.detach()).square().sum(1)

    def _revive(self, e: Tensor, wanted: Tensor) -> None:
        """Move the least used code to one of e, if it is dead; those far from all codes are more likely."""
        k = len(self.codes)
        least = self.usage.argmin()
        moves = (torch.arange(k, device=e.device) == least) & (self.usage < DEAD / k) & wanted  # (K,)
        gumbel = -torch.empty_like(e[:, 0]).exponential_().log()
        dist.broadcast_([gumbel])  # all ranks move the same code to the same state
        row = (self.distances(e).amin(1).log() + gumbel).argmax()
        found = e.index_select(0, row[None])  # (1, CODE_DIM)
        self.codes.copy_(torch.where(moves[:, None], found, self.codes))
        self.usage.copy_(self.usage.masked_fill(moves, 1 / k))

    def num_used(self) -> Tensor:
        """The exponential of the entropy of the usage: K if all codes are used alike."""
        share = self.usage / self.usage.sum().clamp(min=1e-8)
        return torch.special.entr(share).sum().exp()  # type: ignore[no-any-return]


class EDL(DiscreteSkillMethod):
    """Rewards rare states, and then those that the skill's code stands for."""

    Config = EDLConfig
    config: EDLConfig
    about = About("competence", 2020, "Campos et al., arXiv:2002.03647", skills="discrete")

    def __init__(self, spec: EnvSpec, config: EDLConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        dim = representation.dim
        k, include_self, momentum = config.k, config.include_self, config.mean_momentum
        particles = APTConfig(k=k, include_self=include_self, mean_momentum=momentum)
        self.exploration = APT(spec, particles, representation)
        self.vae = VQVAE(dim, config.num_skills)
        # The copy of f in whose space codes have a meaning; without an encoder f never changes.
        encoder = representation.encoder
        self.space = None if encoder is None else target_copy(encoder)
        self.moments = RunningMoments((dim,), floor=1e-6, momentum=MOMENTUM)
        self.stage = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.rate = nn.Buffer(torch.tensor(config.learning_rate))  # 0 in the last stage
        # The space of the codes: as in `moments`, until the last stage.
        self.mean = nn.Buffer(torch.zeros(dim))
        self.std = nn.Buffer(torch.ones(dim))
        self.spread = nn.Buffer(torch.tensor(float(dim)))
        self.written: int | None = None  # the stage last copied to the buffer

    @classmethod
    def check(cls, spec: EnvSpec, config: RunConfig) -> None:
        """Refuse an exploration that the replay cannot hold, or that ends before the first update."""
        method, capacity = config.method, config.replay.capacity_steps
        assert isinstance(method, EDLConfig)
        super().check(spec, config)
        explored = method.explored_steps(config.steps)
        if explored > capacity:
            raise ConfigError(
                f"method.max_explore_steps = {method.max_explore_steps} cannot be used with "
                f"replay.capacity_steps = {capacity} and steps = {config.steps}: the codes are found among "
                f"the {explored} states explored, which the replay has to hold; use "
                f"method.max_explore_steps = {capacity}, or a larger replay"
            )
        if explored <= config.warmup_steps:
            raise ConfigError(
                f"warmup_steps = {config.warmup_steps} cannot be used with method 'edl' and steps = "
                f"{config.steps}: the {explored} steps of exploration would end before the first update; use "
                f"more steps, or fewer warmup_steps"
            )

    def learning_rate(self, group: str) -> Tensor:
        """A buffer, which the last stage sets to 0."""
        return self.rate

    def set_progress(self, steps: int, total: int) -> None:
        """Begin the stage that is due; none is ever left for an earlier one."""
        end = self.config.explored_steps(total)
        fit = end - int(FIT_FRACTION * end)
        due = SKILLS if steps >= end else FIT if steps >= fit else EXPLORE
        if due != self.written:
            self.written = due
            self.stage.clamp_(min=due)
            self.rate.mul_(self.stage < SKILLS)

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """The VQ-VAE's loss; in the last stage its learning rate is 0, and the loss is only logged."""
        z, explores = self._latent(batch, latents), self.stage < SKILLS
        self.moments.update(z)
        for kept, new in ((self.mean, self.moments.mean), (self.std, self.moments.std)):
            kept.copy_(torch.where(explores, new, kept))
        x = self._standardize(z)
        error, codes, commitment = (term.mean() for term in self.vae(x, explores))
        with torch.no_grad():
            spread = (x[:, None] - self.vae.goals()).square().sum(2).mean()
            self.spread.lerp_(dist.average(spread), USAGE_RATE * explores)
        loss = error + codes + BETA * commitment
        metrics = {"edl_loss": loss, "edl_error": error / x.shape[1], "edl_commitment": commitment}
        yield Loss("method", loss, {name: value.detach() for name, value in metrics.items()})

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """Rarity while exploring, then closeness to the code's state."""
        rarity = self.exploration.reward(batch, latents)
        goal = self.vae.goals().index_select(0, batch.skill.argmax(1))  # dec(c_w), (B, dim)
        squared = (self._standardize(self._latent(batch, latents)) - goal).square().sum(1)
        return torch.where(self.stage < SKILLS, rarity, 1 - squared / self.spread)

    def _latent(self, batch: Batch, latents: Latents) -> Tensor:
        """The state reached, in the space of the codes, (B, dim), without gradients."""
        if self.space is None:
            return latents.z_next.detach()
        with torch.no_grad(), full_precision(batch.next_obs, unless=self.spec.pixels):
            return self.space(batch.next_obs).float()  # type: ignore[no-any-return]

    def _standardize(self, z: Tensor) -> Tensor:
        return ((z - self.mean) / self.std).clamp(-CLIP, CLIP)

    def after_update(self, representation: Representation) -> None:
        """Let the copy follow f in the first stage."""
        if self.space is not None and representation.encoder is not None:
            polyak_update(self.space, representation.encoder, (self.stage == EXPLORE).float())

    def metrics(self) -> Metrics:
        """The stage, how many codes are used, and the scale of the reward."""
        return {
            "edl_stage": self.stage.float(),
            "edl_codes": self.vae.num_used(),
            "edl_spread": self.spread.clone(),
        }
