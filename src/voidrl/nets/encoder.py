"""Encoders: stack → FC → LayerNorm → tanh (or less of it), with built-in stacks or a custom one.

Numbers that come with images are joined behind the stack, as symlog(x) = sign(x) · log(1 + |x|): small ones
keep their size, and large ones, such as a score, do not drown the features of the image. Differences between
large numbers shrink with it; where they matter, scale them in the environment, such as by
`gymnasium.wrappers.NormalizeObservation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from voidrl.config import EncoderConfig, registry
from voidrl.errors import ConfigError
from voidrl.kernels import usable
from voidrl.nets.augment import images, to_layout
from voidrl.nets.layers import Conv, Linear, activation, init_orthogonal, join, rescale, trunk_layers
from voidrl.nets.observations import split_input, symlog, unpack, visible, visible_numbers
from voidrl.nets.spectral import SpectralNorm
from voidrl.types import EnvSpec, Layout

STACKS = {  # (channels, kernel, stride) of each layer
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al. 2015
    "drq": ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1)),  # Kostrikov et al. 2020
    "paper": ((32, 3, 2), (32, 3, 2), (32, 3, 2), (32, 3, 1)),  # APT's table for DMControl
    "small": ((32, 5, 5), (64, 5, 5)),  # van Hasselt et al. 2019 (DER)
    "tiny": ((32, 3, 1), (32, 3, 1)),  # without strides, for grids of symbols such as MiniGrid's 7×7
}
NATURE_MIN_SIDE = 36  # pixels: smaller images do not survive its strides
DRQ_MIN_SIDE = 20  # pixels: of smaller images it leaves three by three values or fewer
TINY_MIN_SIDE = 5
LOG_SCALE = 2 / math.log(256)
IMPALA_CHANNELS = (16, 32, 32)  # Espeholt et al. 2018, without the LSTM
CHANNELS = 16  # convolutions in bf16 are slower with input channels that are not a multiple of this


def stack_for(image_shape: tuple[int, ...]) -> str:
    """`nature`, or `drq` or `tiny` for (C, H, W) that do not survive its strides."""
    side = min(image_shape[1:])
    return "nature" if side >= NATURE_MIN_SIDE else "drq" if side >= DRQ_MIN_SIDE else "tiny"


class ConvStack(nn.Sequential):
    """Convolutions, each followed by the activation; on CUDA in bf16 as one fused operation."""

    trusts_kernels = True
    """Whether the stacks of this process use our kernels, until `check_convolutions` finds a difference."""

    def __init__(self, channels: int, config: EncoderConfig) -> None:
        layers: list[nn.Module] = []
        for out, kernel, stride in STACKS[config.stack]:
            out = max(1, round(out * config.width))
            layers += [Conv(channels, out, kernel, stride), activation(config.activation)]
            channels = out
        super().__init__(*layers)
        self.activation = config.activation

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → (B, C', H', W')."""
        if self.trusts_kernels and usable(x) and torch.is_autocast_enabled("cuda"):
            from voidrl.kernels import conv  # imports Triton

            shapes, strides = self.shapes_for(x)
            if conv.suits(x, shapes, strides):
                weights = [layer.weight_for(count)[0] for layer, count in self._inputs(x)]
                biases = [layer.bias for layer, _ in self._inputs(x) if layer.bias is not None]
                return conv.conv_stack(x, weights, biases, strides, self.activation)
        return super().forward(x)  # type: ignore[no-any-return]

    def shapes_for(self, x: Tensor) -> tuple[list[tuple[int, ...]], list[int]]:
        """Shapes of the weights and strides of all layers, for images in the layout of x."""
        found = [layer.shape_for(count) for layer, count in self._inputs(x)]
        return [shape for shape, _ in found], [stride for _, stride in found]

    def _inputs(self, x: Tensor) -> list[tuple[Conv, int]]:
        """The convolutions and the channels that each reads, for images in the layout of x."""
        layers = [layer for layer in self if isinstance(layer, Conv)]
        return list(zip(layers, [x.shape[1], *(layer.in_channels for layer in layers[1:])], strict=True))


