"""Layers: convolutions, linear layers and ensembles of them, with the precision that each needs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.nets.spectral import SpectralNorm, full_precision
from voidrl.types import EnvSpec, Layout

MULTIPLE = 8  # bf16 products with sizes that it does not divide take twice the time
SHORTEST = 1e-3  # length below which `unit_vectors` does not scale up to 1


def activation(name: str) -> nn.Module:
    """A new non-linearity."""
    return nn.ELU() if name == "elu" else nn.ReLU()


class Conv(nn.Conv2d):
    """A convolution, under spectral normalization where given one; it reads images in its `layout` too."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding)
        self.spectral: SpectralNorm | None = None
        self.layout = Layout()

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W), plain or in the layout, → (B, outputs, H', W')."""
        weight, stride = self.weight_for(x.shape[1])
        if x.shape[1] != weight.shape[1]:
            weight = F.pad(weight, (0, 0, 0, 0, 0, -weight.shape[1] % self.layout.multiple))
        return F.conv2d(x, weight, self.bias, stride, self.padding)

    def weight_for(self, channels: int) -> tuple[Tensor, int]:
        """Normalized weight and stride for images, plain or folded; the weight has no padded channels."""
        weight: Tensor = self.weight if self.spectral is None else self.spectral(self.weight)
        fold = self.fold_of(channels)
        if fold == 1:
            return weight, self.stride[0]
        rest = -self.kernel_size[0] % fold
        weight = F.pad(weight, (0, rest, 0, rest)) if rest else weight
        # A step of `stride` pixels is one of stride / fold folded pixels.
        return F.pixel_unshuffle(weight, fold), self.stride[0] // fold

    def shape_for(self, channels: int) -> tuple[tuple[int, ...], int]:
        """The shape of that weight, and the stride."""
        fold = self.fold_of(channels)
        side = -(-self.kernel_size[0] // fold)
        return (self.out_channels, self.in_channels * fold**2, side, side), self.stride[0] // fold

    def fold_of(self, channels: int) -> int:
        """The fold of images with this number of channels; 1 for plain ones."""
        return 1 if channels == self.in_channels else self.layout.fold


class Linear(nn.Linear):
    """A linear layer, under spectral normalization where given one, with sizes as tensor cores like them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.spectral: SpectralNorm | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs), or images with that number of values, → (B, outputs)."""
        weight: Tensor = self.weight if self.spectral is None else self.spectral(self.weight)
        if x.ndim == 4:
            if x.is_contiguous(memory_format=torch.channels_last):  # turn the weight, not the images
                weight = weight.view(-1, *x.shape[1:]).permute(0, 2, 3, 1).flatten(1)
                x = x.permute(0, 2, 3, 1)
            x = x.flatten(1)
        return padded_linear(x, weight, self.bias)


def padded_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The product (…, inputs) → (…, outputs), in bf16 with sizes padded to what tensor cores like."""
    wider, longer = (-size % MULTIPLE if in_bf16(x) else 0 for size in weight.shape)
    if not (wider or longer):
        return F.linear(x, weight, bias)
    padded = F.linear(F.pad(x, (0, longer)), F.pad(weight, (0, longer, 0, wider)), F.pad(bias, (0, wider)))
    return padded[..., : len(bias)]


# TF32 rounds float32 inputs to 11 significant bits and sums in float32. bf16 keeps 8 bits, which would put a
# floor under small prediction errors; plain float32 takes several times as long on a GPU with tensor cores.
# PyTorch's switch for TF32 holds for all products at once, so it is set around these alone, inside an
# operator that compiled code calls as a whole. Elsewhere than on CUDA it is float32.
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


class FullPrecisionLinear(nn.Linear):
    """A linear layer in the precision of its weights, under autocast too: the last before a loss."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs)."""
        with full_precision(x):
            return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class FullPrecisionLayerNorm(nn.LayerNorm):
    """LayerNorm in the precision of its weights, or float32 without any, under autocast too."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension."""
        with full_precision(x):
            return super().forward(x.float() if self.weight is None else x.to(self.weight.dtype))


