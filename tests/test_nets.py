"""Networks: sizes, bounds, spectral norm, heads, target copies."""

import pytest
import torch
from torch import nn

from voidrl.config import EncoderConfig
from voidrl.errors import ConfigError
from voidrl.nets import DuelingQ, Encoder, TwinQ, activation, follow, mlp, target_copy

SMALLEST = {"nature": 36, "drq": 15, "paper": 31, "impala": 1}


def weights(module):
    return [m.weight for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


@pytest.mark.parametrize(
    ("stack", "flat"),
    [("nature", 64 * 7 * 7), ("drq", 32 * 35 * 35), ("paper", 32 * 7 * 7), ("impala", 32 * 11 * 11)],
)
def test_features_of_a_stack_alone(stack, flat):
    encoder = Encoder((9, 84, 84), EncoderConfig(stack, feature_dim=0))
    assert encoder.feature_dim == flat
    assert encoder(torch.zeros(2, 9, 84, 84, dtype=torch.uint8)).shape == (2, flat)


@pytest.mark.parametrize(("stack", "side"), SMALLEST.items())
def test_the_smallest_image(stack, side):
    encoder = Encoder((1, side, side + 3), EncoderConfig(stack, feature_dim=5))
    assert encoder(torch.rand(3, 1, side, side + 3)).shape == (3, 5)
    if side > 1:
        with pytest.raises(ConfigError) as caught:
            Encoder((1, side - 1, side), EncoderConfig(stack))
        assert f"{stack!r} cannot read images of {side - 1}×{side}: they are too small" in str(caught.value)


@pytest.mark.parametrize("stack", [*SMALLEST, "mlp"])
@pytest.mark.parametrize("hidden_dim", [0, 33])
def test_features_end_in_layer_norm_and_tanh(stack, hidden_dim):
    shape = (6,) if stack == "mlp" else (2, 40, 40)
    encoder = Encoder(shape, EncoderConfig(stack, feature_dim=15, hidden_dim=hidden_dim))
    z = encoder(1000 * torch.randn(7, *shape))
    assert z.shape == (7, 15)
    assert encoder.feature_dim == 15
    assert (z.abs() < 1).all()
    normal = z.atanh()
    assert torch.allclose(normal.mean(1), torch.zeros(7), atol=1e-4)
    assert torch.allclose(normal.var(1, unbiased=False), torch.ones(7), atol=1e-3)
    assert [type(m).__name__ for m in encoder.trunk][-3:] == ["Linear", "LayerNorm", "Tanh"]


def test_a_hidden_layer_alone_is_the_output():
    encoder = Encoder((6,), EncoderConfig("mlp", feature_dim=0, hidden_dim=11, activation="relu"))
    z = encoder(torch.randn(50, 6))
    assert z.shape == (50, 11)
    assert (z >= 0).all()
    assert (z > 0).any()
    assert encoder.feature_dim == 11


def test_a_vector_without_layers_is_itself():
    x = torch.randn(4, 6)
    assert torch.equal(Encoder((6,), EncoderConfig("mlp", feature_dim=0))(x), x)


@pytest.mark.parametrize(
    ("name", "kind", "at_minus_one"), [("elu", nn.ELU, -0.6321206), ("relu", nn.ReLU, 0.0)]
)
@pytest.mark.parametrize("stack", SMALLEST)
def test_activations(name, kind, at_minus_one, stack):
    assert activation(name)(torch.tensor(-1.0)).item() == pytest.approx(at_minus_one)
    encoder = Encoder((1, 40, 40), EncoderConfig(stack, activation=name, hidden_dim=8))
    other = nn.ReLU if kind is nn.ELU else nn.ELU
    assert any(isinstance(m, kind) for m in encoder.modules())
    assert not any(isinstance(m, other) for m in encoder.modules())


@pytest.mark.parametrize("stack", SMALLEST)
def test_bytes_and_floats_in_the_unit_interval_are_the_same_image(stack):
    encoder = Encoder((3, 40, 40), EncoderConfig(stack))
    image = torch.randint(256, (2, 3, 40, 40), dtype=torch.uint8)
    assert torch.allclose(encoder(image), encoder(image.float() / 255), atol=1e-6)
    plain = Encoder((3, 40, 40), EncoderConfig(stack, feature_dim=0))
    assert not plain(torch.full((1, 3, 40, 40), 0.5)).any()  # the middle of the interval is zero
    assert plain(torch.zeros(1, 3, 40, 40)).any()


@pytest.mark.parametrize(
    ("stack", "channels"), [("nature", [32, 64, 64]), ("drq", [32] * 4), ("paper", [32] * 4)]
)
def test_width_multiplies_channels(stack, channels):
    for width in (0.5, 1.0, 2.0, 0.001):
        encoder = Encoder((3, 84, 84), EncoderConfig(stack, width=width))
        convolutions = [m for m in encoder.modules() if isinstance(m, nn.Conv2d)]
        assert [c.out_channels for c in convolutions] == [max(1, int(c * width)) for c in channels]


def test_impala_has_fifteen_convolutions():
    encoder = Encoder((3, 84, 84), EncoderConfig("impala", width=2.0))
    out = [m.out_channels for m in encoder.modules() if isinstance(m, nn.Conv2d)]
    assert out == [32] * 5 + [64] * 10


def test_strides_are_the_ones_written_down():
    strides = {
        stack: [
            m.stride[0] for m in Encoder((3, 84, 84), EncoderConfig(stack)).stack if isinstance(m, nn.Conv2d)
        ]
        for stack in ("nature", "drq", "paper")
    }
    assert strides == {"nature": [4, 2, 1], "drq": [2, 1, 1, 1], "paper": [2, 2, 2, 1]}


@pytest.mark.parametrize("stack", ["nature", "impala", "drq", "paper", "auto"])
def test_vectors_need_the_mlp(stack):
    with pytest.raises(ConfigError, match=f"'{stack}' cannot read vectors of 7: expected mlp"):
        Encoder((7,), EncoderConfig(stack))


@pytest.mark.parametrize("stack", ["mlp", "auto"])
def test_images_need_convolutions(stack):
    with pytest.raises(ConfigError, match=f"'{stack}' cannot read images of 3×84×84: expected nature or drq"):
        Encoder((3, 84, 84), EncoderConfig(stack))


# --- spectral norm ----------------------------------------------------------------------------------------


def norms(encoder):
    return [torch.linalg.matrix_norm(w.flatten(1), 2).item() for w in weights(encoder)]


@pytest.mark.parametrize("stack", ["nature", "impala", "mlp"])
def test_spectral_norm_holds_the_largest_singular_value_at_one(stack):
    torch.manual_seed(0)
    shape = (20,) if stack == "mlp" else (4, 40, 40)
    config = EncoderConfig(stack, hidden_dim=32, spectral_norm_iterations=5)
    encoder = Encoder(shape, config)
    with torch.no_grad():  # far from where it began
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter))
    for _ in range(20):
        encoder(torch.rand(2, *shape))
    assert norms(encoder) == pytest.approx([1.0] * len(weights(encoder)), abs=0.03)
    free = Encoder(shape, EncoderConfig(stack, hidden_dim=32))
    with torch.no_grad():
        for weight in weights(free):
            weight.mul_(5)
    assert min(norms(free)) > 4


