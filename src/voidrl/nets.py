"""Networks: encoders (stack → FC → LayerNorm → tanh), heads, ensembles of heads, target copies."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from voidrl.config import EncoderConfig
from voidrl.errors import ConfigError

STACKS = {  # (channels, kernel, stride) of each layer
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al. 2015
    "drq": ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1)),  # Kostrikov et al. 2020
    "paper": ((32, 3, 2), (32, 3, 2), (32, 3, 2), (32, 3, 1)),  # APT's table for DMControl
}
IMPALA_CHANNELS = (16, 32, 32)  # Espeholt et al. 2018, without the LSTM


def activation(name: str) -> nn.Module:
    """A new non-linearity."""
    return nn.ELU() if name == "elu" else nn.ReLU()


class Encoder(nn.Module):
    """Observations → features. Takes uint8 images, float images in [0, 1] or vectors."""

    def __init__(self, obs_shape: tuple[int, ...], config: EncoderConfig) -> None:
        super().__init__()
        self.pixels = len(obs_shape) == 3
        known = (*STACKS, "impala") if self.pixels else ("mlp",)
        if config.stack not in known:
            kind, size = "images" if self.pixels else "vectors", "×".join(map(str, obs_shape))
            raise ConfigError(
                f"encoder stack {config.stack!r} cannot read {kind} of {size}: expected {' or '.join(known)}"
            )
        self.stack = _stack(obs_shape, config) if self.pixels else nn.Identity()
        try:
            with torch.no_grad():
                self.feature_dim = self.stack(torch.zeros(1, *obs_shape)).flatten(1).shape[1]
        except RuntimeError as error:
            size = "×".join(map(str, obs_shape[1:]))
            raise ConfigError(
                f"encoder stack {config.stack!r} cannot read images of {size}: they are too small for its "
                f"strides; use larger images or another stack"
            ) from error
        layers: list[nn.Module] = []
        if config.hidden_dim:
            layers += [nn.Linear(self.feature_dim, config.hidden_dim), activation(config.activation)]
            self.feature_dim = config.hidden_dim
        if config.feature_dim:
            layers += [nn.Linear(self.feature_dim, config.feature_dim)]
            layers += [nn.LayerNorm(config.feature_dim), nn.Tanh()]
            self.feature_dim = config.feature_dim
        self.trunk = nn.Sequential(*layers)
        self.apply(init_orthogonal)
        if not self.pixels and config.hidden_dim:
            # With zero biases ReLU scales with its input, and LayerNorm would forget a vector's length. A row
            # of the orthogonal weights answers a unit vector with about 1 / √hidden_dim: biases alike.
            bound = config.hidden_dim**-0.5
            nn.init.uniform_(self.trunk[0].bias, -bound, bound)  # type: ignore[arg-type]
        if config.spectral_norm_iterations:
            for module in list(self.modules()):
                if isinstance(module, nn.Conv2d | nn.Linear):
                    spectral_norm(module, n_power_iterations=config.spectral_norm_iterations)

    def forward(self, obs: Tensor) -> Tensor:
        """(B, *obs_shape) → (B, feature_dim)."""
        if self.pixels:
            obs = (obs.float() / 255 if obs.dtype == torch.uint8 else obs) - 0.5
        features: Tensor = self.trunk(self.stack(obs).flatten(1))
        return features


def _stack(obs_shape: tuple[int, ...], config: EncoderConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = obs_shape[0]
    if config.stack == "impala":
        for out in (max(1, round(c * config.width)) for c in IMPALA_CHANNELS):
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            layers += [Residual(out, config.activation), Residual(out, config.activation)]
            channels = out
        return nn.Sequential(*layers, activation(config.activation))
    for out, kernel, stride in STACKS[config.stack]:
        out = max(1, round(out * config.width))
        layers += [nn.Conv2d(channels, out, kernel, stride), activation(config.activation)]
        channels = out
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """Two 3×3 convolutions with a bypass, as in IMPALA."""

    def __init__(self, channels: int, nonlinearity: str) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            activation(nonlinearity),
            nn.Conv2d(channels, channels, 3, padding=1),
            activation(nonlinearity),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The input plus what the branch makes of it."""
        return x + self.branch(x)  # type: ignore[no-any-return]


def mlp(sizes: list[int], nonlinearity: str = "relu") -> nn.Sequential:
    """Linear layers with a non-linearity between them, none at the end."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers += [activation(nonlinearity)] if i else []
        layers += [nn.Linear(a, b)]
    network = nn.Sequential(*layers)
    network.apply(init_orthogonal)
    return network


class EnsembleLinear(nn.Module):
    """H linear layers side by side as one batched product: (H, B, in) → (H, B, out)."""

    def __init__(self, heads: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(heads, 1, outputs))
        for head in self.weight:
            nn.init.orthogonal_(head)

    def forward(self, x: Tensor) -> Tensor:
        """One product for all heads."""
        return torch.baddbmm(self.bias, x, self.weight)


class TwinQ(nn.Module):
    """Two independent critics of continuous actions: features, skill and action → Q, (2, B)."""

    def __init__(self, inputs: int, hidden_dim: int, hidden_layers: int, outputs: int = 1) -> None:
        super().__init__()
        sizes = [inputs, *[hidden_dim] * hidden_layers, outputs]
        layers: list[nn.Module] = []
        for i, (a, b) in enumerate(pairwise(sizes)):
            layers += [nn.ReLU()] if i else []
            layers += [EnsembleLinear(2, a, b)]
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor, skill: Tensor, action: Tensor) -> Tensor:
        """(B, F), (B, S), (B, A) → (2, B), or (2, B, outputs) for vector-valued critics."""
        x = torch.cat([features, skill, action], -1)
        q: Tensor = self.layers(x.expand(2, *x.shape))
        return q.squeeze(-1)


class DuelingQ(nn.Module):
    """Values of all discrete actions: features and skill → Q, (B, A) (Wang et al. 2016)."""

    def __init__(
        self, inputs: int, num_actions: int, hidden_dim: int, hidden_layers: int, dueling: bool
    ) -> None:
        super().__init__()
        hidden = [hidden_dim] * hidden_layers
        self.advantage = mlp([inputs, *hidden, num_actions])
        self.value = mlp([inputs, *hidden, 1]) if dueling else None

    def forward(self, features: Tensor, skill: Tensor) -> Tensor:
        """(B, F), (B, S) → (B, A)."""
        x = torch.cat([features, skill], -1)
        q: Tensor = self.advantage(x)
        if self.value is not None:
            q = q - q.mean(-1, keepdim=True) + self.value(x)
        return q


def init_orthogonal(module: nn.Module) -> None:
    """Orthogonal weights and zero biases, as DrQ has them; ReLU's gain in convolutions."""
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        nn.init.orthogonal_(module.weight, math.sqrt(2))
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def target_copy(module: nn.Module) -> nn.Module:
    """A frozen copy that follows the original by `follow`."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Move by target ← (1 − τ) target + τ online, weights and buffers alike, as one foreach call."""
    mine = _floats(target)
    if mine:  # an encoder that passes vectors through has no weights
        torch._foreach_lerp_(mine, _floats(online), tau)


def _floats(module: nn.Module) -> list[Tensor]:
    return [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
