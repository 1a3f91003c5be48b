"""A custom method in one file: random network distillation (RND, Burda et al. 2018) in a maze of pixels.

A network learns to predict the features of a fixed random network. Its error is large in states it has rarely
seen, so the error rewards novelty. Prints how many cells of the maze RND and uniformly random actions
visited:

    python examples/own_method.py [steps]
"""

import math
import sys
import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor

import voidrl
from voidrl.config import MethodConfig, require_positive
from voidrl.entropy import RunningMean
from voidrl.methods.base import Latents, Method
from voidrl.nets import mlp
from voidrl.runs.metrics import read_metrics
from voidrl.types import Batch, EnvSpec, Metrics

SEEDS = (0, 1)
MAZE = "voidrl/PixelMaze-v0?size=13&image_size=39"


@dataclass(frozen=True)
class RNDConfig(MethodConfig):
    """Each field is an option: `config={"method.hidden_dim": 128}`. `learning_rate` is inherited."""

    hidden_dim: int = 64
    """Width of both networks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "hidden_dim")


class RND(Method):
    """Rewards states whose random features the predictor has not learned yet."""

    Config = RNDConfig

    def __init__(self, spec: EnvSpec, config: RNDConfig, z_dim: int) -> None:
        super().__init__(spec, config, z_dim)
        inputs = math.prod(spec.obs_shape)
        sizes = [inputs, config.hidden_dim, config.hidden_dim]
        self.target = mlp(sizes).requires_grad_(False)  # random and frozen
        self.predictor = mlp(sizes)  # trained by the agent, since its parameters require gradients
        self.scale = RunningMean(momentum=0.99)
        # State lives in buffers, updated in place: saved and moved with the agent, safe in a CUDA graph.
        self.register_buffer("mean_obs", torch.zeros(inputs))

    def flat(self, obs: Tensor) -> Tensor:
        """(B, *obs_shape) → (B, inputs)."""
        return obs.flatten(1).float() / (255 if self.spec.pixels else 1)

    def error(self, obs: Tensor) -> Tensor:
        """Prediction error, (B,). Subtracting the mean image emphasizes what differs between states."""
        x = self.flat(obs) - self.mean_obs
        return (self.predictor(x) - self.target(x)).square().mean(-1)

    def loss(self, batch: Batch, latents: Latents) -> tuple[Tensor, Metrics]:
        """Trains the predictor; called once per update, before `reward`."""
        self.mean_obs.lerp_(self.flat(batch.next_obs).mean(0), 0.05)
        loss = self.error(batch.next_obs).mean()
        return loss, {"rnd_loss": loss.detach()}

    def reward(self, batch: Batch, latents: Latents) -> Tensor:
        """The error divided by its recent mean, (B,), so that the reward does not shrink with it."""
        error = self.error(batch.next_obs)
        self.scale.update(error)
        return self.scale(error)


def visited(method: str | type[Method], steps: int, seed: int) -> int:
    """Number of cells visited in a run without rewards."""
    config = {"env.num_envs": 8, "representation": "fixed", "updates_per_step": 0.25, "warmup_steps": 500,
              "learner.batch_size": 32, "learner.discount": 0.95, "learner.target_tau": 0.05,
              "learner.learning_rate": 1e-3, "learner.epsilon_decay_steps": 1000,
              "learner.encoder.width": 0.5, "learner.hidden_dim": 128}  # fmt: skip
    with tempfile.TemporaryDirectory() as run:
        voidrl.pretrain(MAZE, method, steps=steps, seed=seed, out=run, config=config)
        return read_metrics(run)[-1]["coverage/cells"]


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1600
    mine, random = ([visited(method, steps, seed) for seed in SEEDS] for method in (RND, "random"))
    print(f"cells of 71 visited in {steps} steps, one run per seed: {mine} by RND, {random} at random")
