"""Encoder stacks of a user's own, right and wrong."""

import torch
from torch import nn

from voidrl.types import Layout


class TinyConv(nn.Module):
    """Images to a map of features."""

    def __init__(self, obs_shape):
        super().__init__()
        self.conv = nn.Conv2d(obs_shape[0], 4, 5, stride=4)

    def forward(self, x):
        return self.conv(x).relu()


class TinyMLP(nn.Module):
    """Vectors to features, with its width declared."""

    dim = 5

    def __init__(self, obs_shape):
        super().__init__()
        self.layer = nn.Linear(obs_shape[0], 5)

    def forward(self, x):
        return self.layer(x).tanh()


class WrongDim(TinyMLP):
    dim = 6


class WrongShape(TinyMLP):
    def forward(self, x):
        return super().forward(x).sum(1)


class WrongBatch(TinyMLP):
    def forward(self, x):
        return super().forward(x)[:1]


class WrongLayout(TinyConv):
    layout = "channels_last"


class OtherLayout(TinyConv):
    layout = Layout(fold=2)


class Folded(nn.Module):
    """Reads images folded 2 × 2, and plain ones too."""

    layout = Layout(fold=2)

    def __init__(self, obs_shape):
        super().__init__()
        self.channels = obs_shape[0]
        self.conv = nn.Conv2d(4 * obs_shape[0], 4, 3)

    def forward(self, x):
        return self.conv(nn.functional.pixel_unshuffle(x, 2) if x.shape[1] == self.channels else x)


class NeedsMore(TinyMLP):
    def __init__(self, obs_shape, width):
        super().__init__(obs_shape)


class NoModule:
    def __init__(self, obs_shape):
        pass


class Returns(TinyMLP):
    def forward(self, x):
        return [super().forward(x)]


class Broken(TinyMLP):
    def forward(self, x):
        return self.layer(torch.cat([x, x], 1))
