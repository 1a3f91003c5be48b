"""ResNet weights with torchvision's names and random values, and the network as plain functions."""

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}
NARROW = 4  # channels of the first layer, where their number does not matter


def resnet_weights(network="resnet18", channels=64, seed=0):
    """Tensors by name, in torchvision's order."""
    generator, wide = torch.Generator().manual_seed(seed), network == "resnet50"
    found = {}

    def conv(name, inputs, outputs, kernel):
        scale = (2 / (inputs * kernel**2)) ** 0.5
        found[f"{name}.weight"] = scale * torch.randn(outputs, inputs, kernel, kernel, generator=generator)

    def norm(name, width):
        for key, low, high in (("weight", 0.5, 1.5), ("bias", -0.5, 0.5), ("running_mean", -0.5, 0.5)):
            found[f"{name}.{key}"] = low + (high - low) * torch.rand(width, generator=generator)
        found[f"{name}.running_var"] = 0.5 + torch.rand(width, generator=generator)
        found[f"{name}.num_batches_tracked"] = torch.tensor(1234)

    conv("conv1", 3, channels, 7)
    norm("bn1", channels)
    inputs = channels
    for i, count in enumerate(BLOCKS[network]):
        inner = channels * 2**i
        outputs = 4 * inner if wide else inner
        for j in range(count):
            block = f"layer{i + 1}.{j}"
            sizes = (
                [(inputs, inner, 1), (inner, inner, 3), (inner, outputs, 1)]
                if wide
                else [(inputs, inner, 3), (inner, inner, 3)]
            )
            for k, (a, b, kernel) in enumerate(sizes):
                conv(f"{block}.conv{k + 1}", a, b, kernel)
                norm(f"{block}.bn{k + 1}", b)
            if j == 0 and (i or inputs != outputs):
                conv(f"{block}.downsample.0", inputs, outputs, 1)
                norm(f"{block}.downsample.1", outputs)
            inputs = outputs
    found["fc.weight"], found["fc.bias"] = torch.zeros(1000, inputs), torch.zeros(1000)
    return found


def reference(weights, x):
    """(B, 3, H, W) → the pooled features, by the definition."""

    def conv(name, x, stride=1):
        kernel = weights[f"{name}.weight"]
        return F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)

    def norm(name, x):
        shift, scale, mean, var = (
            weights[f"{name}.{key}"][:, None, None]
            for key in ("bias", "weight", "running_mean", "running_var")
        )
        return (x - mean) / (var + 1e-5).sqrt() * scale + shift

    x = F.max_pool2d(norm("bn1", conv("conv1", x, 2)).relu(), 3, 2, 1)
    for i in range(1, 5):
        j = 0
        while f"layer{i}.{j}.conv1.weight" in weights:
            block, stride = f"layer{i}.{j}", 2 if i > 1 and j == 0 else 1
            three = f"{block}.conv3.weight" in weights
            y = norm(f"{block}.bn1", conv(f"{block}.conv1", x, 1 if three else stride)).relu()
            y = norm(f"{block}.bn2", conv(f"{block}.conv2", y, stride if three else 1))
            if three:
                y = norm(f"{block}.bn3", conv(f"{block}.conv3", y.relu()))
            if f"{block}.downsample.0.weight" in weights:
                x = norm(f"{block}.downsample.1", conv(f"{block}.downsample.0", x, stride))
            x, j = (x + y).relu(), j + 1
    return x.mean((2, 3))


def write_weights(path, weights):
    save_file(weights, path) if path.suffix == ".safetensors" else torch.save(weights, path)
    return path
