"""Products in bf16: values and gradients next to those of float32."""

import pytest
import torch

from voidrl.nets import EnsembleLinear, Linear, TwinQ, products

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])]


def rounded(*shape, device="cpu"):
    """Random values that bf16 has exactly."""
    return torch.randn(*shape, device=device).bfloat16().float()


def gradients(run, *tensors):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    out = run(*leaves)
    weights = torch.linspace(-1, 1, out.numel(), device=out.device).bfloat16().reshape(out.shape)
    return out, torch.autograd.grad((out * weights).float().sum(), leaves)


def close(a, b, tolerance):
    return float((a.detach().float() - b.detach()).norm() / b.detach().norm()) < tolerance


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shared", [True, False])
def test_ensemble_is_the_float32_product_up_to_one_rounding(device, shared):
    torch.manual_seed(0)
    x = rounded(*(() if shared else (3,)), 40, 16, device=device)
    weight, bias = rounded(3, 16, 24, device=device), rounded(3, 1, 24, device=device)
    out, grads = gradients(products.ensemble, x, weight, bias)
    expected, exact = gradients(lambda x, w, b: x.expand(3, 40, 16) @ w + b, x, weight, bias)
    assert out.dtype == torch.bfloat16
    assert close(out, expected, 5e-3)
    assert close(grads[0], exact[0], 5e-3)  # the gradient of the input is passed on in bf16
    for got, wanted in zip(grads[1:], exact[1:], strict=True):  # those of weights are not rounded at all
        assert got.dtype == torch.float32
        assert close(got, wanted, 1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_linear_has_float32_gradients_of_its_weights(device):
    torch.manual_seed(0)
    tensors = rounded(2, 40, 16, device=device), rounded(24, 16, device=device), rounded(24, device=device)
    out, grads = gradients(products.linear, *tensors)
    expected, exact = gradients(torch.nn.functional.linear, *tensors)
    assert close(out, expected, 5e-3)
    assert close(grads[0], exact[0], 5e-3)
    assert all(close(got, wanted, 1e-6) for got, wanted in zip(grads[1:], exact[1:], strict=True))


def test_layers_round_no_gradient_of_a_weight_to_bf16():
    torch.manual_seed(0)
    layers = {"linear": Linear(13, 10), "ensemble": EnsembleLinear(2, 13, 10)}  # sizes that are padded
    for layer in layers.values():
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            out = layer(rounded(50, 13))
        out.float().square().sum().backward()
        for weight in layer.parameters():
            assert weight.grad.shape == weight.shape
            assert not torch.equal(weight.grad, weight.grad.bfloat16().float())


def test_frozen_critics_pass_gradients_to_their_inputs_alone():
    critic = TwinQ(6, 16, 2).requires_grad_(False)
    action = rounded(8, 2).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        q = critic(rounded(8, 4), torch.zeros(8, 0), action)
    q.sum().backward()
    assert action.grad.abs().sum() > 0
    assert all(weight.grad is None for weight in critic.parameters())


def test_twin_critics_agree_with_each_of_them_alone():
    torch.manual_seed(0)
    critic = TwinQ(6, 16, 2)
    inputs = rounded(8, 4), torch.zeros(8, 0), rounded(8, 2)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        q = critic(*inputs)
    exact = critic(*inputs)
    x = torch.cat(inputs, -1)
    for head in range(2):
        hidden = x
        for layer in critic.layers[::2]:
            hidden = (torch.relu(hidden) if layer is not critic.layers[0] else hidden) @ layer.weight[head]
            hidden = hidden + layer.bias[head]
        assert torch.allclose(exact[head], hidden[:, 0], atol=1e-5)
    assert close(q, exact, 2e-2)
