"""Features of a ResNet trained on ImageNet, which never learns, below a trunk which does (APT, figure 3).

The paper does not name the network; this is ResNet-18 (He et al. 2016), with torchvision's names of tensors,
so that its files and timm's fit. Each frame is read by itself, scaled to [0, 1] and normalized by ImageNet's
mean and standard deviation; the pooled features of a stack stand side by side. Grayscale frames are repeated
to three channels. Images are not enlarged to the 224 × 224 of ImageNet.

Building an agent reads no file. A new run reads the weights once (`read_files`), and from then on they are
saved and loaded with the agent like all others: whoever loads it does not need the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.config import EncoderConfig, RepresentationConfig
from voidrl.errors import ConfigError
from voidrl.nets import Encoder
from voidrl.representations.base import Representation
from voidrl.system.files import user_path
from voidrl.types import EnvSpec

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels in [0, 1], RGB
CACHED = "resnet18-f37072fd.pth"  # in torchvision's cache, IMAGENET1K_V1
CHANNELS = 64  # of the first layer
LAYERS = 4  # of two blocks each
UNUSED = re.compile(r"^fc\.|\.num_batches_tracked$")  # tensors of the classifier and of training


@dataclass(frozen=True)
class ImageNetConfig(RepresentationConfig):
    """A frozen ResNet; `encoder` shapes the layers behind it, and its convolutions are not built."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """The layers behind the ResNet, which replaces `stack`."""
    weights: str = ""
    """torchvision's or timm's file of weights (`.pth`, `.pt`, `.bin` or `.safetensors`), read when a run
    starts and never downloaded; empty looks into torchvision's cache."""


class FrozenBatchNorm(nn.Module):
    """BatchNorm with given statistics, in training mode too."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(channels), requires_grad=False)
        self.running_mean = nn.Buffer(torch.zeros(channels))
        self.running_var = nn.Buffer(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of (B, C, H, W)."""
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)


class Block(nn.Module):
    """Two 3×3 convolutions and a bypass."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, channels, 3, stride), FrozenBatchNorm(channels)
        self.conv2, self.bn2 = _conv(channels, channels, 3), FrozenBatchNorm(channels)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or inputs != channels:
            self.downsample = nn.Sequential(_conv(inputs, channels, 1, stride), FrozenBatchNorm(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C', H', W')."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """(B, 3, H, W), normalized, → (B, dim). It has no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(3, CHANNELS, 7, stride=2), FrozenBatchNorm(CHANNELS)
        inputs = CHANNELS
        for i in range(LAYERS):
            channels = CHANNELS * 2**i
            blocks = [Block(inputs, channels, 2 if i else 1), Block(channels, channels, 1)]
            self.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
            inputs = channels
        self.dim = inputs

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """The features before the classifier."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        for i in range(LAYERS):
            x = self.get_submodule(f"layer{i + 1}")(x)
        return x.mean((2, 3))

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], source: str) -> None:
        """Copy weights and statistics from a file of a ResNet-18."""
        try:
            self.load_state_dict({name: t for name, t in tensors.items() if not UNUSED.search(name)})
        except RuntimeError as error:
            raise ConfigError(f"{source} does not hold a ResNet-18: {error}") from error


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False).requires_grad_(False)


class FrozenFrames(nn.Module):
    """A stack for `Encoder`: stacked frames → the features of each, side by side."""

    is_constant = True

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.frames = spec.frame_stack
        self.resnet = ResNet()
        self.mean = nn.Buffer(torch.tensor(MEAN).view(3, 1, 1))
        self.std = nn.Buffer(torch.tensor(STD).view(3, 1, 1))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """(B, stack · C, H, W) in x/255 − 0.5 → (B, stack · dim)."""
        frames = x.float().unflatten(1, (self.frames, -1)).flatten(0, 1) + 0.5  # (B · stack, C, H, W)
        frames = (frames.expand(-1, 3, -1, -1) - self.mean) / self.std
        if frames.is_cuda:  # as cuDNN reads them fastest
            frames = frames.contiguous(memory_format=torch.channels_last)
        features: Tensor = self.resnet(frames)  # (B · stack, dim)
        return features.reshape(len(x), -1)


class ImageNet(Representation):
    """A frozen ResNet with a trunk, which is trained by whoever shares the encoder."""

    Config = ImageNetConfig
    config: ImageNetConfig
    reads_files = True

    @classmethod
    def make_encoder(cls, spec: EnvSpec, config: RepresentationConfig) -> Encoder:
        """A trunk behind a ResNet whose weights are random until a file or a saved agent has set them."""
        assert isinstance(config, ImageNetConfig)
        if not spec.pixels or spec.frame_shape[0] not in (1, 3):
            raise ConfigError(
                f"representation 'imagenet' cannot be used on {spec.describe()}: it takes images with 1 or 3 "
                f"channels; use simclr, fixed or learner"
            )
        return Encoder(spec, config.encoder, stack=FrozenFrames(spec))

    def read_files(self) -> None:
        """Read the weights of the ResNet."""
        path = find_weights(self.config)
        self.given_part.resnet.load(_tensors(path), str(path))  # type: ignore[operator, union-attr]

    @property
    def given_part(self) -> nn.Module:
        """The ResNet."""
        assert self.encoder is not None
        return self.encoder.stack


def find_weights(config: ImageNetConfig) -> Path:
    """The file that the config names, else the one in torchvision's cache."""
    cached = Path(torch.hub.get_dir()) / "checkpoints" / CACHED
    path = user_path(config.weights) if config.weights else cached
    if path.is_file():
        return path
    raise ConfigError(  # nothing is ever downloaded from here
        f"representation.weights = {config.weights!r} cannot be used: there is no {path}; run "
        "`python -c \"from torchvision.models import resnet18; resnet18(weights='IMAGENET1K_V1')\"` where "
        "there is network access and torchvision, and set representation.weights to the path of the file "
        f"{CACHED} that it downloads"
    )


def _tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name. A pickle is read without running code that it may contain."""
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        found: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, for a file that somebody else wrote
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"{path} cannot be read as weights ({type(error).__name__}: {reason}): expected tensors by name"
        ) from error
    return found
