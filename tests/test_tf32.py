"""Products in TF32: values and gradients of plain ones, under autocast too."""

import torch

from voidrl.nets import TF32Linear
from voidrl.nets.tf32 import tf32_mm


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
