"""ResNet-18 up to the pooled features, with weights that never change (He et al. 2016).

Tensors have torchvision's names, so that its files and timm's fit. The classifier is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.errors import ConfigError

CHANNELS = 64  # of the first layer
LAYERS = 4  # of two blocks each
CLASSIFIER = "fc."  # begins the names of tensors that are not needed
COUNTER = ".num_batches_tracked"  # ends them: only training reads it


class FrozenBatchNorm(nn.Module):
    """BatchNorm with given statistics, in training mode too."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(channels), requires_grad=False)
        self.running_mean: Tensor
        self.running_var: Tensor
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of (B, C, H, W)."""
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)


class Block(nn.Module):
    """Two 3×3 convolutions and a bypass."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, channels, 3, stride), FrozenBatchNorm(channels)
        self.conv2, self.bn2 = _conv(channels, channels, 3), FrozenBatchNorm(channels)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or inputs != channels:
            self.downsample = nn.Sequential(_conv(inputs, channels, 1, stride), FrozenBatchNorm(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C', H', W')."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """(B, 3, H, W), normalized, → (B, dim). It has no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(3, CHANNELS, 7, stride=2), FrozenBatchNorm(CHANNELS)
        inputs = CHANNELS
        for i in range(LAYERS):
            channels = CHANNELS * 2**i
            blocks = [Block(inputs, channels, 2 if i else 1), Block(channels, channels, 1)]
            self.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
            inputs = channels
        self.dim = inputs

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """The features before the classifier."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        for i in range(LAYERS):
            x = self.get_submodule(f"layer{i + 1}")(x)
        return x.mean((2, 3))

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], source: str) -> None:
        """Copy weights and statistics from a file of a ResNet-18."""
        needed = {
            name: tensor
            for name, tensor in tensors.items()
            if not name.startswith(CLASSIFIER) and not name.endswith(COUNTER)
        }
        try:
            self.load_state_dict(needed)
        except RuntimeError as error:
            raise ConfigError(f"{source} does not hold a ResNet-18: {error}") from error


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False).requires_grad_(False)
