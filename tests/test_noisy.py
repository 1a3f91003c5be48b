"""Noisy linear layers: their distribution, drawing and silencing, and targets."""

import math

import pytest
import torch

from voidrl.nets import DuelingQ, NoisyLinear, polyak_update, redraw_noise, silence, target_copy


def test_initial_weights_and_noise():
    torch.manual_seed(0)
    layer = NoisyLinear(400, 100, 0.5)
    assert layer.weight.abs().max() <= 1 / 20
    assert layer.weight.std().item() == pytest.approx(1 / 20 / math.sqrt(3), rel=0.02)
    assert 0 < layer.bias.abs().max() <= 1 / 20
    assert (layer.weight_sigma == 0.025).all()
    assert (layer.bias_sigma == 0.025).all()
    assert not layer.eps_in.any()
    assert not layer.eps_out.any()
    x = torch.randn(3, 400)
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)  # none is drawn yet


def test_outputs_by_hand():
    layer = NoisyLinear(2, 1, 0.0)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.bias.fill_(3.0)
        layer.weight_sigma.copy_(torch.tensor([[10.0, 20.0]]))
        layer.bias_sigma.fill_(30.0)
        layer.eps_in.copy_(torch.tensor([0.5, -1.0]))
        layer.eps_out.fill_(2.0)
    # W = (1 + 10 · 2 · 0.5, 2 − 20 · 2 · 1) = (11, −38), b = 3 + 30 · 2 = 63
    assert layer(torch.tensor([[1.0, 1.0]])).item() == 11 - 38 + 63
    assert layer.without_noise(torch.tensor([[1.0, 1.0]])).item() == 6


def test_noise_is_drawn_and_silenced_in_place_for_all_layers_below():
    torch.manual_seed(0)
    head = DuelingQ(6, 4, 16, 1, dueling=True, outputs=3, noisy_sigma=0.5)
    buffers = dict(head.named_buffers())
    assert len(buffers) == 8
    addresses = {name: buffer.data_ptr() for name, buffer in buffers.items()}
    features, skill = torch.randn(5, 6), torch.zeros(5, 0)
    quiet = head(features, skill)
    redraw_noise(head)
    first = head(features, skill)
    assert torch.equal(first, head(features, skill))  # one draw until the next
    assert all(buffer.all() for buffer in buffers.values())
    redraw_noise(head)
    second = head(features, skill)
    assert not torch.allclose(first, second)
    assert not torch.allclose(first, quiet)
    silence(head)
    assert torch.equal(head(features, skill), quiet)
    assert {name: buffer.data_ptr() for name, buffer in head.named_buffers()} == addresses


def test_noise_is_learned_through_sigma():
    torch.manual_seed(0)
    layer, x = NoisyLinear(4, 3, 0.5), torch.randn(2, 4)
    redraw_noise(layer)
    layer(x).sum().backward()
    outer = layer.eps_out[:, None] * layer.eps_in
    torch.testing.assert_close(layer.weight_sigma.grad, layer.weight.grad * outer)
    torch.testing.assert_close(layer.bias_sigma.grad, layer.bias.grad * layer.eps_out)
    silence(layer)
    layer.zero_grad()
    layer(x).sum().backward()
    assert not layer.weight_sigma.grad.any()
    assert layer.weight.grad.any()


def test_a_target_follows_weights_and_noise_scales_and_draws_its_own_noise():
    torch.manual_seed(0)
    online = NoisyLinear(4, 3, 0.5)
    redraw_noise(online)
    target = target_copy(online)
    assert not any(parameter.requires_grad for parameter in target.parameters())
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.add_(1.0)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    redraw_noise(online)
    polyak_update(target, online, 0.25)
    for name, value in target.state_dict().items():
        moved = 0.0 if name.startswith("eps_") else 0.25
        torch.testing.assert_close(value, before[name] + moved)
