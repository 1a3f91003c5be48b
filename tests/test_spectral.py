"""Spectral normalization: the estimate, its gradient, and that it is torch's."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from voidrl.nets.spectral import SpectralNorm

SHAPES = {
    "convolution": (32, 9, 3, 3),
    "few columns": (64, 1, 3, 3),
    "one row": (1, 20),
    "wide": (15, 700),
    "narrow": (300, 8),
    "large": (140, 150),
    "few rows, many entries": (9, 15_000),
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def weight(request):
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(request.param))


def largest(weight):
    return torch.linalg.matrix_norm(weight.detach().double().flatten(1), 2).item()


def torchs(weight, norm, iterations):
    """A layer normalized by torch, from the same weight and vectors."""
    kind = nn.Linear if weight.ndim == 2 else nn.Conv2d
    size = [] if weight.ndim == 2 else [weight.shape[2:]]
    layer = kind(weight.shape[1], weight.shape[0], *size, bias=False)
    layer.weight.data.copy_(weight.detach())
    spectral_norm(layer, n_power_iterations=iterations)
    layer.parametrizations.weight[0]._u.copy_(norm.u)
    layer.parametrizations.weight[0]._v.copy_(norm.v.flatten())
    return layer


def moved(norm):
    """Its vectors somewhere else."""
    for vector in norm.buffers():
        vector.normal_()
        vector.div_(vector.norm())
    return norm


@pytest.mark.parametrize("iterations", [1, 2, 3, 5, 6, 13])
def test_a_training_pass_is_torchs(weight, iterations):
    norm = moved(SpectralNorm(weight, iterations))
    layer = torchs(weight, norm, iterations)
    theirs, ours = layer.weight, norm(weight)
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    state = layer.parametrizations.weight[0]
    assert torch.allclose(norm.u, state._u, atol=1e-4)
    assert torch.allclose(norm.v.flatten(), state._v, atol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_the_gradient_is_torchs(weight, training):
    norm = SpectralNorm(weight, 3).train(training)
    with torch.no_grad():
        weight += 0.3 * torch.randn_like(weight)
    layer = torchs(weight, norm, 3).train(training)
    direction = torch.randn_like(weight)
    (layer.weight * direction).sum().backward()
    (norm(weight) * direction).sum().backward()
    expected = layer.parametrizations.weight.original.grad
    assert torch.allclose(weight.grad, expected, rtol=1e-3, atol=1e-5 * expected.abs().max())


@pytest.mark.parametrize("scale", [1e-25, 1e-20, 1e-8, 1e8, 1e20])
def test_the_scale_of_a_weight_does_not_matter(weight, scale):
    norm = SpectralNorm(weight, 5)
    with torch.no_grad():
        weight.mul_(scale)
    for mode in (True, False):
        normal = norm.train(mode)(weight)
        assert largest(normal) == pytest.approx(1, abs=0.1)
    (gradient,) = torch.autograd.grad(normal.sum(), weight)
    assert torch.isfinite(gradient).all()