def in_bf16(x: Tensor) -> bool:
    """Whether a product with x would be taken in bf16."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)  # which meta tensors have not


def rescale(latent: Tensor) -> Tensor:
    """(B, …) with each sample scaled to [0, 1] over all its entries (SPR, BBF)."""
    dims = tuple(range(1, latent.ndim))
    low, high = latent.amin(dims, keepdim=True), latent.amax(dims, keepdim=True)
    return (latent - low) / (high - low + 1e-5)


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad * ctx.scale, None


def scale_gradient(x: Tensor, scale: float) -> Tensor:
    """The input, whose gradient is multiplied by `scale`."""
    return x if scale == 1 else _ScaledGradient.apply(x, scale)


def unit_vectors(x: Tensor) -> Tensor:
    """(B, dim) scaled to length 1; the shortest stay shorter, since at 0 the gradient would be infinite."""
    return F.normalize(x, dim=1, eps=SHORTEST)


def trunk_layers(inputs: int, outputs: int) -> list[nn.Module]:
    """FC → LayerNorm → tanh; float32, even under autocast."""
    return [Linear(inputs, outputs), FullPrecisionLayerNorm(outputs), nn.Tanh()]


def trunk(inputs: int, outputs: int) -> nn.Sequential:
    """FC → LayerNorm → tanh, as DrQ initializes it."""
    return nn.Sequential(*trunk_layers(inputs, outputs)).apply(init_orthogonal)


def mlp(
    sizes: list[int], *, full_precision: bool = True, layer: type[nn.Linear] | None = None
) -> nn.Sequential:
    """Linear layers with ReLU in between; with `full_precision` the last one is never bf16.

    `layer` is a class for all of them instead.
    """
    *inner, last = pairwise(sizes)
    outer = layer or (FullPrecisionLinear if full_precision else Linear)
    return chain([*((layer or Linear)(a, b) for a, b in inner), outer(*last)]).apply(init_orthogonal)


def chain(layers: Iterable[nn.Module]) -> nn.Sequential:
    """Layers with ReLU in between."""
    return nn.Sequential(*[part for layer in layers for part in (nn.ReLU(), layer)][1:])


def join(*parts: Tensor) -> Tensor:
    """Side by side along the last dimension; parts without width, such as absent skills, cost nothing."""
    wide = [part for part in parts if part.shape[-1]]
    return torch.cat(wide, -1) if len(wide) > 1 else (wide or parts)[0]


def action_vectors(spec: EnvSpec, action: Tensor) -> Tensor:
    """(B, action_dim) continuous actions unchanged, (B,) discrete ones as one-hot vectors."""
    if not spec.discrete:
        return action
    empty = torch.zeros(len(action), spec.num_actions, device=action.device)
    return empty.scatter_(1, action[:, None], 1.0)


class EnsembleLinear(nn.Module):
    """H linear layers as one batched product: (H, B, in) → (H, B, out).

    With `full_precision` it is computed in the precision of the weights, under autocast too.
    """

    def __init__(self, heads: int, inputs: int, outputs: int, *, full_precision: bool = False) -> None:
        super().__init__()
        self.full_precision = full_precision
        self.weight = nn.Parameter(torch.empty(heads, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(heads, 1, outputs))
        for head in self.weight:
            nn.init.orthogonal_(head)

    def forward(self, x: Tensor) -> Tensor:
        """One product for all heads."""
        if not in_bf16(x):
            return torch.baddbmm(self.bias, x, self.weight)
        if not self.full_precision:
            longer = -self.weight.shape[1] % MULTIPLE
            weight = F.pad(self.weight, (0, 0, 0, longer)) if longer else self.weight
            x = F.pad(x, (0, longer)) if longer else x
            product = torch.bmm(x, weight)  # not baddbmm, which first writes the bias into every row
            return product + self.bias.to(product.dtype)
        with full_precision(x):
            x = x.to(self.weight.dtype)
            if self.weight.shape[2] == 1:  # a dot product, which fuses with the previous layer
                return (x * self.weight.transpose(1, 2)).sum(-1, keepdim=True) + self.bias
            return torch.baddbmm(self.bias, x, self.weight)


def init_orthogonal(module: nn.Module) -> None:
    """Orthogonal weights and zero biases, as DrQ has them; ReLU's gain in convolutions."""
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        nn.init.orthogonal_(module.weight, math.sqrt(2))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
