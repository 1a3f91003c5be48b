"""Compares our convolutions with PyTorch's on the machine where they are going to run.

The results of a kernel depend on the version of Triton that compiles it: one pipelined copies over what
products still read, and gradients were wrong by several percent without any error.

The reference is in float32 and rounds to bfloat16 where the kernels do. Without that, the two would differ by
5 to 10 % with ReLU: rounding switches some 0.2 % of the units on or off, in any implementation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from voidrl.kernels.conv import conv_stack

IMAGES = 256  # so many that programs copy ahead of their products again and again
RUNS = 3  # which have the same bits, unless something is overwritten too early
TOLERANCE = 0.03  # relative to the norm; four layers differ by some 0.005 in rounding


def reference(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], strides: Sequence[int], activation: str
) -> Tensor:
    """The stack by PyTorch's convolutions in float32, rounded like that of the kernels."""
    for weight, bias, stride in zip(weights, biases, strides, strict=True):
        kept = weight + (weight.bfloat16() - weight).detach()  # rounded, its gradient not
        x = F.conv2d(x[:, : weight.shape[1]].float(), kept, bias, stride)
        x = F.elu(x) if activation == "elu" else F.relu(x)
        x = x.bfloat16().float()  # and so is its gradient
    return x


def mismatch(x: Tensor, shapes: Sequence[Sequence[int]], strides: Sequence[int], activation: str) -> str:
    """The first difference for images like x and random weights of these shapes, in words; empty if none."""
    random = torch.Generator(x.device).manual_seed(0)  # a run's own random numbers stay as they are

    def normal(shape: Sequence[int], scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=random, device=x.device) * scale

    fan_in = [channels * height * width for _, channels, height, width in shapes]
    weights = [normal(s, (2 / n) ** 0.5).requires_grad_() for s, n in zip(shapes, fan_in, strict=True)]
    biases = [normal(shape[:1], 0.1).requires_grad_() for shape in shapes]
    rest = (weights, biases, strides, activation)
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            expected = reference(x, *rest)
            upstream = normal(expected.shape)
            wanted = [expected, *torch.autograd.grad(expected, [*weights, *biases], upstream)]
        runs = []
        for _ in range(RUNS):
            y = conv_stack(x, *rest)
            runs.append([y, *torch.autograd.grad(y, [*weights, *biases], upstream.to(y.dtype))])
    names = ["output", *(f"gradient of {p} {i}" for p in ("weight", "bias") for i in range(len(shapes)))]
    for name, right, first, *others in zip(names, wanted, *runs, strict=True):
        off = (first.detach().float() - right.detach()).norm() / right.detach().norm()
        error = float(off)  # host synchronization, once in a run
        if not error < TOLERANCE:
            return f"{name} is off by {error:.1%}"
        if not all(torch.equal(first, other) for other in others):
            return f"{name} differs between equal calls"
    return ""