def check_convolutions(network: nn.Module, device: torch.device, say: Callable[[str], None]) -> None:
    """Compare our convolutions with PyTorch's, as they compute on this device.

    If results differ, all stacks of the process use PyTorch's, which are slower, and `say` gets the reason.
    """
    compared: set[tuple] = set()
    for encoder in network.modules():
        if not isinstance(encoder, Encoder) or not isinstance(encoder.stack, ConvStack):
            continue
        if not ConvStack.trusts_kernels:
            return
        from voidrl.kernels import conv, conv_check  # imports Triton

        stack = encoder.stack
        first = next(layer for layer in stack if isinstance(layer, Conv))
        random = torch.Generator(device).manual_seed(0)
        size = (conv_check.IMAGES, first.in_channels, *encoder.image_size)
        images = torch.rand(size, generator=random, device=device) - 0.5
        x = to_layout(images, encoder.layout).bfloat16()
        shapes, strides = stack.shapes_for(x)
        key = (x.shape, *shapes, *strides, stack.activation)
        if key in compared or not conv.suits(x, shapes, strides):
            continue
        compared.add(key)
        try:
            difference = conv_check.mismatch(x, shapes, strides, stack.activation)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # such as too little shared memory
            difference = repr(error)
        if difference:
            ConvStack.trusts_kernels = False
            say(
                f"kernels: PyTorch's convolutions, which are slower, because ours do not agree with them "
                f"here ({difference})"
            )


class ByteScales(nn.Module):
    """Images of x/255 − 0.5 twice over: as they are, and on a logarithmic scale of the bytes.

    The pixels of tiny images are often symbols, small whole numbers that differ by one. On the linear scale
    MiniGrid's, 0 to 10, vary by 1 % of their size, and networks took all states for the same one.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → (B, 2 C, H, W); the logarithm of 0 to 255 lies in [−1, 1]."""
        value = ((x.float() + 0.5) * 255).round().clamp(min=0)  # exact, after bf16 too
        return torch.cat([x, (value.log1p() * LOG_SCALE - 1).to(x.dtype)], 1)


