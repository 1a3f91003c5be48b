"""The contract of a representation: a space in which distances between states mean something.

A new representation is one new file in this folder, or a class of your own passed as `representation`. It
holds the encoder, f in the paper, and whatever trains it. Set `has_loss` and write `loss` to train it;
everything else has a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from voidrl.config import RepresentationConfig
from voidrl.errors import ConfigError
from voidrl.kernels.fusion import fusable
from voidrl.nets import Encoder
from voidrl.nets.augment import Augment
from voidrl.nets.observations import visible_numbers
from voidrl.nets.spectral import full_precision
from voidrl.replay import Replay, Segment
from voidrl.types import Batch, EnvSpec, Layout, Metrics, Pairs, Sequence

if TYPE_CHECKING:
    from voidrl.learners.base import Learner


class Views:
    """A sample of transitions, each read of which is a fresh augmentation."""

    def __init__(
        self,
        replay: Replay,
        segment: Segment,
        augment: Augment,
        layout: Layout,
        learner: Learner | None = None,
    ) -> None:
        self._replay, self._segment, self._augment, self._layout = replay, segment, augment, layout
        self.learner = learner
        """The learner, for a representation with `reads_learner`; else None."""

    @cached_property
    def batch(self) -> Batch:
        """The transitions as stored, without augmentation."""
        return self._replay.n_step_batch(self._segment)

    @property
    def action(self) -> Tensor:
        """The action taken in s, (B,) or (B, action_dim), without gathering the images of `batch`."""
        return self._replay.action.index_select(0, self._segment.slots[:, 0])

    def obs(self, times: int = 1) -> Tensor:
        """New views of s, (times · B, *obs_shape): all first ones, then all second ones."""
        return self._views(self._segment.slots[:, 0], times)

    def next_obs(self, times: int = 1) -> Tensor:
        """New views of s'."""
        return self._views(self._segment.states[:, -1], times)

    def transitions(self) -> Tensor:
        """New views of s and s', (2B, *obs_shape): all of s, then all of s'."""
        return self._views(torch.cat([self._segment.slots[:, 0], self._segment.states[:, -1]]), 1)

    def sequence(self, steps: int) -> Sequence:
        """New views of s and of the states after it, up to `steps` later, with actions and a mask."""
        segment = self._replay.segment(self._segment.slots[:, 0], steps, 1.0)
        obs = self._views(segment.states.T.flatten(), 1).unflatten(0, (steps + 1, -1))
        slots = segment.slots.T  # (K, B)
        action = self._replay.action.index_select(0, slots.flatten()).unflatten(0, slots.shape)
        return Sequence(obs, action, self._replay.continues(segment).T)

    def later(self, steps: int) -> Pairs:
        """New views of s and of the state `steps` later, without gathering the images between them."""
        segment = self._replay.segment(self._segment.slots[:, 0], steps, 1.0)
        slots = torch.cat([segment.states[:, 0], segment.states[:, -1]])
        obs, later = self._views(slots, 1).chunk(2)
        return Pairs(obs, later, self._replay.continues(segment)[:, -1])

    def future(self, window: int) -> Tensor:
        """New views of states after s, (B, *obs_shape), each 1 to `window` steps later.

        All of these steps that are in the same episode have the same probability.
        """
        segment = self._replay.segment(self._segment.slots[:, 0], window, 1.0)
        steps = (segment.weights > 0).sum(1)  # (B,) that follow s, at least one
        drawn = 1 + (torch.rand_like(steps, dtype=torch.float32) * steps).long()
        drawn = torch.minimum(drawn, steps)  # rand() times a size may be rounded up to it
        return self._views(segment.states.gather(1, drawn[:, None])[:, 0], 1)

    def _views(self, slots: Tensor, times: int) -> Tensor:
        frames = self._replay.frames_of(slots)
        if times > 1:
            frames = frames._replace(index=frames.index.repeat(times, 1))
        return self._augment(frames, self._layout)


