"""Encoder stacks of a user's own, right and wrong."""

import torch
from torch import nn


class TinyConv(nn.Module):
    """Images to a map of features."""

    def __init__(self, obs_shape):
        super().__init__()
        self.conv = nn.Conv2d(obs_shape[0], 4, 5, stride=4)

    def forward(self, x):
        return self.conv(x).relu()


class TinyMLP(nn.Module):
    """Vectors to features."""

    def __init__(self, obs_shape):
        super().__init__()
        self.layer = nn.Linear(obs_shape[0], 5)

    def forward(self, x):
        return self.layer(x).tanh()


class WrongShape(TinyMLP):
    def forward(self, x):
        return super().forward(x).sum(1)


class WrongBatch(TinyMLP):
    def forward(self, x):
        return super().forward(x)[:1]


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
