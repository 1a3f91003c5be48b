"""Networks: encoders (stack → FC → LayerNorm → tanh), heads, ensembles of heads, target copies."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl import registry
from voidrl.augment import images, to_layout
from voidrl.config import EncoderConfig
from voidrl.errors import ConfigError
from voidrl.kernels import usable
from voidrl.spectral import SpectralNorm, full_precision
from voidrl.types import EnvSpec, Layout

STACKS = {  # (channels, kernel, stride) of each layer
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al. 2015
    "drq": ((32, 3, 2), (32, 3, 1), (32, 3, 1), (32, 3, 1)),  # Kostrikov et al. 2020
    "paper": ((32, 3, 2), (32, 3, 2), (32, 3, 2), (32, 3, 1)),  # APT's table for DMControl
}
IMPALA_CHANNELS = (16, 32, 32)  # Espeholt et al. 2018, without the LSTM
MULTIPLE = 8  # bf16 products with sizes that it does not divide take twice the time
CHANNELS = 16  # and so it is with channels


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


class ConvStack(nn.Sequential):
    """Convolutions, each followed by the activation; on CUDA in bf16 as one fused operation."""

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
        if usable(x) and torch.is_autocast_enabled("cuda"):
            from voidrl.kernels import conv  # imports Triton

            layers = [layer for layer in self if isinstance(layer, Conv)]
            inputs = [x.shape[1], *(layer.in_channels for layer in layers[1:])]
            shapes = [layer.shape_for(count) for layer, count in zip(layers, inputs, strict=True)]
            strides = [stride for _, stride in shapes]
            if conv.suits(x, [shape for shape, _ in shapes], strides):
                weights = [layer.weight_for(count)[0] for layer, count in zip(layers, inputs, strict=True)]
                biases = [layer.bias for layer in layers if layer.bias is not None]
                return conv.conv_stack(x, weights, biases, strides, self.activation)
        features: Tensor = super().forward(x)
        return features


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
        wider, longer = (-size % MULTIPLE if in_bf16(x) else 0 for size in weight.shape)
        if not (wider or longer):
            return F.linear(x, weight, self.bias)
        weight, bias = F.pad(weight, (0, longer, 0, wider)), F.pad(self.bias, (0, wider))
        return F.linear(F.pad(x, (0, longer)), weight, bias)[..., : self.out_features]


class FullPrecisionLinear(nn.Linear):
    """A linear layer in the precision of its weights, under autocast too: the last before a loss."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs)."""
        with full_precision(x):
            return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class FullPrecisionLayerNorm(nn.LayerNorm):
    """LayerNorm in the precision of its weights, under autocast too."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension."""
        with full_precision(x):
            return super().forward(x.to(self.weight.dtype))


class Encoder(nn.Module):
    """Observations → features. Takes uint8 images, the output of `augment`, or vectors.

    With a `feature_dim` the features are float32, under autocast too; otherwise they are the stack's.

    Args:
        obs_shape: (C, H, W) of stacked images, or (d,).
        config: The stack by name, or a custom one, and the layers behind it.
        stack_of: Another encoder whose stack this one shares; `config` then shapes the layers behind it.
    """

    def __init__(
        self, obs_shape: tuple[int, ...], config: EncoderConfig, stack_of: Encoder | None = None
    ) -> None:
        super().__init__()
        self.pixels = len(obs_shape) == 3
        self.stack: nn.Module
        self.layout: Layout
        if stack_of is not None:
            self.stack, self.layout = stack_of.stack, stack_of.layout
        elif ":" in config.stack:
            self.stack = _custom_stack(obs_shape, config)
            self.layout = getattr(self.stack, "layout", Layout())
        else:
            self.stack, self.layout = _built_in_stack(obs_shape, config)
        # `layout` is the one in which images are read fastest on CUDA; plain ones can be read too.
        self.feature_dim = _output_width(self.stack, obs_shape, config.stack)
        layers: list[nn.Module] = []
        if config.hidden_dim:
            layers += [Linear(self.feature_dim, config.hidden_dim), activation(config.activation)]
            self.feature_dim = config.hidden_dim
        if config.feature_dim:
            layers += trunk_layers(self.feature_dim, config.feature_dim)
            self.feature_dim = config.feature_dim
        self.trunk = nn.Sequential(*layers)
        built = nn.ModuleList([self.trunk])
        if stack_of is None and ":" not in config.stack:
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

    def forward(self, obs: Tensor) -> Tensor:
        """(B, *obs_shape) → (B, feature_dim)."""
        if self.pixels and obs.dtype == torch.uint8:
            obs = images(obs, self.layout)
        features: Tensor = self.trunk(self.stack(obs))
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
    stack, layout = _stack(obs_shape, config), _layout(obs_shape, config)
    stack[0].layout = layout  # type: ignore[assignment]
    return stack, layout


