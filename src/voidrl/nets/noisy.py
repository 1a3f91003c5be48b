"""Noisy linear layers (Fortunato et al. 2018): weights with learned noise, which explores instead of ε.

W = μ + σ ⊙ f(ε_out) f(ε_in)ᵀ with f(x) = sgn(x) √|x|, and likewise for the bias. One draw serves a whole
batch. It is kept in buffers, 0 until the first draw: no flag decides what is computed, so that a captured or
compiled pass serves with noise and without.
"""

from __future__ import annotations

from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.nets.layers import padded_linear
from voidrl.nets.spectral import full_precision


class NoisyLinear(nn.Module):
    """A linear layer with factorized Gaussian noise on weight and bias.

    With `full_precision` it is computed in the precision of its weights, under autocast too: the last layer
    before a loss.

    Args:
        inputs: Width of the input.
        outputs: Width of the output.
        sigma: σ₀; the noise of each weight starts at σ₀ / √inputs.
        full_precision: Whether autocast is ignored.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float, *, full_precision: bool = False) -> None:
        super().__init__()
        self.full_precision = full_precision
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))
        self.eps_in = nn.Buffer(torch.zeros(inputs))  # f(ε), not ε
        self.eps_out = nn.Buffer(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs) → (B, outputs), with the noise of the last draw."""
        weight = torch.addcmul(self.weight, self.weight_sigma, self.eps_out[:, None] * self.eps_in)
        bias = torch.addcmul(self.bias, self.bias_sigma, self.eps_out)
        return self._product(x, weight, bias)

    def without_noise(self, x: Tensor) -> Tensor:
        """(B, inputs) → (B, outputs) by μ alone, whatever was drawn."""
        return self._product(x, self.weight, self.bias)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if not self.full_precision:
            return padded_linear(x, weight, bias)
        with full_precision(x):
            return F.linear(x.to(weight.dtype), weight, bias)


@torch.no_grad()
def redraw_noise(*modules: nn.Module) -> None:
    """Draw new noise for all noisy layers below these modules, in place."""
    buffers = _noise(*modules)
    if buffers:  # one draw for all: the kernels are tiny, and a captured update pays for their number
        drawn = torch.randn(sum(map(len, buffers)), dtype=buffers[0].dtype, device=buffers[0].device)
        noise = drawn.sign() * drawn.abs().sqrt()
        torch._foreach_copy_(buffers, noise.split([len(buffer) for buffer in buffers]))


@torch.no_grad()
def silence(*modules: nn.Module) -> None:
    """Set the noise of all noisy layers below these modules to 0, in place, which leaves μ alone."""
    buffers = _noise(*modules)
    if buffers:
        torch._foreach_zero_(buffers)


def _noise(*modules: nn.Module) -> list[Tensor]:
    layers = chain.from_iterable(module.modules() for module in modules)
    return [
        eps for layer in layers if isinstance(layer, NoisyLinear) for eps in (layer.eps_in, layer.eps_out)
    ]
