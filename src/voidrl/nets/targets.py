"""Target networks and their Polyak averages."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from voidrl.nets.layers import Conv, Linear
from voidrl.nets.noisy import NoisyLinear
from voidrl.nets.spectral import SpectralNorm


def target_copy(module: nn.Module) -> nn.Module:
    """A frozen copy for `polyak_update`; its weights are the original's after spectral normalization.

    Parts that never change (`is_constant`) are shared, not copied.
    """
    shared = {id(part): part for part in module.modules() if getattr(part, "is_constant", False)}
    target = copy.deepcopy(module, shared).requires_grad_(False)
    constant = _constant_modules(module)
    for layer in target.modules():
        if isinstance(layer, Conv | Linear) and layer.spectral is not None and layer not in constant:
            layer.weight.copy_(layer.spectral.effective(layer.weight))
            layer.spectral = None
    return target


@torch.no_grad()
def polyak_update(target: nn.Module, online: nn.Module, tau: float | Tensor) -> None:
    """Target ← (1 − τ) target + τ online, for weights and buffers, in one foreach call.

    τ may be a tensor of one number, which a captured graph reads at every replay.
    The drawn noise of noisy layers is left alone: a target draws its own.

    A target averages weights as its original uses them, after normalization: a convex combination of matrices
    of norm 1 has at most norm 1, so the target needs no power iterations.
    """
    mine = _floats(target)
    if mine:  # an encoder that passes vectors through has no weights
        weights = [tau] * len(mine) if isinstance(tau, Tensor) else tau
        torch._foreach_lerp_(mine, _floats(online), weights)


def _floats(module: nn.Module) -> list[Tensor]:
    """Weights and buffers as a target has them, in its order: those under normalization as they are used."""
    found: dict[Tensor, Tensor] = {}  # a shared one once
    constant = _constant_modules(module)
    for part in module.modules():
        if isinstance(part, SpectralNorm) or part in constant:
            continue
        buffers = () if isinstance(part, NoisyLinear) else part._buffers.values()
        tensors = (*part._parameters.values(), *buffers)
        found |= {t: t for t in tensors if t is not None and t.is_floating_point()}
        if isinstance(part, Conv | Linear) and part.spectral is not None:
            found[part.weight] = part.spectral.effective(part.weight)
    return list(found.values())


def _constant_modules(module: nn.Module) -> set[nn.Module]:
    """Everything inside of parts that never change."""
    parts = (part for part in module.modules() if getattr(part, "is_constant", False))
    return {inner for part in parts for inner in part.modules()}
