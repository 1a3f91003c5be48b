"""Networks under spectral normalization, and targets that follow them."""

import pytest
import torch
from helpers import seen_as, shake
from torch import nn

from voidrl.config import EncoderConfig
from voidrl.nets import Encoder, polyak_update, target_copy
from voidrl.nets.spectral import SpectralNorm

STACKS = ("nature", "drq", "paper", "impala", "mlp")


def weights(module):
    """As they are used."""
    layers = [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    return [
        layer.weight if layer.spectral is None else layer.spectral.effective(layer.weight) for layer in layers
    ]


def norms(encoder):
    return [torch.linalg.matrix_norm(w.flatten(1), 2).item() for w in weights(encoder)]


def test_every_layer_of_an_encoder_is_normalized_and_keeps_its_name():
    config = {"stack": "impala", "hidden_dim": 8, "feature_dim": 4}
    normed = Encoder(seen_as((3, 20, 20)), EncoderConfig(**config, spectral_norm_iterations=1))
    plain = Encoder(seen_as((3, 20, 20)), EncoderConfig(**config))
    assert [n for n, _ in normed.named_parameters()] == [n for n, _ in plain.named_parameters()]
    assert len([m for m in normed.modules() if isinstance(m, SpectralNorm)]) == 15 + 2
    assert not [m for m in plain.modules() if isinstance(m, SpectralNorm)]
    assert {n for n in normed.state_dict() if n.startswith("stack.0.")} == {
        "stack.0.weight",
        "stack.0.bias",
        "stack.0.spectral.u",
        "stack.0.spectral.v",
    }


# --- targets ----------------------------------------------------------------------------------------------


class Counted(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), value))
        self.register_buffer("mean", torch.full((3,), 10 * value))
        self.register_buffer("count", torch.tensor(int(value)))


def test_follow_is_an_exponential_average_of_weights_and_buffers():
    target, online = Counted(1.0), Counted(3.0)
    polyak_update(target, online, 0.25)
    assert target.weight.tolist() == [1.5] * 2
    assert target.mean.tolist() == [15.0] * 3
    assert target.count == 1
    polyak_update(target, online, 0.25)
    assert target.weight.tolist() == [1.875] * 2
    assert online.weight.tolist() == [3.0] * 2
    polyak_update(target, online, 1.0)
    assert torch.equal(target.weight, online.weight)


def normed_encoder(stack):
    torch.manual_seed(0)
    shape = (6,) if stack == "mlp" else (3, 40, 40)
    encoder = Encoder(
        seen_as(shape), EncoderConfig(stack, feature_dim=7, hidden_dim=9, spectral_norm_iterations=2)
    )
    return encoder, torch.randn(4, *shape)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("stack", STACKS)
def test_a_target_is_the_function_of_a_normalized_network_without_normalization(stack, last):
    encoder, x = normed_encoder(stack)
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


def test_a_target_stands_still_in_training_mode():
    encoder, x = normed_encoder("mlp")
    target = target_copy(encoder).train()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    for _ in range(3):
        target(x)
    assert all(torch.equal(before[name], value) for name, value in target.state_dict().items())
    assert largest_norm(target) < 1.01
    for _ in range(30):  # averages of matrices of norm 1 have at most norm 1
        shake(encoder, 0.2).train()
        for _ in range(10):
            encoder(x)
        polyak_update(target, encoder, 0.1)
        assert largest_norm(target) < 1.05


def largest_norm(module):
    return max(norms(module))
