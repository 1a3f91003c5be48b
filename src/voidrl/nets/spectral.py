"""Spectral normalization (Miyato et al. 2018): a weight divided by an estimate of its largest singular value.

The estimate is that of `torch.nn.utils.parametrizations.spectral_norm`, with a third of its kernels. They are
tiny, and a captured update pays for their number.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

ROUND = 5  # iterations between two normalizations: the 9th power of a singular value stays in range
GRAM_SIDE, GRAM_SIZE = 128, 2**17  # with a shorter side or entries above these, W beats its Gram matrix
LEAST, MOST = 1e-19, 1e19  # beyond these the squares of float32 leave its range
PINCH = 1e-15  # of the old vector is kept in the new one: all there is where the weight is zero


class SpectralNorm(nn.Module):
    """W ↦ W/σ with σ = uᵀ W v, where u and v come from power iterations, n of them in each training pass.

    u and v are constants for gradients. In `eval` they are fixed, and σ is that of W along them.
    """

    def __init__(self, weight: Tensor, iterations: int) -> None:
        super().__init__()
        self.iterations = iterations
        u, v = weight.new_empty(len(weight)).normal_(), torch.randn_like(weight[:1])
        self.u = nn.Buffer(u / torch.linalg.vector_norm(u))  # (out,)
        # Shaped like a row of the weight, so that both change their memory format together.
        self.v = nn.Buffer(v / torch.linalg.vector_norm(v))  # (1, in) or (1, in, kh, kw)
        if not weight.is_meta:  # which has no values to iterate on, and dry runs build many agents
            iterate(weight.detach(), self.u, self.v, 15)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight to use in this pass."""
        if not self.training:
            return self.effective(weight)
        with full_precision(weight):
            sigma = iterate(weight.detach(), self.u, self.v, self.iterations)
            return self._divide(weight, sigma)

    def effective(self, weight: Tensor) -> Tensor:
        """W/σ without iterations, whatever the mode."""
        u, v = self.u, self.v
        with full_precision(weight):
            sigma = u.dot(_matrix(weight.detach(), v).mv(_matrix(v, v)[0])) + LEAST * PINCH  # never 0 / 0
            return self._divide(weight, sigma)

    def _divide(self, weight: Tensor, sigma: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and weight.requires_grad):
            return weight / sigma
        # The next training pass changes the buffers, maybe before this one's gradient is taken.
        return _Divide.apply(weight, sigma, self.u.clone(), self.v.clone())  # type: ignore[no-any-return]


@torch.no_grad()
def iterate(weight: Tensor, u: Tensor, v: Tensor, iterations: int) -> Tensor:
    """Power iterations u ← W v / ‖W v‖, v ← Wᵀ u / ‖Wᵀ u‖, in place; returns σ = ‖Wᵀ u‖ = uᵀ W v.

    Lengths matter only at the end: n iterations give u ∝ (W Wᵀ)ⁿ⁻¹ W v = W (Wᵀ W)ⁿ⁻¹ v, of which the first is
    cheap where W has few rows and the second where it has few columns. Both are taken of W / ‖W‖, whose Gram
    matrix has trace 1: its largest eigenvalue lies between 1 / out and 1, and in a round nothing overflows or
    vanishes. A scale of W changes lengths only, and so not u.
    """
    matrix, v = _matrix(weight, v), _matrix(v, v)[0]  # (out, in), (in,): views, where the formats agree
    scale = torch.linalg.vector_norm(matrix).clamp(LEAST, MOST)
    matrix = matrix / scale
    rows, cols = matrix.shape
    small = min(rows, cols) <= GRAM_SIDE and matrix.numel() <= GRAM_SIZE
    length = scale
    while iterations > 0:
        steps = min(iterations, ROUND)
        iterations -= steps
        last, x = matrix, v  # u ∝ last · x
        if small and steps > 2 and rows <= cols:
            last, x = matrix @ matrix.T, matrix.mv(v)
            for _ in range(steps - 2):
                x = last.mv(x)
        elif small and steps > 2:
            gram = matrix.T @ matrix
            for _ in range(steps - 1):
                x = gram.mv(x)
        else:
            for _ in range(steps - 1):
                x = matrix.T.mv(matrix.mv(x))
        u.addmv_(last, x, beta=PINCH)
        # In float64, since u may be long here where ‖W‖ was cut at MOST.
        u.div_(torch.linalg.vector_norm(u, dtype=torch.float64))
        v.addmv_(matrix.T, u, beta=PINCH)
        length = torch.linalg.vector_norm(v)
        v.div_(length)
    return scale * length  # type: ignore[no-any-return]


def full_precision(x: Tensor, *, unless: bool = False) -> AbstractContextManager[Any]:
    """Turn autocast off on the tensor's device; `unless` it may stay on, as for what is read from images."""
    kind = x.device.type
    if unless or x.is_meta or not torch.is_autocast_enabled(kind):  # meta tensors have no autocast
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def _matrix(weight: Tensor, like: Tensor) -> Tensor:
    """(out, in, kh, kw) → (out, in · kh · kw), the columns in the order in which `like` lies in memory."""
    if weight.ndim == 4 and not like.is_contiguous():
        weight = weight.permute(0, 2, 3, 1)
    return weight.flatten(1)


class _Divide(torch.autograd.Function):
    """W/σ, whose gradient knows σ = uᵀ W v in closed form: (g − ⟨g, W/σ⟩ u vᵀ) / σ."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, sigma: Tensor, u: Tensor, v: Tensor) -> Tensor:
        divided = weight / sigma
        ctx.save_for_backward(divided, sigma, u, v)
        return divided

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        divided, sigma, u, v = ctx.saved_tensors
        (grad,) = grads
        along = u * (grad * divided).sum()  # (out,)
        along = along.view(-1, *[1] * (grad.ndim - 1))
        return torch.addcmul(grad, along, v, value=-1) / sigma, None, None, None