class Encoder(nn.Module):
    """Observations → features. Takes observations as stored, or the output of `augment`.

    Of uint8 images larger than those of `spec` it reads the center, as `augment.crop_size` has it. Masks of
    actions are left out. With a `feature_dim` the features are float32, under autocast too; otherwise they
    are the stack's, and the numbers that come with an image behind them.

    Args:
        spec: What networks read: frames, stacked, with or without numbers.
        config: The stack by name, or a custom one, and the layers behind it.
        stack_of: Another encoder whose stack this one shares; `config` then shapes the layers behind it.
        stack: A network that is the stack, whatever `config` says; it reads plain images.
    """

    is_constant = False
    """Whether it is frozen for good; targets then share it."""

    def __init__(
        self,
        spec: EnvSpec,
        config: EncoderConfig,
        stack_of: Encoder | None = None,
        stack: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.pixels = spec, spec.pixels
        self.mixed = spec.num_values > 0
        obs_shape = spec.obs_shape if self.pixels else (visible_numbers(spec),)
        self.image_size = obs_shape[1:]
        self.stack: nn.Module
        self.layout = Layout()  # in which images are read fastest on CUDA; plain ones can be read too
        if stack_of is not None:
            self.stack, self.layout = stack_of.stack, stack_of.layout
        elif stack is not None:
            self.stack = stack
        elif ":" in config.stack:
            self.stack = _custom_stack(obs_shape, config)
        else:
            self.stack, self.layout = _built_in_stack(obs_shape, config)
        self.feature_dim = _probe(self.stack, obs_shape, config.stack).flatten(1).shape[1]
        if self.mixed:
            self.feature_dim += visible_numbers(spec)
        layers: list[nn.Module] = []
        if config.hidden_dim:
            layers += [Linear(self.feature_dim, config.hidden_dim), activation(config.activation)]
            self.feature_dim = config.hidden_dim
        if config.feature_dim:
            layers += trunk_layers(self.feature_dim, config.feature_dim)
            self.feature_dim = config.feature_dim
        self.trunk = nn.Sequential(*layers)
        # A vector without layers has nothing to rescale but the observation itself.
        self.rescales = config.rescale and (self.pixels or bool(layers))
        built = nn.ModuleList([self.trunk])
        if stack_of is None and stack is None and ":" not in config.stack:
            built.insert(0, self.stack)
        built.apply(init_orthogonal)
        if not self.pixels and config.hidden_dim:
            # With zero biases ReLU scales with its input, and LayerNorm would remove a vector's length. A row
            # of the orthogonal weights maps a unit vector to about 1 / √hidden_dim: biases of the same size.
            bound = config.hidden_dim**-0.5
            nn.init.uniform_(self.trunk[0].bias, -bound, bound)  # type: ignore[arg-type]
        if config.spectral_norm_iterations:
            for module in built.modules():
                if isinstance(module, Conv | Linear):
                    module.spectral = SpectralNorm(module.weight, config.spectral_norm_iterations)

    def latent(self, obs: Tensor) -> Tensor:
        """The output of the stack, (B, C, H, W) for images; for vectors that of the whole encoder.

        It is scaled to [0, 1] if the config says so.
        """
        return self._latent(self._split(obs)[0])

    def _latent(self, x: Tensor) -> Tensor:
        latent: Tensor = self.stack(x)
        if not self.pixels:
            latent = self.trunk(latent)
        return rescale(latent) if self.rescales else latent

    def _split(self, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The stack's input, and the numbers to join behind it, if there are any."""
        stored = obs.dtype == torch.uint8
        if not self.pixels:
            return visible(obs, self.spec), None
        if not self.mixed:
            return images(obs, self.layout, self.image_size) if stored else obs, None
        x, numbers = unpack(obs, self.spec) if stored else split_input(obs, self.spec)
        if stored:
            x = images(x, self.layout, self.image_size)
        return x, symlog(visible(numbers, self.spec))

    def forward(self, obs: Tensor) -> Tensor:
        """Observations of B states → (B, feature_dim)."""
        x, numbers = self._split(obs)
        features = self._latent(x)
        if numbers is not None:
            features = join(features.flatten(1), numbers)
        if self.pixels:
            features = self.trunk(features)
        return features.flatten(1)


def _built_in_stack(obs_shape: tuple[int, ...], config: EncoderConfig) -> tuple[nn.Module, Layout]:
    pixels = len(obs_shape) == 3
    known = (*STACKS, "impala") if pixels else ("mlp",)
    if config.stack not in known:
        kind, size = "images" if pixels else "vectors", "×".join(map(str, obs_shape))
        raise ConfigError(
            f"encoder stack {config.stack!r} cannot read {kind} of {size}: expected {' or '.join(known)}"
        )
    if not pixels:
        return nn.Identity(), Layout()
    if config.stack == "tiny":
        return nn.Sequential(ByteScales(), *ConvStack(2 * obs_shape[0], config)), Layout()
    impala = config.stack == "impala"
    stack = _impala(obs_shape[0], config) if impala else ConvStack(obs_shape[0], config)
    # The first stride is folded, if it divides the kernel: 8×8 at stride 4 on 4 channels, of which tensor
    # cores make little, is 2×2 on 64.
    _, kernel, stride = (0, 3, 1) if impala else STACKS[config.stack][0]
    divides = all(size % stride == 0 for size in (kernel, *obs_shape[1:]))
    layout = Layout(stride if divides else 1, CHANNELS)
    stack[0].layout = layout  # type: ignore[assignment]
    return stack, layout


def _impala(channels: int, config: EncoderConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    for out in (max(1, round(c * config.width)) for c in IMPALA_CHANNELS):
        layers += [Conv(channels, out, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
        layers += [Residual(out, config.activation), Residual(out, config.activation)]
        channels = out
    return nn.Sequential(*layers, activation(config.activation))


def _custom_stack(obs_shape: tuple[int, ...], config: EncoderConfig) -> nn.Module:
    """A network of the user."""
    name = config.stack
    if config.spectral_norm_iterations:
        raise ConfigError(
            f"spectral_norm_iterations = {config.spectral_norm_iterations} cannot be used with encoder stack "
            f"{name!r}: expected 0, since a custom stack normalizes its own layers"
        )
    cls = registry.find_encoder(name)
    try:
        stack: nn.Module = cls(obs_shape)
        shape = stack.eval()(torch.zeros(2, *obs_shape)).shape
        fits = len(shape) in (2, 4) and shape[0] == 2
        assert fits, f"2 observations become {tuple(shape)}"
    except Exception as error:  # raised by the user's code
        raise ConfigError(
            f"encoder stack {name!r} cannot read observations of {'×'.join(map(str, obs_shape))} "
            f"({type(error).__name__}: {error}): expected a class whose only required argument is obs_shape, "
            f"of networks (B, *obs_shape) → (B, dim) or (B, channels, height, width)"
        ) from error
    return stack.train()


@torch.no_grad()
def _probe(stack: nn.Module, obs_shape: tuple[int, ...], name: str) -> Tensor:
    """The features of an observation of zeros."""
    was_training = stack.training
    try:
        output: Tensor = stack.eval()(torch.zeros(1, *obs_shape))
    except RuntimeError as error:
        if ":" in name:
            raise
        fitting = f"{stack_for(obs_shape)!r} for representation.encoder.stack and learner.encoder.stack"
        if min(obs_shape[1:]) < TINY_MIN_SIDE:
            fitting = "vectors, which the wrapper gymnasium.wrappers.FlattenObservation makes of them"
        raise ConfigError(
            f"encoder stack {name!r} cannot read images of {'×'.join(map(str, obs_shape[1:]))}: they are too "
            f"small for it; use larger images, or {fitting}"
        ) from error
    finally:
        stack.train(was_training)
    return output


class Residual(nn.Module):
    """Two 3×3 convolutions with a bypass, as in IMPALA."""

    def __init__(self, channels: int, nonlinearity: str) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            activation(nonlinearity),
            Conv(channels, channels, 3, padding=1),
            activation(nonlinearity),
            Conv(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The input plus its residual branch."""
        return x + self.branch(x)  # type: ignore[no-any-return]
