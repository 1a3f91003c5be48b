"""The types that cross file borders: what an environment looks like, what a batch holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

Metrics = dict[str, "Tensor"]
"""Scalars left on the device; read by the host once per `log_every_steps`."""


@dataclass(frozen=True)
class EnvSpec:
    """What the agent must know of an environment; two environments are compatible if these are equal."""

    frame_shape: tuple[int, ...]
    """Shape of one frame: (C, H, W) for pixels, (d,) for vectors."""
    pixels: bool
    """True for uint8 images, False for float32 vectors."""
    frame_stack: int
    """How many consecutive frames make one observation."""
    num_actions: int
    """Number of discrete actions; 0 if actions are continuous."""
    action_low: tuple[float, ...] = ()
    """Lower bounds of a continuous action, flattened. The agent itself acts in [-1, 1]."""
    action_high: tuple[float, ...] = ()
    """Upper bounds of a continuous action, flattened."""
    raw_shape: tuple[int, ...] = ()
    """Shape of one frame as the environment gives it: (H, W, C), (C, H, W), (H, W) or (d,)."""
    action_shape: tuple[int, ...] = ()
    """Shape of a continuous action as the environment takes it."""
    num_values: int = 0
    """Numbers that come with each image, such as the rest of a Dict; networks join them behind the
    convolutions. 0 for vectors, which are numbers alone."""
    masked: bool = False
    """Whether the last `num_actions` numbers of each frame say which actions are allowed (1) and which not
    (0). They steer the choice of actions and are not shown to the networks."""

    @property
    def discrete(self) -> bool:
        """Whether actions are discrete rather than continuous."""
        return self.num_actions > 0

    @property
    def action_dim(self) -> int:
        """Width of a continuous action; 0 if discrete."""
        return len(self.action_low)

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of one observation: the stacked frames along the first axis."""
        return (self.frame_shape[0] * self.frame_stack, *self.frame_shape[1:])

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of one frame as the replay stores it.

        Behind the channels of an image that comes with numbers, there are as many more as their bytes need.
        """
        if not self.num_values:
            return self.frame_shape
        channels, height, width = self.frame_shape
        return (channels - (-4 * self.num_values // (height * width)), height, width)

    def describe(self) -> str:
        """One phrase for error messages."""
        kind = "pixels" if self.pixels else "vector"
        stack = f" × {self.frame_stack} frames" if self.frame_stack > 1 else ""
        actions = (
            f"{self.num_actions} actions" if self.discrete else f"{self.action_dim}-d continuous actions"
        )
        return f"{kind} {'×'.join(map(str, self.frame_shape))}{stack}, {actions}"

    def to_json(self) -> dict[str, Any]:
        """Plain values for a manifest; `voidrl.spaces.spec_from_json` reads them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.__dict__.items()}


class Layout(NamedTuple):
    """How images lie before a network on CUDA; by default as anybody expects them, (B, C, H, W)."""

    fold: int = 1
    """fold × fold pixels become the channels of one, as `pixel_unshuffle` does it."""
    multiple: int = 1
    """Channels are padded with zeros to a multiple of this."""


class Frames(NamedTuple):
    """Observations where they lie: which stored frames make up each of B observations."""

    source: Tensor  # (S, *frame_shape) uint8 images or float32 vectors
    index: Tensor  # type: ignore[assignment]  # (B, stack) into source, oldest first

    def stacked(self) -> Tensor:
        """(B, *obs_shape), as stored."""
        batch, stack = self.index.shape
        channels, *size = self.source.shape[1:]
        # On the CPU many times faster than source[index], which goes byte by byte.
        return self.source.index_select(0, self.index.flatten()).view(batch, stack * channels, *size)


class Batch(NamedTuple):
    """Transitions (s, a, r, γ', s', skill), B of them, always with the same structure.

    After n-step summation `reward` is Σ γ^i r_i, `next_obs` the state after the last summed step and
    `discount` what its value is worth: γ^m, or 0 if the episode terminated. With `learner.views` V > 1 a
    learner's batch has each transition V times: all first views, then all second ones.
    """

    obs: Tensor  # (B, *obs_shape) uint8 or float32
    action: Tensor  # (B,) int64 or (B, action_dim) float32 in [-1, 1]
    reward: Tensor  # (B,) the environment's reward; not read while pre-training
    discount: Tensor  # (B,)
    next_obs: Tensor  # (B, *obs_shape)
    skill: Tensor  # (B, skill_dim), skill_dim = 0 where the method has no skills
    weight: Tensor  # (B,) of each transition in losses; 1 unless the replay is prioritized


class Loss(NamedTuple):
    """A loss, the optimizer that minimizes it, and what to log."""

    optimizer: str
    value: Tensor
    metrics: Metrics
    priority: Tensor | None = None
    """(B,) error of each transition, without gradients, by which a prioritized replay draws it again."""


class Sequence(NamedTuple):
    """B trajectories of K steps, time first; after a masked step the last valid state is repeated."""

    obs: Tensor  # (K + 1, B, *obs_shape), augmented
    action: Tensor  # (K, B) int64 or (K, B, action_dim)
    mask: Tensor  # (K, B) 1 where step k and the state after it belong to the same episode as the start


class Pairs(NamedTuple):
    """B states and those some steps later; after the end of an episode its last state takes their place."""

    obs: Tensor  # (B, *obs_shape), augmented
    later: Tensor  # (B, *obs_shape), augmented
    mask: Tensor  # (B,) 1 where both belong to the same episode