def _custom_stack(obs_shape: tuple[int, ...], config: EncoderConfig) -> nn.Module:
    """A user's network; whatever does not fit the contract is refused here, before anything runs."""
    name = config.stack
    if config.spectral_norm_iterations:
        raise ConfigError(
            f"spectral_norm_iterations = {config.spectral_norm_iterations} cannot be used with encoder stack "
            f"{name!r}: expected 0, since a custom stack normalizes its own layers"
        )
    cls = registry.find_encoder(name)
    try:
        stack: nn.Module = cls(obs_shape)
    except Exception as error:
        raise ConfigError(
            f"encoder stack {name!r} cannot be built ({type(error).__name__}: {error}): expected a class "
            f"whose only required argument is obs_shape, here {obs_shape}"
        ) from error
    layout = getattr(stack, "layout", Layout())
    if not isinstance(layout, Layout):
        raise ConfigError(
            f"encoder stack {name!r} has layout = {layout!r}: expected a voidrl.types.Layout, or no layout "
            f"at all for plain images"
        )
    if layout != Layout():
        plain, arranged_in = (_probe(stack, obs_shape, name, wanted) for wanted in (Layout(), layout))
        if plain.shape != arranged_in.shape:
            raise ConfigError(
                f"encoder stack {name!r} maps images in its layout {layout} to {tuple(arranged_in.shape)} "
                f"and plain ones to {tuple(plain.shape)}: expected the same, or no layout at all"
            )
    return stack


def _output_width(stack: nn.Module, obs_shape: tuple[int, ...], name: str) -> int:
    """Features of one observation, as a trial pass has them."""
    output = _probe(stack, obs_shape, name, Layout())
    width = output.flatten(1).shape[1]
    declared = getattr(stack, "dim", width)
    if declared != width:
        raise ConfigError(
            f"encoder stack {name!r} has dim = {declared!r} and gives {width} features for observations of "
            f"{'×'.join(map(str, obs_shape))}: expected the same; leave dim out and it is measured"
        )
    return width


@torch.no_grad()
def _probe(stack: nn.Module, obs_shape: tuple[int, ...], name: str, layout: Layout) -> Tensor:
    size = "×".join(map(str, obs_shape))
    x = torch.zeros(2, *obs_shape)
    was_training = stack.training
    try:
        output = stack.eval()(x if layout == Layout() else to_layout(x, layout))
    except Exception as error:
        if ":" in name:
            raise ConfigError(
                f"encoder stack {name!r} cannot read observations of {size} ({type(error).__name__}: "
                f"{error}): expected a network from (B, {', '.join(map(str, obs_shape))}) to (B, dim) or "
                f"(B, channels, height, width)"
            ) from error
        raise ConfigError(
            f"encoder stack {name!r} cannot read images of {'×'.join(map(str, obs_shape[1:]))}: they are too "
            f"small for its strides; use larger images, or 'drq' for representation.encoder.stack and "
            f"learner.encoder.stack"
        ) from error
    finally:
        stack.train(was_training)
    if not (isinstance(output, Tensor) and output.ndim in (2, 4) and len(output) == 2):
        given = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ConfigError(
            f"encoder stack {name!r} maps 2 observations of {size} to {given}: expected a tensor of shape "
            f"(2, dim) or (2, channels, height, width)"
        )
    return output


