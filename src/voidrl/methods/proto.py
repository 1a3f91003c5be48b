"""Proto-RL: the distance to neighbors among states that prototypes have drawn (Yarats et al. 2021).

A projector maps f(s) onto the unit sphere. Prototypes on that sphere are trained to cluster it: a predictor
on top of the projector has to assign s to the prototypes to which a momentum target, balanced by Sinkhorn
iterations, assigns s'. After every update each prototype draws one state of the minibatch into a queue; the
reward is the distance of s' to its k-th neighbor in that queue. On vectors f is the identity; from pixels the
loss trains f itself, where `encoder_trainers` names `method`.

Differences from the authors' code: a minibatch is scored before its states enter the queue, so that no state
is its own neighbor; the queue starts with entries at infinity, never zeros; the target and the reward see
images without augmentation; f is trained at every update; fine-tuning has the task's reward alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl import dist
from voidrl.config import MethodConfig, Size
from voidrl.config.checks import between
from voidrl.entropy import knn_distances
from voidrl.kernels.fusion import fusable
from voidrl.methods.base import About, Latents, Method, momentum_encoder
from voidrl.nets import mlp, polyak_update, target_copy
from voidrl.nets.spectral import full_precision
from voidrl.representations.base import Representation
from voidrl.types import Batch, EnvSpec, Loss

# The authors' values.
TEMPERATURE = 0.1  # of the assignment to prototypes
SINKHORN_ITERATIONS = 3  # that balance the target's assignments over the prototypes
QUEUE_SIZE = 2048  # states kept as possible neighbors
NEIGHBOR = 3  # k, the rank of the neighbor whose distance is the reward
TARGET_TAU = 0.05  # share of the trained weights that moves into the target at every update
TINY = 1e-30  # below any mass that Sinkhorn divides by, unless all of it has vanished


@dataclass(frozen=True)
class ProtoConfig(MethodConfig):
    """r = ‖u' − k-th neighbor of u' in the queue‖, with u on the unit sphere."""

    num_prototypes: Annotated[int, between(1, QUEUE_SIZE, "states of the queue")] = 512
    """K; also the number of states that enter the queue at every update."""
    projection_dim: Size = 128
    """Width of u and of the prototypes."""
    hidden_dim: Size = 512
    """Hidden units of the predictor."""
    center: bool = False
    """Subtract a moving average of f(s) before projecting it, without which prototypes find nothing to
    cluster where images are nearly alike, as in a maze."""


class Proto(Method):
    """Rewards states far from what prototypes have drawn from recent minibatches."""

    Config = ProtoConfig
    config: ProtoConfig
    about = About("data", 2021, "Yarats et al., arXiv:2102.11271")
    image_representation = "learner"
    can_train_encoder = True

    def __init__(self, spec: EnvSpec, config: ProtoConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        width = config.projection_dim
        self.projector = mlp([representation.dim, width])
        self.predictor = mlp([width, config.hidden_dim, width])
        self.prototypes = nn.Parameter(torch.empty(config.num_prototypes, width))  # rows of norm 1
        nn.init.orthogonal_(self.prototypes)
        self.normalize_prototypes()
        self.target_projector = target_copy(self.projector)
        self.target_encoder = momentum_encoder(representation)
        self.average = nn.Buffer(torch.zeros(representation.dim))
        self.averaged = nn.Buffer(torch.zeros(1))  # minibatches
        # At infinity, an entry that is not filled yet is nobody's neighbor.
        self.queue = nn.Buffer(torch.full((QUEUE_SIZE, width), torch.inf))
        self.head = nn.Buffer(torch.zeros(1, dtype=torch.int64))
        self._scored: Tensor | None = None  # u' of this update, on their way into the queue

    def losses(self, batch: Batch, latents: Latents) -> Iterator[Loss]:
        """Cross-entropy between the prototypes of s and those of s'."""
        self._scored = None
        if self.config.center:  # the mean of all minibatches at first, then a moving average
            self.averaged.add_(1)
            share = self.averaged.reciprocal().clamp(min=TARGET_TAU)
            self.average.lerp_(dist.average(latents.z.detach().mean(0)), share)
        loss, perplexity = self.assign(latents.z, self._target_latents(batch.next_obs, latents))
        yield Loss("method", loss, {"proto_loss": loss.detach(), "proto_perplexity": perplexity})

    @torch.no_grad()
    def _target_latents(self, next_obs: Tensor, latents: Latents) -> Tensor:
        if self.target_encoder is None:
            return latents.z_next
        with full_precision(next_obs, unless=self.spec.pixels):
            return self.target_encoder(next_obs).float()  # type: ignore[no-any-return]

    @fusable
    def assign(self, z: Tensor, z_next: Tensor) -> tuple[Tensor, Tensor]:
        """The loss over (B, dim) latents of s and the target's of s', and how many prototypes are in use."""
        online = F.normalize(self.predictor(self.projector(z - self.average)), dim=1)  # (B, width)
        with full_precision(online):
            log_p = (online @ self.prototypes.T / TEMPERATURE).log_softmax(1)  # (B, K)
            with torch.no_grad():
                target = F.normalize(self.target_projector(z_next - self.average), dim=1)
                scores = target @ self.prototypes.T / TEMPERATURE
                # Balanced over the states of all ranks, of which this one has B.
                first, everyone = dist.current().rank * len(scores), dist.all_gather(scores)
                q = sinkhorn(everyone, SINKHORN_ITERATIONS)[first : first + len(scores)]  # (B, K)
        loss = -(q * log_p).sum(1).mean()
        used = log_p.detach().exp().mean(0)  # (K,)
        return loss, torch.special.entr(used).sum().exp()

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The distance to the k-th neighbor; 0 as long as there are no k."""
        u, distance = self.score(latents.z_next)
        if self._scored is None:  # of n-step transitions the first successor alone
            self._scored = u
        return distance

    @fusable
    def score(self, z_next: Tensor) -> tuple[Tensor, Tensor]:
        """(B, width) and (B,): u' and its distance to the k-th neighbor in the queue."""
        u = F.normalize(self.projector(z_next - self.average), dim=1)
        distance = knn_distances(u, self.queue, NEIGHBOR)[:, -1]
        return u, distance.nan_to_num(nan=torch.nan, posinf=0.0)

    @torch.no_grad()
    def after_update(self, representation: Representation) -> None:
        """Move the target, put the prototypes back onto the sphere, and let each draw a state."""
        polyak_update(self.target_projector, self.projector, TARGET_TAU)
        if self.target_encoder is not None and representation.encoder is not None:
            polyak_update(self.target_encoder, representation.encoder, TARGET_TAU)
        self.normalize_prototypes()
        if self._scored is not None:
            self.enqueue(dist.all_gather(self._scored))
            self._scored = None

    @torch.no_grad()
    def normalize_prototypes(self) -> None:
        """Scale each prototype to norm 1, in place."""
        self.prototypes.copy_(F.normalize(self.prototypes, dim=1))

    @torch.no_grad()
    def enqueue(self, u: Tensor) -> None:
        """Let each prototype c draw one of (B, width) with probability softmax(u · c) into the queue."""
        with full_precision(u):
            scores = self.prototypes @ u.T  # (K, B)
        noise = torch.empty_like(scores).exponential_()
        dist.broadcast_([noise])  # the same draw on all ranks
        drawn = (scores - noise.log()).argmax(1)  # (K,): the Gumbel-max trick
        offset = torch.arange(len(drawn), device=u.device)
        self.queue.index_copy_(0, (self.head + offset) % len(self.queue), u.index_select(0, drawn))
        self.head.add_(len(drawn)).remainder_(len(self.queue))


def sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """(B, K): assignments ∝ exp(scores) · row factor · column factor.

    Rows sum to 1, and columns, up to convergence, to B / K (Cuturi 2013; Caron et al. 2020).
    """
    mass = (scores - scores.amax()).exp()
    row = torch.ones_like(mass[:, 0])  # (B,)
    column = torch.ones_like(mass[0])  # (K,)
    for _ in range(iterations):
        column = len(row) / len(column) / (row @ mass).clamp(min=TINY)
        row = 1 / (mass @ column).clamp(min=TINY)
    return row[:, None] * mass * column