@pytest.mark.parametrize("iterations", [1, 3])
def test_each_training_pass_runs_the_given_number_of_power_iterations(iterations):
    torch.manual_seed(0)
    encoder = Encoder((8,), EncoderConfig("mlp", feature_dim=6, spectral_norm_iterations=iterations))
    (linear,) = [m for m in encoder.trunk if isinstance(m, nn.Linear)]
    norm = linear.parametrizations.weight[0]
    matrix = linear.parametrizations.weight.original.detach()
    with torch.no_grad():
        matrix.add_(torch.randn_like(matrix))
    u, v = norm._u.clone(), norm._v.clone()
    encoder(torch.randn(2, 8))
    for _ in range(iterations):
        u = nn.functional.normalize(matrix @ v, dim=0)
        v = nn.functional.normalize(matrix.T @ u, dim=0)
    assert torch.allclose(norm._u, u, atol=1e-6)
    assert torch.allclose(norm._v, v, atol=1e-6)
    encoder.eval()
    encoder(torch.randn(2, 8))
    assert torch.allclose(norm._u, u, atol=1e-6)


# --- heads ------------------------------------------------------------------------------------------------


def test_mlp_has_no_activation_at_its_end():
    network = mlp([3, 5, 7, 2], "elu")
    assert [type(m).__name__ for m in network] == ["Linear", "ELU", "Linear", "ELU", "Linear"]
    for linear in network[::2]:
        short = min(linear.weight.shape)
        gram = (
            linear.weight @ linear.weight.T
            if linear.weight.shape[0] == short
            else linear.weight.T @ linear.weight
        )
        assert torch.allclose(gram, torch.eye(short), atol=1e-5)
        assert not linear.bias.any()


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


def test_twin_heads_may_be_vectors():
    q = TwinQ(5, 8, 1, outputs=3)(torch.randn(1, 2), torch.randn(1, 1), torch.randn(1, 2))
    assert q.shape == (2, 1, 3)
    assert TwinQ(5, 8, 1)(torch.randn(1, 2), torch.randn(1, 1), torch.randn(1, 2)).shape == (2, 1)


def test_dueling_advantages_have_mean_zero():
    torch.manual_seed(0)
    head = DuelingQ(6, 4, 16, 1, dueling=True)
    features, skill = torch.randn(5, 4), torch.randn(5, 2)
    q = head(features, skill)
    x = torch.cat([features, skill], -1)
    assert torch.allclose(q.mean(1, keepdim=True), head.value(x), atol=1e-6)
    advantage = head.advantage(x)
    assert torch.allclose(q - q[:, :1], advantage - advantage[:, :1], atol=1e-6)
    plain = DuelingQ(6, 4, 16, 1, dueling=False)
    assert torch.equal(plain(features, skill), plain.advantage(x))


# --- targets ----------------------------------------------------------------------------------------------


class Counted(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), value))
        self.register_buffer("mean", torch.full((3,), 10 * value))
        self.register_buffer("count", torch.tensor(int(value)))


def test_follow_is_an_exponential_average_of_weights_and_buffers():
    target, online = Counted(1.0), Counted(3.0)
    follow(target, online, 0.25)
    assert target.weight.tolist() == [1.5] * 2
    assert target.mean.tolist() == [15.0] * 3
    assert target.count == 1
    follow(target, online, 0.25)
    assert target.weight.tolist() == [1.875] * 2
    assert online.weight.tolist() == [3.0] * 2
    follow(target, online, 1.0)
    assert torch.equal(target.weight, online.weight)


def test_a_target_is_a_frozen_copy_of_its_own():
    encoder = Encoder((4,), EncoderConfig("mlp", spectral_norm_iterations=2))
    target = target_copy(encoder)
    x = torch.randn(3, 4)
    assert torch.equal(target.eval()(x), encoder.eval()(x))
    assert not any(p.requires_grad for p in target.parameters())
    assert all(p.requires_grad for p in encoder.parameters())
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter))
    before = target(x)
    assert torch.equal(target(x), before)
    encoder.train()(x)
    follow(target, encoder, 1.0)
    assert torch.allclose(target(x), encoder.eval()(x), atol=1e-6)
    assert not torch.allclose(target(x), before)
