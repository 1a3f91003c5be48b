"""A custom method in one file: count-based exploration in a maze of pixels.

A table counts how often each state was reached; the reward is 1 / √count (Strehl & Littman 2008; the hash
table is that of Tang et al. 2017, without their features). Prints how many cells of the maze were visited,
compared with uniform random actions:

    python examples/own_method.py [steps]
"""

import math
import sys
import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor

import voidrl
from voidrl.config import MethodConfig, Positive, PositiveCount
from voidrl.methods.base import Latents, Method
from voidrl.representations.base import Representation
from voidrl.runs.metrics import read_metrics
from voidrl.types import Batch, EnvSpec, Metrics

SEEDS = (0, 1)
MAZE = "voidrl/PixelMaze-v0?size=13&image_size=39"


@dataclass(frozen=True)
class CountsConfig(MethodConfig):
    """Each field is an option: `config={"method.table_size": 4096}`, `--method.table-size 4096`."""

    table_size: PositiveCount = 2**16
    """Entries of the table; two states may share one."""
    resolution: Positive = 0.1
    """Vectors are rounded to multiples of this before they are counted."""


class Counts(Method):
    """Rewards states that were rarely reached."""

    Config = CountsConfig
    reads_latents = False  # it reads observations, so no representation needs to be trained for it

    def __init__(self, spec: EnvSpec, config: CountsConfig, representation: Representation) -> None:
        super().__init__(spec, config, representation)
        self.config: CountsConfig = config
        # State lives in buffers that are changed in place: saved with the agent, moved with it, and read by
        # captured CUDA graphs.
        self.register_buffer("counts", torch.zeros(config.table_size, dtype=torch.int64))
        self.register_buffer("weights", torch.randint(2**31, (math.prod(spec.obs_shape),)))

    def entry(self, obs: Tensor) -> Tensor:
        """(B, *obs_shape) → (B,): where the table counts each state."""
        x = obs if self.spec.pixels else (obs / self.config.resolution).round()
        return (x.flatten(1).long() * self.weights).sum(1) % self.config.table_size

    def observe(self, obs: Tensor, skill: Tensor, env: Tensor, representation: Representation) -> None:
        """Count each state once, when it is reached; batches contain the same transition many times."""
        entries = self.entry(obs)
        self.counts.index_add_(0, entries, torch.ones_like(entries))

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """(B,): 1 / √count."""
        return self.counts[self.entry(batch.next_obs)].clamp(min=1).float().rsqrt()

    def metrics(self) -> Metrics:
        """Logged as `train/entries_used`."""
        return {"entries_used": (self.counts > 0).sum().float()}


def visited(method: str | type[Method], steps: int, seed: int) -> int:
    """Cells entered in a run without rewards."""
    config = {"env.num_envs": 8, "updates_per_step": 0.25, "warmup_steps": 500,
              "learner.batch_size": 32, "learner.discount": 0.95, "learner.target_tau": 0.05,
              "learner.learning_rate": 1e-3, "learner.epsilon_decay_steps": 1000,
              "learner.encoder.width": 0.5, "learner.hidden_dim": 128}  # fmt: skip
    with tempfile.TemporaryDirectory() as run:
        voidrl.pretrain(MAZE, method, steps=steps, seed=seed, out=run, config=config)
        return read_metrics(run)[-1]["coverage/cells"]


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1600
    mine, random = ([visited(method, steps, seed) for seed in SEEDS] for method in (Counts, "random"))
    print(f"cells of 71 visited in {steps} steps, one run per seed: {mine} by counts, {random} at random")
