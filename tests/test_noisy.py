"""Noisy linear layers: their distribution, drawing and silencing, and targets."""

import math

import pytest
import torch
from torch import nn

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


def test_mean_and_variance_of_outputs():
    # f(ε)² = |ε| has mean √(2/π), and factors are independent: Var[w_ij] = σ² · 2/π, Var[b_i] = σ² √(2/π).
    torch.manual_seed(0)
    layer, x = NoisyLinear(3, 2, 0.7), torch.tensor([[1.0, -2.0, 0.5]])
    draws = []
    with torch.no_grad():
        for _ in range(2000):
            redraw_noise(layer)
            draws.append(layer(x)[0])
        drawn = torch.stack(draws)  # (2000, 2)
        expected = layer.without_noise(x)[0]
    sigma2, mean_abs = 0.7**2 / 3, math.sqrt(2 / math.pi)
    variance = sigma2 * (mean_abs**2 * x.square().sum().item() + mean_abs)
    assert drawn.mean(0).tolist() == pytest.approx(expected.tolist(), abs=4 * math.sqrt(variance / 2000))
    assert drawn.var(0).tolist() == pytest.approx([variance] * 2, rel=0.2)
    # Both outputs share the inputs' noise, but not its sign.
    centered = drawn - drawn.mean(0)
    assert abs((centered[:, 0] * centered[:, 1]).mean().item()) < 0.15 * variance


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


def test_layers_and_networks_draw_separately():
    torch.manual_seed(0)
    one, other = (nn.Sequential(NoisyLinear(50, 50, 0.5), NoisyLinear(50, 50, 0.5)) for _ in range(2))
    redraw_noise(one, other)
    noise = [*one.buffers(), *other.buffers()]
    assert len(noise) == 8
    gram = torch.corrcoef(torch.stack(noise))
    assert (gram - torch.eye(8)).abs().max() < 0.6


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


def test_hidden_noisy_layers_are_bf16_under_autocast_and_the_last_is_not():
    torch.manual_seed(0)
    hidden, last = NoisyLinear(5, 3, 0.5), NoisyLinear(5, 3, 0.5, full_precision=True)
    redraw_noise(hidden, last)
    x = torch.randn(7, 5)
    plain = hidden(x), last(x)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = hidden(x)
        assert rounded.dtype == torch.bfloat16
        assert torch.equal(last(x), plain[1])
        assert last.without_noise(x).dtype == torch.float32
    torch.testing.assert_close(rounded.float(), plain[0], atol=0.05, rtol=0)
