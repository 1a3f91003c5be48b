"""The types that cross file borders: what an environment looks like, what a batch holds."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

Metrics = dict[str, "Tensor"]
"""Scalars left on the device; read by the host once per `log_every_steps`."""


PartKind = Literal["image", "numbers", "one_hot", "mask"]


@dataclass(frozen=True, repr=False)
class ObsPart:
    """One entry of an observation, and how it becomes a part of the frame."""

    path: tuple[str | int, ...]
    """Keys of nested Dicts and positions in Tuples that lead to it; () for the whole observation."""
    kind: PartKind
    """`image` (channels of the frame), `numbers` (as they are, flattened), `one_hot` (one for each choice)
    or `mask` (allowed actions)."""
    shape: tuple[int, ...]
    """Shape as the environment gives it."""
    sizes: tuple[int, ...] = ()
    """Number of choices of each component, for one-hots."""
    start: tuple[int, ...] = ()
    """Lowest value of each component, for one-hots."""
    dtype: str = ""
    """Type of an image as the environment gives it."""
    low: float = 0.0
    """Value of an image that becomes 0."""
    high: float = 255.0
    """Value of an image that becomes 255."""

    def find(self, within: Any) -> Any:
        """This entry of an observation, or of its space."""
        for key in self.path:
            within = within[key]
        return within

    @property
    def name(self) -> str:
        """The path as one word, such as `agent/position`."""
        return "/".join(map(str, self.path))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        if len(self.shape) == 2:
            return (1, self.shape[0], self.shape[1])
        first, second, third = self.shape
        return (third, first, second) if channels_last(self.shape) else (first, second, third)

    @property
    def num_values(self) -> int:
        """Numbers that it adds to the frame, apart from the mask, which adds one for each action."""
        if self.kind in ("image", "mask"):
            return 0
        if self.kind == "one_hot":
            return sum(self.sizes)
        return math.prod(self.shape)

    def __repr__(self) -> str:
        """One phrase, such as `'image': image (7, 7, 3)`."""
        return f"{self.name!r}: {self.kind} {self.shape}"


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether a 3-axis image is (H, W, C): the shorter of first and last axis is the channels."""
    return len(shape) == 3 and shape[2] <= shape[0]


@dataclass(frozen=True)
class EnvSpec:
    """The spaces of an environment, as the agent sees them; environments with equal specs are compatible."""

    frame_shape: tuple[int, ...]
    """Shape of one frame: (C, H, W) for pixels, (d,) for vectors."""
    pixels: bool
    """True for uint8 images, False for float32 vectors."""
    frame_stack: int
    """Consecutive frames that make one observation."""
    num_actions: int
    """Number of discrete actions; 0 if actions are continuous."""
    action_low: tuple[float, ...] = ()
    """Lower bounds of a continuous action, flattened. The agent itself acts in [-1, 1]."""
    action_high: tuple[float, ...] = ()
    """Upper bounds of a continuous action, flattened."""
    raw_shape: tuple[int, ...] = ()
    """Shape of an observation that is one uint8 image, (H, W, C), (C, H, W) or (H, W), or one array of
    numbers of any shape; () for all others, which have `parts`."""
    action_shape: tuple[int, ...] = ()
    """Shape of an action as the environment takes it; () for Discrete."""
    num_values: int = 0
    """Numbers that come with each image, such as the rest of a Dict; networks join them behind the
    convolutions. 0 for vectors, which are only numbers."""
    masked: bool = False
    """Whether the last `num_actions` numbers of each frame say which actions are allowed (1) and which not
    (0). They steer the choice of actions and are not shown to the networks."""
    parts: tuple[ObsPart, ...] = ()
    """The parts of observations that are not one array taken as it is (`raw_shape`)."""
    action_sizes: tuple[int, ...] = ()
    """Number of choices of each component of an action (MultiDiscrete, MultiBinary, a shifted Discrete),
    flattened. The agent's discrete actions enumerate their combinations, the last component fastest."""
    action_start: tuple[int, ...] = ()
    """Lowest value of each of these components."""
    action_integer: bool = False
    """Whether a continuous action is rounded to whole numbers."""

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

        Images with numbers have, behind their channels, as many more as the bytes of the numbers (float32)
        need.
        """
        if not self.num_values:
            return self.frame_shape
        channels, height, width = self.frame_shape
        return (channels - (-4 * self.num_values // (height * width)), height, width)

    def describe(self) -> str:
        """One phrase for error messages."""
        kind = "pixels" if self.pixels else "vector"
        hidden = self.num_actions if self.masked else 0  # the mask is no observation
        shape = self.frame_shape if self.pixels else (self.frame_shape[0] - hidden,)
        values = self.num_values - hidden if self.num_values else 0
        numbers = f" and {values} number{'s' * (values > 1)}" if values else ""
        stack = f" × {self.frame_stack} frames" if self.frame_stack > 1 else ""
        actions = f"{self.num_actions} {'masked ' * self.masked}actions"
        if not self.discrete:
            actions = f"{self.action_dim}-d continuous actions"
        return f"{kind} {'×'.join(map(str, shape))}{numbers}{stack}, {actions}"

    def to_json(self) -> dict[str, Any]:
        """Plain values for a manifest; `voidrl.envs.spaces.spec_from_json` reads them."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain


class Layout(NamedTuple):
    """Memory layout of images before a network on CUDA; the default is plain (B, C, H, W)."""

    fold: int = 1
    """fold × fold pixels become the channels of one, as `pixel_unshuffle` does it."""
    multiple: int = 1
    """Channels are padded with zeros to a multiple of this."""


class Frames(NamedTuple):
    """B observations as the indices of their stored frames."""

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
    ended: Tensor  # (B,) 1 where the step into `next_obs` ended the episode, the skill or a life, else 0
    note: Tensor  # (B, note_dim) what the method's `observe` noted when `next_obs` was reached


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


CHECK = "check/"  # before the keys of what is only checked to be finite, and not logged


class NonFinite(NamedTuple):
    """A metric that became NaN or infinite since the last flush."""

    variant: int
    """The variant of the update that it belongs to."""
    key: str
    finite_adds: int
    """Number of adds of this variant before the first that was not finite."""
    order: int
    """Position of the key in its update, whose metrics are in the order in which they are computed."""