@dataclass(frozen=True)
class AuxiliaryConfig(RepresentationConfig):
    """A loss that is added to the learner's, on the learner's encoder."""

    learning_rate: float = 1e-4
    """Learning rate of the heads of this loss; the encoder has the learner's."""
    batch_size: int = 0
    """Observations, or first observations of sequences, in one update; 0 takes the learner's transitions."""
    auxiliary: bool = True
    """Keep training f by this loss in fine-tuning and when training from scratch."""
    target: Literal["own", "learner"] = "own"
    """The network that gives targets, in `curl` keys: the encoder or its slow copy (`own`), or the
    `learner`'s target network (SR-SPR, BBF; CURL on DMControl, with `learner.target_encoder_tau` 0.05)."""


def require_targets(learner: Learner, *names: str) -> None:
    """Refuse a learner that lacks one of these target networks."""
    for name in names:
        if not hasattr(learner, name):
            raise ConfigError(
                f"representation.target = 'learner' cannot be used with learner {learner.config.name!r}, "
                f"which has no {name.replace('_', ' ')}: use 'own'"
            )


class Representation(nn.Module):
    """The encoder and, if `has_loss`, what is needed to train it. Methods see `encode`.

    Whether the gradient of `loss` reaches the encoder is up to `encoder_trainers`; heads always learn by it.
    """

    Config: ClassVar[type[RepresentationConfig]] = RepresentationConfig
    has_loss: ClassVar[bool] = False
    """Whether there is a `loss` to minimize."""
    has_encoder: ClassVar[bool] = True
    """Whether there is an encoder, rather than the observation itself."""
    uses_learner_encoder: ClassVar[bool] = False
    """Whether the encoder is the learner's rather than a network of the representation."""
    raises_priority: ClassVar[bool] = False
    """Whether the loss of a transition counts in its priority, where the replay is prioritized."""
    resets_partly: ClassVar[tuple[str, ...]] = ("encoder", "target_encoder")
    """Children that a reset shrinks and perturbs; the others are reinitialized."""
    reads_files: ClassVar[bool] = False
    """Whether the encoder has given weights, which a new agent reads from a file."""

    def __init__(self, spec: EnvSpec, config: RepresentationConfig, encoder: Encoder | None) -> None:
        super().__init__()
        self.spec, self.config, self.encoder = spec, config, encoder

    @classmethod
    def make_encoder(cls, spec: EnvSpec, config: RepresentationConfig) -> Encoder | None:
        """The encoder; None where the observation is the representation."""
        return Encoder(spec, config.encoder)

    @property
    def reads_learner(self) -> bool:
        """Whether the loss reads networks of `views.learner`, which must then not learn at the same time."""
        return False

    def size_heads(self, learner: Learner) -> None:
        """Called once, when the learner exists: build heads of its width, or refuse one that does not fit."""

    def read_files(self) -> None:
        """Read given weights. Called once, for a new agent; a saved agent holds them itself."""

    @property
    def given_part(self) -> nn.Module | None:
        """The network with given weights, which no loss trains."""
        return None

    @property
    def layout(self) -> Layout:
        """The layout of views on CUDA: the one that the encoder reads fastest."""
        return self.encoder.layout if self.encoder is not None else Layout()

    @property
    def dim(self) -> int:
        """Width of z."""
        return self.encoder.feature_dim if self.encoder is not None else visible_numbers(self.spec)

    @fusable
    def encode(self, obs: Tensor) -> Tensor:
        """f(s): (B, *obs_shape) → (B, dim). Vectors are never encoded in bf16: neighbors differ by little."""
        assert self.encoder is not None
        with full_precision(obs, unless=self.spec.pixels):
            z: Tensor = self.encoder(obs)
        return z

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        """The loss of the encoder and its heads, and what to log about it.

        The loss is a scalar, or (B,) of each transition: the weights of a prioritized replay then apply.
        """
        raise TypeError(f"{type(self).__name__} has no loss")

    def after_update(self) -> None:
        """Change state in place after an update (momentum encoders); captured in CUDA graphs."""
