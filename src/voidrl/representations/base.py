"""The contract of a representation: a space in which distances between states mean something."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from typing import ClassVar

from torch import Tensor, nn

from voidrl.augment import Augment
from voidrl.config import RepresentationConfig
from voidrl.fusion import fusable
from voidrl.nets import Encoder
from voidrl.replay import Replay, Segment
from voidrl.spectral import exact
from voidrl.types import Batch, EnvSpec, Layout, Metrics


class Views:
    """A sample of transitions, each read of which is a fresh augmentation."""

    def __init__(self, replay: Replay, segment: Segment, augment: Augment, layout: Layout) -> None:
        self._replay, self._segment, self._augment, self._layout = replay, segment, augment, layout

    @cached_property
    def batch(self) -> Batch:
        """As stored."""
        return self._replay.joined(self._segment)

    @property
    def action(self) -> Tensor:
        """The action taken in s, (B,) or (B, action_dim), without the images that `batch` would gather."""
        return self._replay.action.index_select(0, self._segment.slots[:, 0]).to(self._replay.device)

    def obs(self, times: int = 1) -> Tensor:
        """New views of s, (times · B, *obs_shape): all first ones, then all second ones."""
        return self._views(self._segment.slots[:, 0], times)

    def next_obs(self, times: int = 1) -> Tensor:
        """New views of s'."""
        return self._views(self._segment.states[:, -1], times)

    def _views(self, slots: Tensor, times: int) -> Tensor:
        frames = self._replay.frames_of(slots)
        return self._augment(frames._replace(index=frames.index.repeat(times, 1)), self._layout)


class Representation(nn.Module):
    """Holds f and, if it trains it, what is needed for that.

    `encode` is what methods see. `loss` is called once per update if `trains_encoder`; its gradient reaches f
    only if the agent's `encoder_owner` is the representation.
    """

    Config: ClassVar[type[RepresentationConfig]] = RepresentationConfig
    trains_encoder: ClassVar[bool] = False
    """Whether `loss` is there to be minimized."""
    takes_learner_encoder: ClassVar[bool] = False
    """Whether f is the learner's encoder rather than one of its own."""

    def __init__(self, spec: EnvSpec, config: RepresentationConfig, encoder: Encoder | None) -> None:
        super().__init__()
        self.spec, self.config, self.encoder = spec, config, encoder

    @classmethod
    def make_encoder(cls, spec: EnvSpec, config: RepresentationConfig) -> Encoder | None:
        """The network f; None where the observation is the representation."""
        return Encoder(spec.obs_shape, config.encoder)

    @property
    def layout(self) -> Layout:
        """How views have images on CUDA: as the encoder reads them fastest; `Layout()` for other networks."""
        return self.encoder.layout if self.encoder is not None else Layout()

    @property
    def dim(self) -> int:
        """Width of z."""
        return self.encoder.feature_dim if self.encoder is not None else self.spec.obs_shape[0]

    @fusable
    def encode(self, obs: Tensor) -> Tensor:
        """f(s): (B, *obs_shape) → (B, dim). Of vectors it is never bf16: neighbors differ by little."""
        assert self.encoder is not None
        with nullcontext() if self.spec.pixels else exact(obs):
            z: Tensor = self.encoder(obs)
        return z

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        """What trains f, and what to log about it."""
        raise TypeError(f"{type(self).__name__} trains nothing")
