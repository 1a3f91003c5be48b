"""The convolution kernels against plain PyTorch, on the device or in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from helpers import KERNEL_DEVICES, needs_cuda

from voidrl.config import EncoderConfig
from voidrl.kernels import conv, conv_check
from voidrl.kernels.conv import conv_stack, suits
from voidrl.nets import Encoder
from voidrl.nets.encoder import ConvStack, check_convolutions
from voidrl.types import EnvSpec

pytestmark = pytest.mark.parametrize("device", KERNEL_DEVICES)


def shapes(weights):
    return [weight.shape for weight in weights]


def conv_stack_reference(x, weights, biases, strides, activation):
    """The stack in plain PyTorch, in the precision of x."""
    for weight, bias, stride in zip(weights, biases, strides, strict=True):
        x = F.conv2d(x[:, : weight.shape[1]], weight.to(x.dtype), bias.to(x.dtype), stride)
        x = F.elu(x) if activation == "elu" else F.relu(x)
    return x


STACKS = {  # batch, image size, channels, padded channels, layers (out channels, kernel, stride), activation
    "pairs": (3, 16, 16, 16, [(16, 3, 2), (32, 3, 1), (32, 3, 1)], "elu"),
    "padded": (2, 13, 9, 16, [(32, 3, 2), (32, 3, 1)], "elu"),
    "strided": (3, 27, 9, 16, [(32, 3, 2), (32, 3, 2), (32, 3, 2)], "relu"),
    "nature": (2, 36, 4, 16, [(32, 8, 4), (64, 4, 2), (64, 3, 1)], "relu"),
    "odd": (2, 14, 16, 16, [(48, 3, 1), (16, 4, 3)], "elu"),
    "one": (1, 5, 4, 16, [(16, 5, 1)], "relu"),
}


@pytest.fixture(autouse=True)
def few_programs(device, monkeypatch):
    if device == "cpu":  # the interpreter's time goes with their number
        monkeypatch.setattr(conv, "PACK_BLOCK", 1 << 16)
        monkeypatch.setattr(conv, "GATHER_BLOCK", 1 << 15)
        monkeypatch.setattr(conv, "GATHER_PROGRAMS", 2)


def rounded(*shape, scale=1.0):
    return (torch.randn(shape) * scale).bfloat16().float()


def make(name, device):
    """The input, weights and biases with values that bfloat16 holds exactly, strides and the activation."""
    torch.manual_seed(0)
    batch, size, channels, padded, layers, activation = STACKS[name]
    x = torch.zeros(batch, padded, size, size)
    x[:, :channels] = rounded(batch, channels, size, size)
    weights, biases = [], []
    for out, kernel, _ in layers:
        weights.append(rounded(out, channels, kernel, kernel, scale=1.4 / kernel / channels**0.5))
        biases.append(torch.randn(out) * 0.2)
        channels = out
    x = x.to(device).contiguous(memory_format=torch.channels_last)
    parameters = [[p.to(device).requires_grad_() for p in ps] for ps in (weights, biases)]
    return x, *parameters, [stride for *_, stride in layers], activation


def close(actual, expected, tolerance=0.02):
    assert actual.shape == expected.shape
    error = (actual.float() - expected).norm() / expected.norm()
    assert error < tolerance, f"relative error {error:.3g}"


def gradients(function, stack, grad_out, x=None):
    x = stack[0] if x is None else x
    y = function(x, *stack[1:])
    return y, torch.autograd.grad(y, [*stack[1], *stack[2]], grad_out.to(y.dtype))


@pytest.mark.parametrize("name", STACKS)
def test_results_and_all_gradients_equal_the_reference(name, device):
    stack = make(name, device)
    assert suits(stack[0], shapes(stack[1]), stack[3])
    with torch.no_grad():
        grad_out = torch.randn_like(conv_stack_reference(*stack))
    expected, expected_gradients = gradients(conv_stack_reference, stack, grad_out)
    y, actual_gradients = gradients(conv_stack, stack, grad_out, stack[0].bfloat16())
    assert y.dtype == torch.bfloat16
    assert y.is_contiguous(memory_format=torch.channels_last)
    close(y, expected)
    for actual, wanted in zip(actual_gradients, expected_gradients, strict=True):
        assert actual.dtype == torch.float32
        close(actual, wanted)


def test_the_input_has_a_gradient_too(device):
    stack = make("nature", device)
    x = stack[0].clone().requires_grad_()
    y = conv_stack_reference(x, *stack[1:])
    grad_out = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, grad_out)
    x = x.detach().bfloat16().requires_grad_()
    (actual,) = torch.autograd.grad(conv_stack(x, *stack[1:]), x, grad_out.bfloat16())
    close(actual, expected)


def test_operators_are_registered_as_they_behave(device):
    x, weights, biases, strides, _ = make("one", device)
    x = x.bfloat16()
    torch.library.opcheck(conv._forward, (x, weights, biases, strides, True, True))
    results = [y.detach() for y in conv._forward(x, weights, biases, strides, True, True)]
    weights = [weight.detach() for weight in weights]
    torch.library.opcheck(conv._backward, (results[-1], x, results, weights, strides, True, True))


@needs_cuda
@pytest.mark.parametrize("stride", [1, 2])
def test_many_rounds_do_not_overwrite_what_products_read(stride, device):
    """With few images a program takes a round or two, and its copies of later ones meet no product."""
    torch.manual_seed(0)
    x = (
        rounded(256, 32, 41, 41)
        .to(device, torch.bfloat16, memory_format=torch.channels_last)
        .requires_grad_()
    )
    weight, bias = (
        t.to(device).requires_grad_() for t in (rounded(32, 32, 3, 3, scale=0.1), torch.zeros(32))
    )
    rest = ([weight], [bias], [stride], "relu")
    y = conv_stack(x, *rest)
    grad_out = torch.randn_like(y)
    runs = [torch.autograd.grad(conv_stack(x, *rest), [x, weight, bias], grad_out) for _ in range(5)]
    for actual in runs[1:]:
        assert all(map(torch.equal, actual, runs[0]))
    plain = x.detach().float().requires_grad_()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        expected = conv_stack_reference(plain, *rest)
        wanted = torch.autograd.grad(expected, [plain, weight, bias], grad_out.float())
    # Where a sum is 0 up to its rounding, one of a million units is on here and off there.
    for actual, gradient in zip([y, *runs[0]], [expected, *wanted], strict=True):
        close(actual, gradient, 0.005)


@needs_cuda
def test_captured_in_a_graph(device):
    stack = make("pairs", device)
    x = stack[0].bfloat16()
    parameters = [*stack[1], *stack[2]]

    def step():
        return torch.autograd.grad(conv_stack(x, *stack[1:]).float().square().sum(), parameters)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert all(map(torch.equal, captured, step()))


# --- the check at the start of a run ------------------------------------------------------------------------


@pytest.fixture
def small_stack(device, monkeypatch):
    """Runs the check of an encoder of small images."""
    monkeypatch.setattr(conv_check, "IMAGES", 4)
    monkeypatch.setattr(ConvStack, "trusts_kernels", True)  # and again after the test

    def check(stack="drq", frame_shape=(3, 20, 20)):
        spec = EnvSpec(frame_shape, True, 4, num_actions=3)
        encoder = Encoder(spec, EncoderConfig(stack=stack, width=0.5, feature_dim=8)).to(device)
        said = []
        check_convolutions(encoder, torch.device(device), said.append)
        return ConvStack.trusts_kernels, said

    return check


def test_convolutions_that_agree_are_used(small_stack, monkeypatch):
    """ReLU, as `nature` has it, makes other units active in bfloat16 than in float32: no reason to refuse."""
    compared, mismatch = [], conv_check.mismatch

    def compare(*args):
        before = torch.get_rng_state()
        compared.append(mismatch(*args))
        assert torch.equal(before, torch.get_rng_state())  # a run draws what it would draw without the check
        return compared[-1]

    monkeypatch.setattr(conv_check, "mismatch", compare)
    assert small_stack("nature", (1, 40, 40)) == (True, [])
    assert compared == [""]


class Scaled(torch.autograd.Function):
    """Twice the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (Scaled.apply, "gradient of weight 0 is off by"),
        (lambda y: y + 1e-3 * torch.randn_like(y), "output differs between equal calls"),
        pytest.param(lambda y: y.no_such_thing, "AttributeError", marks=pytest.mark.slow),
    ],
    ids=["gradient", "race", "error"],
)
def test_where_they_do_not_agree_pytorchs_are_used(small_stack, broken, what, monkeypatch):
    monkeypatch.setattr(conv_check, "conv_stack", lambda *args: broken(conv_stack(*args)))
    trusted, [sentence] = small_stack()
    assert not trusted
    assert what in sentence
