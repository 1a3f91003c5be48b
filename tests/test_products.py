"""Products in bf16: values and gradients next to those of float32."""

import pytest
import torch
from helpers import CONTINUOUS, PIXELS, fill_replay, make_agent

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


def test_frozen_critics_pass_gradients_to_their_inputs_alone(monkeypatch):
    critic = TwinQ(6, 16, 2).requires_grad_(False)
    action = rounded(8, 2).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        q = critic(rounded(8, 4), torch.zeros(8, 0), action)
    monkeypatch.setattr(products, "_float32", None)  # the product for gradients of weights
    q.sum().backward()
    assert action.grad.abs().sum() > 0


@pytest.mark.parametrize("shape", [(40, 16), (3, 40, 16), "linear"])
def test_gradients_of_gradients_are_those_of_float32(shape):
    torch.manual_seed(0)
    x, bias = rounded(*((40, 16) if shape == "linear" else shape)), torch.zeros(3, 1, 24)
    weight = rounded(*((24, 16) if shape == "linear" else (3, 16, 24)))

    def penalty(run, *tensors):
        x, weight = (tensor.clone().requires_grad_() for tensor in tensors)
        (slope,) = torch.autograd.grad(run(x, weight).float().square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.float().square().sum(), weight)[0]

    if shape == "linear":
        ours = penalty(lambda x, w: products.linear(x, w, torch.zeros(24)), x, weight)
        exact = penalty(torch.nn.functional.linear, x, weight)
    else:
        ours = penalty(lambda x, w: products.ensemble(x, w, bias), x, weight)
        exact = penalty(lambda x, w: x @ w, x, weight)
    assert close(ours, exact, 2e-2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["linear", "shared", "own"])
def test_compiled_products_are_the_same(kind, device):
    torch.manual_seed(0)
    x = rounded(3, 40, 16) if kind == "own" else rounded(16, 40).t()  # not contiguous
    weight = rounded(24, 16) if kind == "linear" else rounded(3, 16, 24)
    bias = rounded(24) if kind == "linear" else rounded(3, 1, 24)
    tensors = [tensor.to(device) for tensor in (x, weight, bias)]
    run = products.linear if kind == "linear" else products.ensemble
    backend = "inductor" if device == "cuda" else "aot_eager"
    out, grads = gradients(run, *tensors)
    compiled, found = gradients(torch.compile(run, backend=backend, fullgraph=True), *tensors)
    assert close(compiled, out.float(), 5e-3)  # the sum with the bias may be rounded once instead of twice
    assert close(found[0], grads[0], 5e-3)
    assert all(close(got, wanted, 1e-6) for got, wanted in zip(found[1:], grads[1:], strict=True))


def test_gradients_are_not_rounded_where_autocast_is_left_on():
    x, weight = rounded(40, 16), rounded(24, 16).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        products.linear(x, weight, torch.zeros(24)).float().square().sum().backward()
    assert not torch.equal(weight.grad, weight.grad.bfloat16().float())


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


UPDATED = {
    "twin critics and dynamics": (CONTINUOUS, {"learner": "ddpg", "representation": "icm"}),
    "a frozen critic's actor": (CONTINUOUS, {"learner": "sac", "method": "diayn"}),
    "ensembles": (CONTINUOUS, {"learner": "ddpg", "method": "disagreement"}),
    "losses added up": (PIXELS, {"share_encoder": "all", "encoder_trainers": ("representation", "learner")}),
    "noise and rescaled outputs": (PIXELS, {"learner__popart": True, "learner__noisy_sigma": 0.5}),
    "predicted latents": (PIXELS, {"learner": "rainbow", "phase": "train", "representation": "spr"}),
}


@pytest.mark.parametrize("case", UPDATED)
def test_agents_are_updated_in_bf16(case):
    """No weight changes between a product and its gradients, which would be refused."""
    spec, options = UPDATED[case]
    agent = make_agent(spec, precision="bf16", **options)
    replay = fill_replay(spec, skill_dim=agent.method.skill_dim, note_dim=agent.note_dim)
    before = {name: value.clone() for name, value in agent.learner.critic.named_parameters()}
    for index in range(2):
        metrics = agent.step(replay, index)
        assert all(value.isfinite().all() for value in metrics.values())
    after = dict(agent.learner.critic.named_parameters())
    assert any(not torch.equal(before[name], after[name]) for name in before)
