"""SimCLR: two views of a state attract, all others repel (Chen et al. 2020; APT, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl import dist
from voidrl.config import OptionalSize, Positive, RepresentationConfig, Size
from voidrl.kernels.fusion import fusable
from voidrl.nets import Encoder, mlp, top1_hits
from voidrl.representations.base import Representation, Views
from voidrl.types import EnvSpec, Metrics


@dataclass(frozen=True)
class SimCLRConfig(RepresentationConfig):
    """NT-Xent on a projection of the features."""

    temperature: Positive = 0.1
    """τ, which divides the cosine similarities."""
    projection_hidden: OptionalSize = 128
    """Hidden width of the projection head; 0 for a linear one."""
    projection_dim: Size = 64
    """Output width of the projection head."""


class SimCLR(Representation):
    """An encoder trained by NT-Xent; the reward uses f(s), never the projection."""

    Config = SimCLRConfig
    has_loss = True

    def __init__(self, spec: EnvSpec, config: SimCLRConfig, encoder: Encoder | None) -> None:
        super().__init__(spec, config, encoder)
        self.config: SimCLRConfig = config
        hidden = [config.projection_hidden] if config.projection_hidden else []
        self.projection = mlp([self.dim, *hidden, config.projection_dim])

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        """NT-Xent between two fresh views."""
        return self.contrast(views.obs(times=2))

    @fusable
    def contrast(self, obs: Tensor) -> tuple[Tensor, Metrics]:
        """The loss over (2B, *obs_shape), of which i and i + B are views of the same state."""
        z = self.encode(obs)  # (2B, dim)
        h = F.normalize(self.projection(z), dim=-1)
        # The loss is defined over the batch: on several ranks, over the views of all of them.
        pairs = dist.all_gather(h.unflatten(0, (2, -1)).transpose(0, 1))
        everyone, first = pairs.transpose(0, 1).flatten(0, 1), dist.current().rank * (len(h) // 2)
        loss, accuracy = nt_xent(h, self.config.temperature, everyone=everyone, first=first)
        # The silent kind of collapse: if all z are equal, the loss is finite and the reward is 0.
        metrics = {"contrast_loss": loss.detach(), "contrast_accuracy": accuracy}
        return loss, {**metrics, "z_std": z.detach().std(0).mean()}


def nt_xent(
    h: Tensor, temperature: float, *, everyone: Tensor | None = None, first: int = 0
) -> tuple[Tensor, Tensor]:
    """Loss and accuracy over 2B unit vectors, of which i and i + B are views of the same state.

    `everyone` are the 2N among which a view has to find the other one, in the same order, by default h
    itself; state 0 of h is number `first` there.
    """
    everyone = h if everyone is None else everyone
    n, total = len(h) // 2, len(everyone) // 2
    with torch.autocast(h.device.type, enabled=False):  # bf16 would round a similarity of 10 to 0.03
        similarity = h @ everyone.T / temperature  # (2B, 2N)
    attract = torch.cat([similarity[:n].diagonal(total + first), similarity[n:].diagonal(first)])  # (2B,)
    itself = torch.eye(2 * total, dtype=torch.bool, device=h.device)
    if n < total:
        itself = itself.unflatten(0, (2, total))[:, first : first + n].flatten(0, 1)  # (2B, 2N)
    similarity = similarity.masked_fill(itself, -torch.inf)
    accuracy = top1_hits(similarity, attract).mean()
    return (similarity.logsumexp(1) - attract).mean(), accuracy
