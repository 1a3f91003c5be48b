"""Critics: values of continuous and of discrete actions."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from voidrl.nets.layers import EnsembleLinear, chain, join, mlp, trunk
from voidrl.nets.noisy import NoisyLinear


class TwinQ(nn.Module):
    """Two independent critics of continuous actions: features, skill and action → Q, (2, B)."""

    def __init__(self, inputs: int, hidden_dim: int, hidden_layers: int, outputs: int = 1) -> None:
        super().__init__()
        sizes = [inputs, *[hidden_dim] * hidden_layers, outputs]
        self.layers = chain(
            EnsembleLinear(2, a, b, full_precision=i == hidden_layers)
            for i, (a, b) in enumerate(pairwise(sizes))
        )

    @property
    def first_layers(self) -> list[nn.Module]:
        """The layers that read the features."""
        return [self.layers[0]]

    @torch.no_grad()
    def rescale_output(self, scale: Tensor, shift: Tensor) -> None:
        """Replace all Q by scale · Q + shift, both (1,), in place, through the last layer alone."""
        last = self.layers[-1]
        last.weight.mul_(scale)  # type: ignore[operator]
        last.bias.mul_(scale).add_(shift)  # type: ignore[operator]

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
        outputs: int = 1,
        *,
        action_first: bool,
    ) -> None:
        super().__init__()
        before, after = (action_dim, 0) if action_first else (0, action_dim)
        self.action_first = action_first
        self.trunk = trunk(inputs + before, trunk_dim)
        self.heads = TwinQ(trunk_dim + after, hidden_dim, hidden_layers, outputs)

    @property
    def first_layers(self) -> list[nn.Module]:
        """The layers that read the features."""
        return [self.trunk]

    def rescale_output(self, scale: Tensor, shift: Tensor) -> None:
        """Replace all Q by scale · Q + shift, both (1,), in place, through the last layer alone."""
        self.heads.rescale_output(scale, shift)

    def forward(self, features: Tensor, skill: Tensor, action: Tensor) -> Tensor:
        """(B, F), (B, S), (B, A) → (2, B), or (2, B, outputs) for vector-valued critics."""
        nothing = action[:, :0]
        before, after = (action, nothing) if self.action_first else (nothing, action)
        return self.heads(self.trunk(join(features, skill, before)), nothing, after)  # type: ignore[no-any-return]


class DuelingQ(nn.Module):
    """Values of all discrete actions: features and skill → Q, (B, A) (Wang et al. 2016).

    With vector-valued outputs, such as the logits of C51's atoms, it is (B, A, outputs), and the mean over
    actions is subtracted in each output.

    Args:
        inputs: Width of features and skill.
        num_actions: A.
        hidden_dim: Width of the hidden layers.
        hidden_layers: Number of hidden layers, at least one.
        dueling: Whether there is a stream for the state's value.
        outputs: Outputs per action; None for scalar values.
        noisy_sigma: σ₀ of noisy layers; 0 for plain ones.
        shared_hidden: Whether both streams share their hidden layers (Dopamine, BBF).
    """

    def __init__(
        self,
        inputs: int,
        num_actions: int,
        hidden_dim: int,
        hidden_layers: int,
        dueling: bool,
        *,
        outputs: int | None = None,
        noisy_sigma: float = 0.0,
        shared_hidden: bool = False,
    ) -> None:
        super().__init__()
        self.inputs, self.num_actions, self.outputs = inputs, num_actions, outputs
        before = [inputs, *[hidden_dim] * hidden_layers]
        self.hidden = nn.Sequential()
        if shared_hidden:
            self.hidden = _layers(before, noisy_sigma, last=False).append(nn.ReLU())
            before = before[-1:]
        self.advantage = _layers([*before, num_actions * (outputs or 1)], noisy_sigma)
        self.value = _layers([*before, outputs or 1], noisy_sigma) if dueling else None

    @property
    def first_layers(self) -> list[nn.Module]:
        """The layers that read the features."""
        return [self.hidden[0]] if len(self.hidden) else [stream[0] for stream in self._streams]

    @property
    def _streams(self) -> list[nn.Sequential]:
        return [self.advantage] if self.value is None else [self.advantage, self.value]

    @property
    def projection_dim(self) -> int:
        """Width of `project`."""
        return sum(layer.weight.shape[0] for layer in self.first_layers)  # type: ignore[union-attr, misc, index]

    def project(self, features: Tensor) -> Tensor:
        """(B, F) → (B, projection_dim): the first layers of all streams, before activation, without noise.

        A critic that takes skills is given zeros for them.
        """
        missing = self.inputs - features.shape[-1]
        x = F.pad(features, (0, missing)) if missing else features
        return torch.cat([getattr(layer, "without_noise", layer)(x) for layer in self.first_layers], -1)

    @torch.no_grad()
    def rescale_output(self, scale: Tensor, shift: Tensor) -> None:
        """Replace all Q by scale · Q + shift, both (1,), in place, through the last layers alone.

        Both streams are multiplied, noise included. The shift belongs to the value: added to all advantages,
        it would be subtracted again with their mean.
        """
        weights: list[Tensor] = [weight for stream in self._streams for weight in stream[-1:].parameters()]
        torch._foreach_mul_(weights, scale[0])
        self._streams[-1][-1].bias.add_(shift)  # type: ignore[operator]

    def forward(self, features: Tensor, skill: Tensor) -> Tensor:
        """(B, F), (B, S) → (B, A) or (B, A, outputs)."""
        x = self.hidden(join(features, skill))
        q: Tensor = self.advantage(x)
        actions = -1  # their dimension
        if self.outputs is not None:
            q, actions = q.unflatten(-1, (self.num_actions, self.outputs)), -2
        if self.value is not None:
            value: Tensor = self.value(x)
            q = q - q.mean(actions, keepdim=True) + (value if self.outputs is None else value[..., None, :])
        return q


def _layers(sizes: list[int], noisy_sigma: float, *, last: bool = True) -> nn.Sequential:
    """Linear layers, noisy with a σ₀, with ReLU in between; `last` if the network ends with them."""
    if not noisy_sigma:
        return mlp(sizes, full_precision=last)
    return chain(
        NoisyLinear(a, b, noisy_sigma, full_precision=last and i == len(sizes) - 2)
        for i, (a, b) in enumerate(pairwise(sizes))
    )
