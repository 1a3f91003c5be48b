"""A custom representation in one file: a temporal contrast, so that distances in f follow time.

A state attracts its successor and repels the other states of the batch (the objective of CPC, van den Oord
et al. 2018, for one step). Prints how often the successor of a state is recognized among 64, early in a run
without rewards and at its end:

    python examples/own_representation.py [steps]
"""

import sys
import tempfile
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import voidrl
from voidrl.config import Positive, RepresentationConfig
from voidrl.nets import Encoder, mlp
from voidrl.representations.base import Representation, Views
from voidrl.runs.metrics import read_metrics
from voidrl.types import EnvSpec, Metrics


@dataclass(frozen=True)
class TemporalConfig(RepresentationConfig):
    """A state attracts its successor and repels all others."""

    temperature: Positive = 0.1
    """Divides the similarities."""


class Temporal(Representation):
    """Contrasts s with s'."""

    Config = TemporalConfig
    has_loss = True

    def __init__(self, spec: EnvSpec, config: TemporalConfig, encoder: Encoder | None) -> None:
        super().__init__(spec, config, encoder)
        self.projection = mlp([self.dim, 128, 64])

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        obs = views.transitions()  # (2B, *obs_shape): all s, then all s'
        z = self.encode(obs)  # (2B, dim)
        now, later = F.normalize(self.projection(z), dim=-1).chunk(2)  # (B, 64)
        logits = now @ later.T / self.config.temperature  # (B, B)
        label = torch.arange(len(logits), device=logits.device)
        loss = F.cross_entropy(logits, label)
        # z_std is 0 where f has collapsed: all states are then equally far apart.
        metrics = {"temporal_loss": loss.detach(), "z_std": z.detach().std(0).mean()}
        metrics["recognized"] = (logits.argmax(1) == label).float().mean()
        return loss, metrics


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1600
    config = {"representation": Temporal, "representation.batch_size": 64, "env.num_envs": 8}
    config |= {"representation.learning_rate": 1e-3, "updates_per_step": 0.25, "warmup_steps": 200}
    config |= {"learner.batch_size": 32, "learner.hidden_dim": 64, "log.log_every_steps": 100}
    with tempfile.TemporaryDirectory() as run:
        voidrl.pretrain("Acrobot-v1", "apt", steps=steps, config=config, out=run)
        rows = [row for row in read_metrics(run) if "train/temporal_loss" in row]
    for row in (rows[0], rows[-1]):
        loss, share = row["train/temporal_loss"], row["train/recognized"]
        print(f"step {row['step']}: loss {loss:.2f}, {share:.0%} of successors recognized")
