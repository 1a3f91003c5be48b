"""A custom method in one file: count-based exploration in a maze of pixels.

A table counts how often each state was reached; the reward is 1 / √count (Strehl & Littman 2008). Prints how
many cells of the maze were visited, compared with uniform random actions:

    python examples/own_method.py [steps]
"""

import math
import sys
import tempfile
from dataclasses import dataclass

import torch

import voidrl
from voidrl.config import MethodConfig, PositiveCount
from voidrl.methods.base import Method
from voidrl.runs.metrics import read_metrics


@dataclass(frozen=True)
class CountsConfig(MethodConfig):
    """Each field is an option: `config={"method.table_size": 4096}`, `--method.table-size 4096`."""

    table_size: PositiveCount = 2**16
    """Entries of the table; two states may share one."""


class Counts(Method):
    """Rewards states that were rarely reached."""

    Config = CountsConfig
    reads_latents = False  # it reads observations, so no representation needs to be trained for it

    def __init__(self, spec, config, representation):
        super().__init__(spec, config, representation)
        # Buffers that are changed in place are saved with the agent and read by captured CUDA graphs.
        self.register_buffer("counts", torch.zeros(config.table_size, dtype=torch.int64))
        self.register_buffer("weights", torch.randint(2**31, (math.prod(spec.obs_shape),)))

    def entry(self, obs):  # (B, *obs_shape) → (B,): where the table counts each state
        return (obs.flatten(1).long() * self.weights).sum(1) % self.config.table_size

    def observe(self, obs, skill, env, representation):  # each state once, when it is reached
        entries = self.entry(obs)
        self.counts.index_add_(0, entries, torch.ones_like(entries))

    def reward(self, batch, latents):
        return self.counts[self.entry(batch.next_obs)].clamp(min=1).float().rsqrt()  # (B,)


def visited(method, seed, steps):
    config = {"env.num_envs": 8, "updates_per_step": 0.25, "warmup_steps": 500}
    config |= {"learner.batch_size": 32, "learner.discount": 0.95, "learner.target_tau": 0.05}
    config |= {"learner.learning_rate": 1e-3, "learner.epsilon_decay_steps": 1000}
    config |= {"learner.encoder.width": 0.5, "learner.hidden_dim": 128}
    maze = "voidrl/PixelMaze-v0?size=13&image_size=39"
    with tempfile.TemporaryDirectory() as run:
        voidrl.pretrain(maze, method, steps=steps, seed=seed, out=run, config=config)
        return read_metrics(run)[-1]["coverage/cells"]


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1600
    mine, random = ([visited(method, seed, steps) for seed in (0, 1)] for method in (Counts, "random"))
    print(f"cells of 71 visited in {steps} steps, one run per seed: {mine} by counts, {random} at random")
