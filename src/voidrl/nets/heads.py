"""Critics: values of continuous and of discrete actions."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from voidrl.nets.layers import EnsembleLinear, join, mlp, trunk


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

    def forward(self, features: Tensor, skill: Tensor, action: Tensor) -> Tensor:
        """(B, F), (B, S), (B, A) → (2, B), or (2, B, outputs) for vector-valued critics."""
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
