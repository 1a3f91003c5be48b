"""Noisy layers, products in TF32, and targets that follow networks."""

import pytest
import torch
from helpers import seen_as, shake
from torch import nn

from voidrl.config import EncoderConfig
from voidrl.nets import DuelingQ, Encoder, TF32Linear, polyak_update, target_copy
from voidrl.nets.layers import tf32_mm
from voidrl.nets.noisy import NoisyLinear, redraw_noise, silence


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


def test_values_and_gradients_are_those_of_a_plain_product():
    torch.manual_seed(0)
    a, b = torch.randn(7, 5, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    weights = torch.randn(7, 3)
    torch.testing.assert_close(tf32_mm(a, b), a @ b)
    ours = torch.autograd.grad((tf32_mm(a, b) * weights).sum(), (a, b))
    torch.testing.assert_close(ours, torch.autograd.grad((a @ b * weights).sum(), (a, b)))


def test_a_layer_is_not_rounded_to_bf16_by_autocast():
    layer, x = TF32Linear(5, 3), torch.randn(7, 5)
    plain = torch.nn.functional.linear(x, layer.weight, layer.bias)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(x), plain)
        assert layer(x.bfloat16()).dtype == torch.float32


STACKS = ("nature", "drq", "paper", "impala", "mlp")


# --- targets ----------------------------------------------------------------------------------------------


class Counted(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), value))
        self.mean = nn.Buffer(torch.full((3,), 10 * value))
        self.count = nn.Buffer(torch.tensor(int(value)))


def test_a_target_is_an_exponential_average_of_weights_and_buffers():
    target, online = Counted(1.0), Counted(3.0)
    for expected in (1.5, 1.875):
        polyak_update(target, online, 0.25)
        assert target.weight.tolist() == [expected] * 2
        assert target.mean.tolist() == [10 * expected] * 3
        assert target.count == 1
    assert online.weight.tolist() == [3.0] * 2
    polyak_update(target, online, 1.0)
    assert torch.equal(target.weight, online.weight)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("stack", STACKS)
def test_a_target_is_the_function_of_a_normalized_network_without_normalization(stack, last):
    torch.manual_seed(0)
    shape = (6,) if stack == "mlp" else (3, 40, 40)
    sizes = {"feature_dim": 7, "hidden_dim": 9, "spectral_norm_iterations": 2}
    encoder, x = Encoder(seen_as(shape), EncoderConfig(stack, **sizes)), torch.randn(4, *shape)
    target = target_copy(encoder)
    if last:
        encoder.to(memory_format=torch.channels_last), target.to(memory_format=torch.channels_last)
    assert [n for n, _ in target.named_parameters()] == [n for n, _ in encoder.named_parameters()]
    assert not list(target.buffers())
    for _ in range(3):
        shake(encoder, 0.3).train()(x)
        shake(encoder, 0.1)
        polyak_update(target, encoder, 1.0)
        assert torch.equal(target.train()(x), encoder.eval()(x))
        assert torch.equal(target.eval()(x), encoder.eval()(x))
