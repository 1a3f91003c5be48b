"""The configs that methods, representations and learners have in common; their own derive from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from voidrl.config.checks import (
    Checked,
    Count,
    Limit,
    NotNegative,
    OptionalSize,
    Polyak,
    Positive,
    PositiveCount,
    Size,
    between,
)

PIECES = ("method", "representation", "learner")
STACKS = ("auto", "light", "nature", "impala", "drq", "paper", "small", "tiny", "mlp")
EncoderTrainer = Literal["representation", "method", "learner"]
STACK = Limit(lambda stack: stack in STACKS or ":" in stack, f"{', '.join(STACKS)}, or 'module:Class'")
Steps = Annotated[int, between(1, 1000)]
Discount = Annotated[float, Limit(lambda value: 0 < value < 1, "a number in (0, 1)")]


@dataclass(frozen=True)
class EncoderConfig(Checked):
    """A network from observations to features: stack → FC → LayerNorm → tanh."""

    stack: Annotated[str, STACK] = "auto"
    """Convolutions: `nature`, `impala`, `drq` (strides 2, 1, 1, 1), `paper` (strides 2, 2, 2, 1), `small`
    (5×5, strides 5, 5; DER and CURL) or `tiny` (two of 3×3 without strides, which also read the logarithm of
    each byte, for symbols such as MiniGrid's); `mlp` for vectors; or a network of yours as `module:Class`.
    `auto`: `tiny` for images with a side below 20 pixels, `drq` for continuous actions or a side below 36,
    else `nature`; `mlp` with a hidden layer for vectors. `light`, for a CPU: as `auto`, but `paper` for
    images that are large enough."""
    feature_dim: OptionalSize = 50
    """Width of the output; 0 leaves out FC, LayerNorm and tanh."""
    hidden_dim: OptionalSize = 0
    """Width of a fully connected layer before the output; 0 for none."""
    activation: Literal["elu", "relu"] = "elu"
    """Non-linearity between layers."""
    spectral_norm_iterations: Annotated[int, between(0, 1000)] = 0
    """Power iterations of spectral normalization per training pass (the paper: 5); 0 turns it off."""
    width: Annotated[float, Limit(lambda value: 0 < value <= 1000, "a factor above 0, up to 1000")] = 1.0
    """Multiplies the channels of the convolutions."""
    rescale: bool = False
    """Scale the output of the convolutions to [0, 1] in each sample (SPR, BBF); for vectors, the
    encoder's."""


@dataclass(frozen=True)
class PieceConfig(Checked):
    """The part of the config that every swappable piece has: the name of its class."""

    name: str = ""
    """File name in `voidrl.methods`, `.representations` or `.learners`, or `module:Class`."""


@dataclass(frozen=True)
class MethodConfig(PieceConfig):
    """The intrinsic reward."""

    learning_rate: Positive = 1e-4
    """Learning rate of the method's own networks, if it has any."""


@dataclass(frozen=True)
class SkillConfig(MethodConfig):
    """A method whose policy is conditioned on a skill."""

    skill_every_steps: Count = 0
    """Environment steps for which a skill is kept; 0: a whole episode."""


@dataclass(frozen=True)
class OptimizerConfig(PieceConfig):
    """Settings of Adam that representations and learners share."""

    adam_eps: Positive = 1e-8
    """Adam's ε."""
    max_grad_norm: NotNegative = 0.0
    """Norm to which these gradients are clipped; 0 turns clipping off."""


@dataclass(frozen=True)
class RepresentationConfig(OptimizerConfig):
    """The representation f, the space in which intrinsic rewards are computed."""

    encoder: EncoderConfig = field(default_factory=lambda: EncoderConfig(feature_dim=15))
    """The encoder f."""
    learning_rate: Positive = 1e-3
    """Learning rate of f and its heads, except for weights that the learner trains as well."""
    warmup_updates: Count = 0
    """Updates over which the learning rate rises from 0. Where images differ in a few pixels, as on Atari,
    large first updates make f ignore them."""
    batch_size: OptionalSize = 512
    """Observations in one update; 0 takes the learner's transitions, as in URLB, where s' is `learner.n_step`
    steps after s."""
    auxiliary: bool = False
    """Keep training f by this loss in fine-tuning and when training from scratch."""
    loss_weight: Positive = 1.0
    """Weight of this loss where another loss trains the same weights."""


@dataclass(frozen=True)
class LearnerConfig(OptimizerConfig):
    """The RL algorithm."""

    encoder: EncoderConfig = field(default_factory=lambda: EncoderConfig(activation="relu"))
    """The learner's encoder; not built with `share_encoder = "all"`."""
    batch_size: Size = 256
    """Transitions in one update; also the particles searched for neighbors, unless the method draws more."""
    views: Annotated[int, between(1, 16)] = 1
    """Augmented views of each state, over which targets and losses are averaged (DrQ on DMControl: 2)."""
    discount: Discount = 0.99
    """γ of one environment step."""
    discount_end: Discount | None = None
    """γ after `anneal_updates`, approached exponentially in 1 − γ (BBF: from 0.97 to 0.997); None keeps γ."""
    n_step: Steps = 1
    """Steps whose rewards are summed before the value is bootstrapped."""
    n_step_end: Steps | None = None
    """n after `anneal_updates`, approached exponentially (BBF: from 10 to 3); None keeps n."""
    anneal_updates: PositiveCount = 10_000
    """Updates from the start, and from each reset, over which n and γ are annealed."""
    intrinsic_n_step: Literal["summed", "single"] = "summed"
    """With n_step > 1: score each of the n successors and sum (`summed`), or only the n-th (`single`)."""
    learning_rate: Positive = 1e-4
    """Learning rate."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay (AdamW) of learner and representation, except biases and normalizations."""
    hidden_dim: Size = 1024
    """Width of the heads."""
    hidden_layers: Annotated[int, between(1, 100)] = 2
    """Hidden layers of the heads."""
    target_tau: Polyak = 0.01
    """τ of a target update: target ← (1 − τ) target + τ online."""
    target_encoder_tau: Polyak | None = None
    """τ of the encoder's target; None takes `target_tau` (SAC from pixels, CURL and RAD: 0.05)."""
    target_every_updates: PositiveCount = 1
    """Updates between two target updates."""
    clamp_targets: bool = True
    """Clamp TD targets to the range that the rewards seen so far allow, so that values cannot diverge."""

    @property
    def on_policy(self) -> bool:
        """Whether it learns from rollouts of its own policy instead of samples from the replay."""
        return bool(getattr(self, "rollout_steps", 0))

    @property
    def longest_n_step(self) -> int:
        """The largest n that annealing passes through."""
        return max(self.n_step, self.n_step_end or 0)

    @property
    def largest_discount(self) -> float:
        """The largest γ that annealing passes through."""
        return max(self.discount, self.discount_end or 0)


# Pieces that `auto` leaves to the environment: until then they have the fields common to their kind.
AUTOMATIC: dict[str, type[PieceConfig]] = {"representation": RepresentationConfig, "learner": LearnerConfig}
