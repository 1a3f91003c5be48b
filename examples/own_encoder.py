"""A custom encoder in one file: a frozen front end with a small trained part behind it.

The front end stands for a pre-trained network: its weights are not trained, and stay in eval mode. Prints
which weights of the encoder a short run trains:

    python examples/own_encoder.py [steps]
"""

import sys
import tempfile

import torch
from torch import Tensor, nn

import voidrl

MAZE = "voidrl/PixelMaze-v0?size=13&image_size=39"


class FrozenFrontEnd(nn.Module):
    """Fixed convolutions, then a trained one: images (B, C, H, W) in [−0.5, 0.5] → (B, 16, 4, 4)."""

    def __init__(self, obs_shape: tuple[int, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)  # load a file here instead
        self.front = nn.Sequential(nn.Conv2d(obs_shape[0], 32, 3, stride=3), nn.ReLU())
        for parameter in self.front.parameters():
            nn.init.normal_(parameter, std=0.2, generator=generator)
            parameter.requires_grad_(False)
        self.back = nn.Sequential(nn.Conv2d(32, 16, 3, stride=3, padding=0), nn.ReLU())

    def train(self, mode: bool = True) -> "FrozenFrontEnd":
        """Keep the front end in eval mode, which matters for BatchNorm and dropout."""
        super().train(mode)
        self.front.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """The features, which the agent flattens."""
        with torch.no_grad():
            x = self.front(x)
        features: Tensor = self.back(x)
        return features


def main(steps: int) -> None:
    """Train from scratch with it, and list the weights of the encoder."""
    config = {"learner.encoder.stack": FrozenFrontEnd, "learner.hidden_dim": 64, "learner.batch_size": 32,
              "env.num_envs": 8, "updates_per_step": 0.25, "warmup_steps": 200}  # fmt: skip
    with tempfile.TemporaryDirectory() as run:
        agent = voidrl.train(f"{MAZE}&goal=far", steps=steps, config=config, out=run)
    trained = {p for name in agent.optimizers for p in agent.optimizers.parameters(name)}
    for name, parameter in agent.learner.encoder.named_parameters():
        print(f"{name:20} {'trained' if parameter in trained else 'frozen'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 800)
