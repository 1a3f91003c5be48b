"""Features of a ResNet trained on ImageNet, which never learns, below a trunk which does (APT, figure 3).

The paper does not name the network; this is ResNet-18. Each frame is read by itself, scaled to
[0, 1] and normalized by ImageNet's mean and standard deviation; the pooled features of a stack stand side by
side. Grayscale frames are repeated to three channels. Images are not enlarged to the 224 × 224 of ImageNet.

Building an agent reads no file. A new run reads the weights once (`describe_files`, `read_files`), and from
then on they are saved and loaded with the agent like all others: whoever loads it does not need the file.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field, replace
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from voidrl.config import EncoderConfig, RepresentationConfig, require
from voidrl.errors import ConfigError
from voidrl.nets import Encoder
from voidrl.nets.resnet import ResNet
from voidrl.representations.base import Representation
from voidrl.system.files import user_path
from voidrl.types import EnvSpec

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels in [0, 1], RGB
CACHED = "resnet18-f37072fd.pth"  # in torchvision's cache, IMAGENET1K_V1
PICKLED, SAFE = (".pth", ".pt", ".bin"), ".safetensors"


@dataclass(frozen=True)
class ImageNetConfig(RepresentationConfig):
    """A frozen ResNet; `encoder` shapes the layers behind it, and its convolutions are not built."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """The layers behind the ResNet, which replaces `stack`."""
    weights: str = ""
    """torchvision's or timm's file of weights (`.pth`, `.pt`, `.bin` or `.safetensors`), read when a run
    starts and never downloaded; empty looks into torchvision's cache."""
    weights_sha256: str = ""
    """SHA-256 of that file, filled in when a run starts; if given, another file is refused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.weights_sha256
        is_hash = len(given) == 64 and set(given) <= set("0123456789abcdef")
        require(not given or is_hash, "weights_sha256", given, "64 hexadecimal digits in lower case, or none")


class FrozenFrames(nn.Module):
    """A stack for `Encoder`: stacked frames → the features of each, side by side."""

    is_constant = True

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.frames = spec.frame_stack
        self.resnet = ResNet()
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1))

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

    @classmethod
    def describe_files(
        cls, config: RepresentationConfig, pretrained: RepresentationConfig | None
    ) -> RepresentationConfig:
        """The config with the absolute path of the file and its SHA-256."""
        assert isinstance(config, ImageNetConfig)
        if pretrained is None:
            path = find_weights(config)
            return replace(config, weights=str(path), weights_sha256=_sha256(_read(path, config)))
        assert isinstance(pretrained, ImageNetConfig)
        given = {"weights_sha256": config.weights_sha256}
        given["weights"] = config.weights and str(user_path(config.weights).absolute())
        known = {name: getattr(pretrained, name) for name in given}
        for name, value in given.items():
            if value not in ("", known[name]):
                raise ConfigError(
                    f"representation.{name} = {value!r} cannot be used for fine-tuning: the agent has its "
                    f"weights already, those of {known[name] or pretrained.weights_sha256!r}; leave it out"
                )
        return replace(config, **known)

    def read_files(self) -> None:
        """Read the weights of the ResNet."""
        path = find_weights(self.config)
        resnet = self.given_part.get_submodule("resnet")
        assert isinstance(resnet, ResNet)
        resnet.load(_tensors(path, _read(path, self.config)), str(path))

    @property
    def given_part(self) -> nn.Module:
        """The ResNet."""
        assert self.encoder is not None
        return self.encoder.stack


def find_weights(config: ImageNetConfig) -> Path:
    """The file that the config names, else the one in torchvision's cache."""
    if config.weights:
        path = user_path(config.weights)
        if not path.is_file():
            raise ConfigError(
                f"representation.weights = {config.weights!r} cannot be used: there is no such file; "
                f"{_remedy()}"
            )
        return path.absolute()
    cached = Path(torch.hub.get_dir()) / "checkpoints" / CACHED
    if not cached.is_file():
        raise ConfigError(
            f"representation 'imagenet' has no weights: representation.weights is not set and there is no "
            f"{cached}; {_remedy()}"
        )
    return cached.absolute()


def _remedy() -> str:
    """Instructions to get a file. Nothing is ever downloaded from here."""
    return (
        'run `python -c "from torchvision.models import resnet18; '
        "resnet18(weights='IMAGENET1K_V1')\"` where there is network access and torchvision, and set "
        f"representation.weights to the path of the file {CACHED} that it downloads"
    )


def _read(path: Path, config: ImageNetConfig) -> bytes:
    """The content of the file, which must be the one that the config says."""
    if path.suffix not in (*PICKLED, SAFE):
        raise ConfigError(f"{path} cannot be used for weights: expected {', '.join((*PICKLED, SAFE))}")
    data = path.read_bytes()
    expected, found = config.weights_sha256, _sha256(data)
    if expected and found != expected:
        raise ConfigError(
            f"{path} is not the file that the config says: its SHA-256 is {found} and "
            f"representation.weights_sha256 is {expected}; bring back the file, or start a new run"
        )
    return data


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _tensors(path: Path, data: bytes) -> dict[str, Tensor]:
    """Tensors by name. A pickle is read without running code that it may contain."""
    try:
        if path.suffix == SAFE:
            return safetensors.torch.load(data)
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, for a file that somebody else wrote
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"{path} cannot be read as weights ({type(error).__name__}: {reason}): expected tensors by name"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ConfigError(f"{path} holds a {type(found).__name__} with other things than tensors by name")
    return found
