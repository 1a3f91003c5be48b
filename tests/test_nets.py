"""Networks: sizes, bounds, precision, heads."""

import pytest
import torch
from helpers import seen_as
from torch import nn

from voidrl.config import EncoderConfig
from voidrl.errors import ConfigError
from voidrl.nets import DuelingQ, Encoder, TwinQ, mlp
from voidrl.nets.augment import to_layout
from voidrl.nets.layers import Conv, rescale
from voidrl.nets.spectral import SpectralNorm
from voidrl.types import Layout

SMALLEST = {"nature": 36, "drq": 15, "paper": 31, "small": 25, "tiny": 5, "impala": 1}


FLAT = {"nature": 64 * 7**2, "drq": 32 * 35**2, "paper": 32 * 7**2, "small": 576, "impala": 32 * 11**2}


@pytest.mark.parametrize(("stack", "side"), SMALLEST.items())
def test_features_of_a_stack_alone_and_the_smallest_image(stack, side):
    if stack in FLAT:
        encoder = Encoder(seen_as((9, 84, 84)), EncoderConfig(stack, feature_dim=0))
        shape = encoder(torch.zeros(2, 9, 84, 84, dtype=torch.uint8)).shape
        assert shape == (2, encoder.feature_dim) == (2, FLAT[stack])
    encoder = Encoder(seen_as((1, side, side + 3)), EncoderConfig(stack, feature_dim=5))
    assert encoder(torch.rand(3, 1, side, side + 3)).shape == (3, 5)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "fold"), [(8, 4, 4), (8, 4, 2), (3, 2, 2), (4, 2, 2), (5, 3, 3), (3, 1, 1)]
)
def test_folded_images_change_nothing(kernel, stride, fold, last):
    torch.manual_seed(0)
    layer, image = Conv(5, 4, kernel, stride), torch.randn(2, 5, 24, 36)
    layer.spectral = SpectralNorm(layer.weight, 2)
    layer.layout = Layout(fold, 8)
    layer.eval()
    folded = to_layout(image, layer.layout)
    assert folded.shape[1] % 8 == 0
    expected = layer(image)
    gradient = torch.autograd.grad(expected.square().sum(), layer.weight)[0]
    if last:
        layer.to(memory_format=torch.channels_last)
    y = layer(folded)
    assert torch.allclose(y, expected, atol=1e-5)
    assert torch.allclose(
        torch.autograd.grad(y.square().sum(), layer.weight)[0], gradient, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("shape", [(7,), (3, 84, 84)])
def test_vectors_need_the_mlp_and_images_need_convolutions(shape):
    seen, expected = ("vectors of 7", "mlp") if len(shape) == 1 else ("images of 3×84×84", "nature or drq")
    for stack in ("nature", "impala", "auto") if len(shape) == 1 else ("mlp", "auto"):
        with pytest.raises(ConfigError, match=f"'{stack}' cannot read {seen}: expected {expected}"):
            Encoder(seen_as(shape), EncoderConfig(stack))


# --- precision --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [0, 2])
@pytest.mark.parametrize("stack", [*SMALLEST, "mlp"])
def test_features_are_float32_under_autocast(stack, iterations):
    torch.manual_seed(0)
    shape = (6,) if stack == "mlp" else (3, 40, 40)
    config = EncoderConfig(stack, feature_dim=5, hidden_dim=32, spectral_norm_iterations=iterations)
    encoder = Encoder(seen_as(shape), config).eval()
    obs = torch.randn(4, *shape) if stack == "mlp" else torch.randint(256, (4, *shape), dtype=torch.uint8)
    inputs = []
    encoder.trunk[-2].register_forward_hook(lambda module, args, out: inputs.append((args[0], out)))
    with torch.autocast("cpu", torch.bfloat16):
        z = encoder(obs)
    ((before, normal),) = inputs
    assert before.dtype == torch.bfloat16  # the network's own products are cast
    assert z.dtype == normal.dtype == torch.float32
    assert torch.equal(z, nn.functional.layer_norm(before.float(), (5,)).tanh())
    assert torch.allclose(z, encoder(obs), atol=0.1)


@pytest.mark.parametrize("dueling", [False, True])
def test_values_and_actions_are_float32_under_autocast(dueling):
    torch.manual_seed(0)
    x, skill, action = torch.randn(16, 5), torch.zeros(16, 0), torch.randn(16, 2)
    calls = [
        (mlp([5, 32, 32, 3]), (x,)),
        (DuelingQ(5, 4, 32, 1, dueling), (x, skill)),
        (DuelingQ(5, 4, 32, 1, dueling, outputs=3, noisy_sigma=0.5), (x, skill)),
        (TwinQ(7, 32, 2), (x, skill, action)),
    ]
    for network, inputs in calls:
        with torch.autocast("cpu", torch.bfloat16):
            y = network(*inputs)
        assert y.dtype == torch.float32
        # bf16 has 8 bits: a sum of 32 rounded products is off by less than that, but values are not rounded
        assert torch.allclose(y, network(*inputs), atol=0.03)
        assert not torch.equal(y, y.bfloat16().float())
        y.sum().backward()
        assert all(p.grad.dtype == torch.float32 for p in network.parameters())


# --- heads ------------------------------------------------------------------------------------------------


def test_twin_heads_are_two_separate_networks():
    torch.manual_seed(0)
    twin = TwinQ(9, 16, 2)
    features, skill, action = torch.randn(5, 4), torch.randn(5, 2), torch.randn(5, 3)
    q = twin(features, skill, action)
    assert q.shape == (2, 5)
    layers = [m for m in twin.layers if not isinstance(m, nn.ReLU)]
    for head in range(2):
        single = mlp([9, 16, 16, 1])
        for linear, ensemble in zip(single[::2], layers, strict=True):
            linear.weight.data = ensemble.weight.data[head].T
            linear.bias.data = torch.randn_like(linear.bias)
            ensemble.bias.data[head, 0] = linear.bias.data
        expected = single(torch.cat([features, skill, action], -1)).squeeze(-1)
        assert torch.allclose(twin(features, skill, action)[head], expected, atol=1e-5)
    assert not torch.allclose(q[0], q[1])
    twin(features, skill, action)[0].sum().backward()
    assert all(layer.weight.grad[0].any() and not layer.weight.grad[1].any() for layer in layers)


@pytest.mark.parametrize("noisy_sigma", [0.0, 0.5])
@pytest.mark.parametrize("shared_hidden", [False, True])
def test_logits_of_atoms_are_dueling_in_each_atom(noisy_sigma, shared_hidden):
    torch.manual_seed(0)
    options = {"outputs": 5, "noisy_sigma": noisy_sigma, "shared_hidden": shared_hidden}
    head = DuelingQ(6, 4, 16, 1, dueling=True, **options)
    features, skill = torch.randn(3, 4), torch.randn(3, 2)
    logits = head(features, skill)
    assert logits.shape == (3, 4, 5)
    x = head.hidden(torch.cat([features, skill], -1))
    torch.testing.assert_close(logits.mean(1), head.value(x))
    # A constant added to all advantages of an atom changes nothing; one for a single action does.
    with torch.no_grad():
        head.advantage[-1].bias.view(4, 5).add_(torch.randn(5))
    torch.testing.assert_close(head(features, skill), logits)
    with torch.no_grad():
        head.advantage[-1].bias[0] += 1
    moved = head(features, skill) - logits
    torch.testing.assert_close(moved[..., 0], torch.tensor([0.75, -0.25, -0.25, -0.25]).expand(3, -1))
    torch.testing.assert_close(moved[..., 1:], torch.zeros(3, 4, 4))
    plain = DuelingQ(6, 4, 16, 1, dueling=False, **options)
    x = plain.hidden(torch.cat([features, skill], -1))
    assert torch.equal(plain(features, skill).flatten(1), plain.advantage(x))


@pytest.mark.parametrize(("stack", "shape"), [("small", (2, 40, 40)), ("mlp", (5,))])
def test_rescaled_latents_reach_from_zero_to_one_in_each_sample(stack, shape):
    torch.manual_seed(0)
    hidden = 6 if stack == "mlp" else 0
    encoder = Encoder(seen_as(shape), EncoderConfig(stack, feature_dim=0, hidden_dim=hidden, rescale=True))
    obs = torch.randn(3, *shape)
    latent, features = encoder.latent(obs), encoder(obs)
    assert torch.equal(features, latent.flatten(1))
    torch.testing.assert_close(features.amin(1), torch.zeros(3))
    torch.testing.assert_close(features.amax(1), torch.ones(3), atol=1e-3, rtol=0)
    plain = encoder.stack(obs) if encoder.pixels else encoder.trunk(obs)
    assert torch.equal(latent, rescale(plain))
    torch.testing.assert_close(latent[:1], encoder.latent(obs[:1]))  # each sample by itself