def _stack(obs_shape: tuple[int, ...], config: EncoderConfig) -> nn.Sequential:
    if config.stack != "impala":
        return ConvStack(obs_shape[0], config)
    layers: list[nn.Module] = []
    channels = obs_shape[0]
    for out in (max(1, round(c * config.width)) for c in IMPALA_CHANNELS):
        layers += [Conv(channels, out, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
        layers += [Residual(out, config.activation), Residual(out, config.activation)]
        channels = out
    return nn.Sequential(*layers, activation(config.activation))


def _layout(obs_shape: tuple[int, ...], config: EncoderConfig) -> Layout:
    """Where the first stride divides the kernel, folding it into channels leaves a small dense convolution.

    8×8 at stride 4 on 4 channels, of which tensor cores make little, is 2×2 on 64.
    """
    _, kernel, stride = (0, 3, 1) if config.stack == "impala" else STACKS[config.stack][0]
    divides = all(size % stride == 0 for size in (kernel, *obs_shape[1:]))
    return Layout(stride if divides else 1, CHANNELS)


def in_bf16(x: Tensor) -> bool:
    """Whether a product with x would be taken in bf16."""
    return torch.is_autocast_enabled(x.device.type)


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
        """The input plus what the branch makes of it."""
        return x + self.branch(x)  # type: ignore[no-any-return]


def trunk_layers(inputs: int, outputs: int) -> list[nn.Module]:
    """FC → LayerNorm → tanh; what comes out is float32, under autocast too."""
    return [Linear(inputs, outputs), FullPrecisionLayerNorm(outputs), nn.Tanh()]


def trunk(inputs: int, outputs: int) -> nn.Sequential:
    """The same, as DrQ initializes it."""
    return nn.Sequential(*trunk_layers(inputs, outputs)).apply(init_orthogonal)


def mlp(sizes: list[int], nonlinearity: str = "relu", *, full_precision: bool = True) -> nn.Sequential:
    """Linear layers with a non-linearity in between; with `full_precision` the last one is never bf16."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers += [activation(nonlinearity)] if i else []
        last = i == len(sizes) - 2
        layers += [FullPrecisionLinear(a, b) if full_precision and last else Linear(a, b)]
    network = nn.Sequential(*layers)
    network.apply(init_orthogonal)
    return network


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
            if self.weight.shape[2] == 1:  # no product to speak of, and fused with what comes before
                return (x * self.weight.transpose(1, 2)).sum(-1, keepdim=True) + self.bias
            return torch.baddbmm(self.bias, x, self.weight)


class TwinQ(nn.Module):
    """Two independent critics of continuous actions: features, skill and action → Q, (2, B)."""

    def __init__(self, inputs: int, hidden_dim: int, hidden_layers: int, outputs: int = 1) -> None:
        super().__init__()
        sizes = [inputs, *[hidden_dim] * hidden_layers, outputs]
        layers: list[nn.Module] = []
        for i, (a, b) in enumerate(pairwise(sizes)):
            layers += [nn.ReLU()] if i else []
            layers += [EnsembleLinear(2, a, b, full_precision=i == hidden_layers)]
        self.layers = nn.Sequential(*layers)

    @property
    def first_layers(self) -> list[nn.Module]:
        """The layers that read the features."""
        return [self.layers[0]]

    def forward(self, features: Tensor, skill: Tensor, action: Tensor) -> Tensor:
        """(B, F), (B, S), (B, A) → (2, B), or (2, B, outputs) for vector-valued critics."""
        x = join(features, skill, action)
        q: Tensor = self.layers(x.expand(2, *x.shape))
        return q.squeeze(-1)


class TrunkQ(nn.Module):
    """Twin critics behind a trunk that they share (Yarats et al. 2021): features, skill, action → Q, (2, B).

    The action joins what goes into the trunk (`action_first`; URLB's critics of vectors) or what comes out.
    """

    def __init__(
        self,
        inputs: int,
        action_dim: int,
        trunk_dim: int,
        hidden_dim: int,
        hidden_layers: int,
        *,
        action_first: bool,
    ) -> None:
        super().__init__()
        before, after = (action_dim, 0) if action_first else (0, action_dim)
        self.action_first = action_first
        self.trunk = trunk(inputs + before, trunk_dim)
        self.heads = TwinQ(trunk_dim + after, hidden_dim, hidden_layers)

    @property
    def first_layers(self) -> list[nn.Module]:
        """The layers that read the features."""
        return [self.trunk]

    def forward(self, features: Tensor, skill: Tensor, action: Tensor) -> Tensor:
        """(B, F), (B, S), (B, A) → (2, B)."""
        nothing = action[:, :0]
        before, after = (action, nothing) if self.action_first else (nothing, action)
        q: Tensor = self.heads(self.trunk(join(features, skill, before)), nothing, after)
        return q


class DuelingQ(nn.Module):
    """Values of all discrete actions: features and skill → Q, (B, A) (Wang et al. 2016)."""

    def __init__(
        self, inputs: int, num_actions: int, hidden_dim: int, hidden_layers: int, dueling: bool
    ) -> None:
        super().__init__()
        hidden = [hidden_dim] * hidden_layers
        self.advantage = mlp([inputs, *hidden, num_actions])
        self.value = mlp([inputs, *hidden, 1]) if dueling else None

    @property
    def first_layers(self) -> list[nn.Module]:
        """The layers that read the features."""
        streams = [self.advantage] if self.value is None else [self.advantage, self.value]
        return [stream[0] for stream in streams]

    def forward(self, features: Tensor, skill: Tensor) -> Tensor:
        """(B, F), (B, S) → (B, A)."""
        x = join(features, skill)
        q: Tensor = self.advantage(x)
        if self.value is not None:
            q = q - q.mean(-1, keepdim=True) + self.value(x)
        return q


def init_orthogonal(module: nn.Module) -> None:
    """Orthogonal weights and zero biases, as DrQ has them; ReLU's gain in convolutions."""
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        nn.init.orthogonal_(module.weight, math.sqrt(2))
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def target_copy(module: nn.Module) -> nn.Module:
    """A frozen copy for `polyak_update`; its weights are the original's after spectral normalization."""
    target = copy.deepcopy(module).requires_grad_(False)
    for layer in target.modules():
        if isinstance(layer, Conv | Linear) and layer.spectral is not None:
            layer.weight.copy_(layer.spectral.effective(layer.weight))
            layer.spectral = None
    return target


@torch.no_grad()
def polyak_update(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Target ← (1 − τ) target + τ online, for weights and buffers, in one foreach call.

    A target averages weights as its original uses them, after normalization: a convex combination of matrices
    of norm 1 has at most norm 1, so the target needs no power iterations.
    """
    mine = _floats(target)
    if mine:  # an encoder that passes vectors through has no weights
        torch._foreach_lerp_(mine, _floats(online), tau)


def _floats(module: nn.Module) -> list[Tensor]:
    """Weights and buffers as a target has them, in its order: those under normalization as they are used."""
    found: dict[Tensor, Tensor] = {}  # a shared one once
    for part in module.modules():
        if isinstance(part, SpectralNorm):
            continue
        tensors = (*part._parameters.values(), *part._buffers.values())
        found |= {t: t for t in tensors if t is not None and t.is_floating_point()}
        if isinstance(part, Conv | Linear) and part.spectral is not None:
            found[part.weight] = part.spectral.effective(part.weight)
    return list(found.values())
