"""Gradients of single convolutions against float32: how far they are off, and whether equal calls agree.

    python benchmarks/conv_gradients.py

On CUDA, for layers of the stacks `nature`, `drq` and `paper` and 256 and 512 images. The reference takes the
activations that the kernels have computed, so that no unit is on in one and off in the other. A relative
error above 0.001, or bits that differ between equal calls, mean that something is overwritten too early.
"""

from __future__ import annotations

import argparse

import torch

from voidrl.kernels.conv import conv_stack

LAYERS = {  # channels and size of the images, weight, stride, activation
    "nature 0": (64, 21, (32, 64, 2, 2), 1, "relu"),
    "nature 1": (32, 20, (64, 32, 4, 4), 2, "relu"),
    "nature 2": (64, 9, (64, 64, 3, 3), 1, "relu"),
    "drq 0": (16, 84, (32, 16, 3, 3), 2, "elu"),
    "drq 1": (32, 41, (32, 32, 3, 3), 1, "elu"),
    "drq 3": (32, 37, (32, 32, 3, 3), 1, "elu"),
    "paper 1": (16, 41, (16, 16, 3, 3), 2, "elu"),
    "paper 2": (16, 20, (16, 16, 3, 3), 2, "elu"),
}
RUNS = 3


def compare(name: str, images: int) -> str:
    """One line of the table."""
    channels, size, shape, stride, activation = LAYERS[name]
    torch.manual_seed(0)
    x = torch.randn(images, channels, size, size, device="cuda").bfloat16()
    x = x.contiguous(memory_format=torch.channels_last)
    weight = (torch.randn(shape, device="cuda") * 0.05).bfloat16().float().requires_grad_()
    bias = torch.zeros(shape[0], device="cuda", requires_grad=True)
    y = conv_stack(x, [weight], [bias], [stride], activation)
    upstream = torch.randn_like(y)
    runs = [
        torch.autograd.grad(conv_stack(x, [weight], [bias], [stride], activation), [weight, bias], upstream)
        for _ in range(RUNS)
    ]
    result = y.detach().float()
    slope = (result > 0).float() if activation == "relu" else (result + 1).clamp(max=1)
    gradient = (upstream.float() * slope).bfloat16().float()
    exact = torch.nn.grad.conv2d_weight(x.float(), shape, gradient, stride)
    errors = [float((found - exact).norm() / exact.norm()) for found, _ in runs]
    of_bias = gradient.sum((0, 2, 3))
    bias_error = float((runs[0][1] - of_bias).norm() / of_bias.norm())
    same = all(torch.equal(runs[0][0], other) for other, _ in runs)
    shown = ", ".join(f"{error:.5f}" for error in errors)
    return f"| {name} | {images} | {shown} | {bias_error:.5f} | {'yes' if same else 'no'} |"


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("layers", nargs="*", default=[*LAYERS])
    parser.add_argument("--images", type=int, nargs="+", default=[256, 512])
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    print("| layer | images | error of the weight gradient, by call | of the bias gradient | same bits |")
    print("|---|---|---|---|---|")
    for name in options.layers:
        for images in options.images:
            print(compare(name, images), flush=True)


if __name__ == "__main__":
    main()
