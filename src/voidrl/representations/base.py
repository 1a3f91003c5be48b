"""The contract of a representation: a space in which distances between states mean something.

A new representation is one new file in this folder, or a class of your own passed as `representation`. It
holds the encoder f and whatever trains it. Set `has_loss` and write `loss` to train f; everything else has a
default.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property
from typing import ClassVar

from torch import Tensor, nn

from voidrl.augment import Augment
from voidrl.config import RepresentationConfig
from voidrl.kernels.fusion import fusable
from voidrl.nets import Encoder
from voidrl.nets.spectral import full_precision
from voidrl.replay import Replay, Segment
from voidrl.types import Batch, EnvSpec, Layout, Metrics, Sequence


class Views:
    """A sample of transitions, each read of which is a fresh augmentation."""

    def __init__(self, replay: Replay, segment: Segment, augment: Augment, layout: Layout) -> None:
        self._replay, self._segment, self._augment, self._layout = replay, segment, augment, layout

    @cached_property
    def batch(self) -> Batch:
        """The transitions as stored, without augmentation."""
        return self._replay.n_step_batch(self._segment)

    @property
    def action(self) -> Tensor:
        """The action taken in s, (B,) or (B, action_dim), without gathering the images of `batch`."""
        return self._replay.action.index_select(0, self._segment.slots[:, 0]).to(self._replay.device)

    def obs(self, times: int = 1) -> Tensor:
        """New views of s, (times · B, *obs_shape): all first ones, then all second ones."""
        return self._views(self._segment.slots[:, 0], times)

    def next_obs(self, times: int = 1) -> Tensor:
        """New views of s'."""
        return self._views(self._segment.states[:, -1], times)

    def sequence(self, steps: int) -> Sequence:
        """New views of s and of the states after it, up to `steps` later, with actions and a mask."""
        segment = self._replay.segment(self._segment.slots[:, 0], steps, 1.0)
        obs = self._views(segment.states.T.flatten(), 1).unflatten(0, (steps + 1, -1))
        slots = segment.slots.T  # (K, B)
        action = self._replay.action.index_select(0, slots.flatten()).unflatten(0, slots.shape)
        device = self._replay.device
        return Sequence(obs, action.to(device), self._replay.continues(segment).T.to(device))

    def _views(self, slots: Tensor, times: int) -> Tensor:
        frames = self._replay.frames_of(slots)
        return self._augment(frames._replace(index=frames.index.repeat(times, 1)), self._layout)


class Representation(nn.Module):
    """The encoder f and, if `has_loss`, what is needed to train it. Methods see `encode`.

    Whether the gradient of `loss` reaches f is up to `encoder_trainers`; the heads are always trained by it.
    """

    Config: ClassVar[type[RepresentationConfig]] = RepresentationConfig
    has_loss: ClassVar[bool] = False
    """Whether there is a `loss` to minimize."""
    uses_learner_encoder: ClassVar[bool] = False
    """Whether f is the learner's encoder rather than a network of the representation."""
    resets_partly: ClassVar[tuple[str, ...]] = ("encoder", "target_encoder")
    """Children that a reset shrinks and perturbs; the others are reinitialized."""

    reads_files: ClassVar[bool] = False
    """Whether f has given weights, which a new agent reads from a file."""

    def __init__(self, spec: EnvSpec, config: RepresentationConfig, encoder: Encoder | None) -> None:
        super().__init__()
        self.spec, self.config, self.encoder = spec, config, encoder

    @classmethod
    def make_encoder(cls, spec: EnvSpec, config: RepresentationConfig) -> Encoder | None:
        """The network f; None where the observation is the representation."""
        return Encoder(spec.obs_shape, config.encoder)

    def use_critic(self, critic: nn.Module) -> None:
        """Called once with the learner's critic, for a loss that passes through its layers."""

    @classmethod
    def describe_files(
        cls, config: RepresentationConfig, pretrained: RepresentationConfig | None
    ) -> RepresentationConfig:
        """The config of a new run, completed by what identifies the files with given weights.

        `pretrained` is the config of an agent that is fine-tuned, whose weights were read before.
        """
        return config

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
        return self.encoder.feature_dim if self.encoder is not None else self.spec.obs_shape[0]

    @fusable
    def encode(self, obs: Tensor) -> Tensor:
        """f(s): (B, *obs_shape) → (B, dim). Vectors are never encoded in bf16: neighbors differ by little."""
        assert self.encoder is not None
        with nullcontext() if self.spec.pixels else full_precision(obs):
            z: Tensor = self.encoder(obs)
        return z

    def loss(self, views: Views) -> tuple[Tensor, Metrics]:
        """The loss of f and its heads, and what to log about it.

        The loss is a scalar, or (B,) of each transition: the weights of a prioritized replay then apply.
        """
        raise TypeError(f"{type(self).__name__} has no loss")

    def after_step(self) -> None:
        """Change state in place after an update (momentum encoders); captured in CUDA graphs."""
