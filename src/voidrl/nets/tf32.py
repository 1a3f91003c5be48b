"""Products in TF32: float32 inputs rounded to 11 significant bits, sums in float32.

bf16 keeps 8 bits, which would put a floor under small prediction errors; plain float32 takes several times as
long on a GPU with tensor cores. PyTorch's switch for TF32 holds for all products at once, so it is set around
these alone, inside an operator that compiled code calls as a whole. Elsewhere than on CUDA it is float32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.nets.spectral import full_precision


@torch.library.custom_op("voidrl::tf32_mm", mutates_args=())
def tf32_mm(a: Tensor, b: Tensor) -> Tensor:
    """(n, k) @ (k, m) → (n, m)."""
    switch = torch.backends.cuda.matmul
    before = switch.allow_tf32
    switch.allow_tf32 = True
    try:
        return a @ b
    finally:
        switch.allow_tf32 = before


@tf32_mm.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    a, b = ctx.saved_tensors
    wanted_a, wanted_b = ctx.needs_input_grad
    return tf32_mm(grad, b.T) if wanted_a else None, tf32_mm(a.T, grad) if wanted_b else None


tf32_mm.register_autograd(_backward, setup_context=_setup_context)


class TF32Linear(nn.Linear):
    """A linear layer in TF32, under autocast too."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs) → (B, outputs), in float32."""
        with full_precision(x):
            if not x.is_cuda:
                return F.linear(x.float(), self.weight, self.bias)
            product: Tensor = tf32_mm(x.float(), self.weight.T)
            return product + self.bias
