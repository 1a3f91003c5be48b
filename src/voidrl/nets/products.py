"""Products in bf16 with weights in float32, whose gradients are float32 too, as the optimizer reads them.

Under autocast the gradient of a weight is rounded to bf16 and then copied to float32. Here the product itself
writes float32 on CUDA: one fewer pass over all gradients in an update, and no rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.nets.spectral import full_precision

Gradients = tuple[Tensor | None, ...]


# Weights are saved as they are and rounded again for the gradient of x, which has a gradient itself that way;
# compiled code rounds them once.


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight.to(x.dtype), bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            grad @ weight.to(x.dtype) if for_x else None,
            _float32(rows.t(), x.reshape(-1, x.shape[-1])) if for_weight else None,
            rows.sum(0, dtype=torch.float32) if for_bias else None,
        )


class _Ensemble(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        # Not baddbmm, which first writes the bias into every row.
        return torch.bmm(x, weight.to(x.dtype)) + bias.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight.to(x.dtype).mT) if for_x else None,
            _float32(x.mT, grad) if for_weight else None,
            grad.sum(1, keepdim=True, dtype=torch.float32) if for_bias else None,
        )


class _SharedEnsemble(torch.autograd.Function):
    """All heads as one product: x is not repeated, and the gradients of its copies need not be added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        heads, _, outputs = weight.shape
        return (x @ _wide(weight, x.dtype)).view(len(x), heads, outputs).transpose(0, 1) + bias.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        heads, batch, outputs = grad.shape
        rows = grad.transpose(0, 1).reshape(batch, heads * outputs)
        by_head = rows.view(batch, heads, outputs).transpose(0, 1)  # the same memory
        return (
            rows @ _wide(weight, x.dtype).t() if for_x else None,
            _float32(x.t().expand(heads, -1, -1), by_head) if for_weight else None,
            rows.sum(0, dtype=torch.float32).view(heads, 1, outputs) if for_bias else None,
        )


def _wide(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """(H, in, out) → (in, H · out)."""
    return weight.to(dtype).transpose(0, 1).flatten(1)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(…, in), (out, in), (out,) → (…, out) in bf16."""
    product: Tensor = _Linear.apply(x.to(torch.bfloat16), weight, bias)
    return product


def ensemble(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, in) for all heads or (H, B, in), (H, in, out), (H, 1, out) → (H, B, out) in bf16."""
    kind = _SharedEnsemble if x.ndim == 2 else _Ensemble
    product: Tensor = kind.apply(x.to(torch.bfloat16), weight, bias)
    return product


def _float32(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices in bf16, or of batches of them, as it was summed up."""
    if a.is_cuda and torch.version.hip is None:
        multiply = torch.mm if a.ndim == 2 else torch.bmm
        return multiply(a, b, out_dtype=torch.float32)
    with full_precision(a):
        return a.float() @ b.float()
