"""The configs that methods, representations and learners have in common; their own derive from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from voidrl.config.checks import MAX_VIEWS, require, require_positive
from voidrl.config.environment import Count

PIECES = ("method", "representation", "learner")
STACKS = ("auto", "light", "nature", "impala", "drq", "paper", "small", "tiny", "mlp")
Trainer = Literal["representation", "method", "learner"]


@dataclass(frozen=True)
class EncoderConfig:
    """A network from observations to features: stack → FC → `output`, LayerNorm and tanh by default."""

    stack: str = "auto"
    """Convolutions: `nature`, `impala`, `drq` (strides 2, 1, 1, 1), `paper` (strides 2, 2, 2, 1), `small`
    (5×5 with strides 5, 5; DER and CURL) or `tiny` (two of 3×3 without strides, from 5×5 pixels on, which
    also read the logarithm of each byte, for symbols such as MiniGrid's); `mlp` for vectors; or a custom
    network as `module:Class` (in Python also the class itself). `auto`: `tiny` for images with a side below
    20 pixels, otherwise `drq` for continuous actions or with a side below 36, else `nature`; `mlp` with a
    hidden layer for vectors. `light`, for a CPU: the same, but `paper` for images, as far as they are large
    enough. Numbers that come with images are joined behind the convolutions."""
    feature_dim: int = 50
    """Width of the output. 0 leaves out FC and what follows it: the features are the stack's own."""
    hidden_dim: int = 0
    """Width of one more fully connected layer before the output; 0 for none."""
    output: Literal["layer_norm_tanh", "layer_norm", "linear"] = "layer_norm_tanh"
    """What follows the FC of the output: LayerNorm and tanh, LayerNorm alone, or nothing. LayerNorm fixes
    mean and length of each state's features, two of their degrees of freedom, which matters where they are
    few (5 on Atari); `linear` keeps them. Not used with feature_dim 0."""
    activation: Literal["elu", "relu"] = "elu"
    """Non-linearity between layers."""
    spectral_norm_iterations: int = 0
    """Power iterations of spectral normalization in each training pass (the paper: 5); 0 turns it off."""
    width: float = 1.0
    """Multiplies the channels of the convolutions."""
    rescale: bool = False
    """Scale the output of the convolutions, for vectors that of the encoder, to [0, 1] in each sample (SPR,
    BBF)."""

    def __post_init__(self) -> None:
        require(
            self.stack in STACKS or ":" in self.stack,
            "stack",
            self.stack,
            f"{', '.join(STACKS)}, or 'module:Class'",
        )
        require(0 < self.width <= 1000, "width", self.width, "a factor above 0, up to 1000")
        for name in ("feature_dim", "hidden_dim"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        iterations = self.spectral_norm_iterations
        require(0 <= iterations <= 1000, "spectral_norm_iterations", iterations, "0 to 1000")


@dataclass(frozen=True)
class PieceConfig:
    """The part of the config that every swappable piece has: the name of its class."""

    name: str = ""
    """File name in `voidrl.methods`, `.representations` or `.learners`, or `module:Class`."""


@dataclass(frozen=True)
class MethodConfig(PieceConfig):
    """The intrinsic reward."""

    positive: ClassVar[tuple[str, ...]] = ()
    """Names of further fields that have to be above 0."""

    learning_rate: float = 1e-4
    """Learning rate of the method's own networks, if it has any."""

    def __post_init__(self) -> None:
        require_positive(self, "learning_rate", *self.positive)


@dataclass(frozen=True)
class SkillConfig(MethodConfig):
    """A method whose policy is conditioned on a skill."""

    skill_every_steps: int = 0
    """Environment steps for which a skill is kept; 0 keeps it for a whole episode."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.skill_every_steps >= 0, "skill_every_steps", self.skill_every_steps, "0 or more")


@dataclass(frozen=True)
class RepresentationConfig(PieceConfig):
    """The representation f, the space in which intrinsic rewards are computed."""

    encoder: EncoderConfig = field(default_factory=lambda: EncoderConfig(feature_dim=15))
    """The encoder f."""
    learning_rate: float = 1e-3
    """Learning rate of f and its heads, except for weights that the learner trains as well."""
    adam_eps: float = 1e-8
    """Adam's ε for the same weights."""
    max_grad_norm: float = 0.0
    """Their gradients are clipped to this norm; 0 turns clipping off."""
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW) of the same weights, biases and normalizations excepted."""
    warmup_updates: Count = 0
    """Updates over which the learning rate rises from 0. Where images differ in a few pixels only, as on
    Atari, large first updates make f ignore them all."""
    batch_size: int = 512
    """Observations in one representation update; 0 takes the learner's own transitions, as in URLB: s' is
    then `learner.n_step` steps after s."""
    auxiliary: bool = False
    """Keep training f by this loss during fine-tuning and when training from scratch, next to the learner's
    loss."""
    loss_weight: float = 1.0
    """Weight of this loss where it is added to another loss of the same weights."""

    def __post_init__(self) -> None:
        require_positive(self, "learning_rate", "adam_eps", "loss_weight")
        require(0 <= self.weight_decay < math.inf, "weight_decay", self.weight_decay, "a number from 0 on")
        require(self.max_grad_norm >= 0, "max_grad_norm", self.max_grad_norm, "0 or more")
        require(self.batch_size >= 0, "batch_size", self.batch_size, "0 (the learner's) or more")
        require(self.warmup_updates >= 0, "warmup_updates", self.warmup_updates, "0 or more")


@dataclass(frozen=True)
class LearnerConfig(PieceConfig):
    """The RL algorithm."""

    encoder: EncoderConfig = field(default_factory=lambda: EncoderConfig(activation="relu"))
    """The learner's encoder; not built with `share_encoder = "all"`."""
    batch_size: int = 256
    """Transitions in one update; also the particles searched for neighbors, unless the method draws more."""
    views: int = 1
    """Augmented views of each state, over which targets and losses are averaged (DrQ on DMControl: 2)."""
    discount: float = 0.99
    """γ of one environment step."""
    discount_end: float | None = None
    """γ after `anneal_updates`, which 1 − γ approaches exponentially (BBF: from 0.97 to 0.997); None keeps
    γ."""
    n_step: int = 1
    """Steps whose rewards are summed before the value is bootstrapped."""
    n_step_end: int | None = None
    """n after `anneal_updates`, approached exponentially (BBF: from 10 to 3); None keeps n."""
    anneal_updates: Count = 10_000
    """Updates from the start, and from each reset, over which n and γ are annealed."""
    intrinsic_n_step: Literal["summed", "single"] = "summed"
    """With n_step > 1: score each of the n successors and sum (`summed`), or only the n-th (`single`)."""
    learning_rate: float = 1e-4
    """Learning rate."""
    adam_eps: float = 1e-8
    """Adam's ε."""
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW), biases and normalizations excepted; 0 turns it off."""
    max_grad_norm: float = 0.0
    """Gradients of each optimizer's weights are clipped to this norm; 0 turns clipping off."""
    hidden_dim: int = 1024
    """Width of the heads."""
    hidden_layers: int = 2
    """Hidden layers of the heads."""
    target_tau: float = 0.01
    """Polyak coefficient: target ← (1 − τ) target + τ online at each target update."""
    target_encoder_tau: float | None = None
    """τ of the encoder's target; None takes `target_tau` (SAC from pixels, CURL and RAD: 0.05)."""
    target_every_updates: Count = 1
    """Updates between two target updates."""
    clamp_targets: bool = True
    """Clamp TD targets to what the rewards seen so far can add up to, so that values cannot diverge."""

    def __post_init__(self) -> None:
        require_positive(self, "batch_size", "n_step", "learning_rate", "adam_eps")
        require_positive(self, "hidden_dim", "target_every_updates", "anneal_updates")
        require(1 <= self.views <= MAX_VIEWS, "views", self.views, f"1 to {MAX_VIEWS}")
        require(0 <= self.weight_decay < math.inf, "weight_decay", self.weight_decay, "a number from 0 on")
        if self.n_step_end is not None:
            require_positive(self, "n_step_end")
        end = self.discount_end
        require(end is None or 0 < end < 1, "discount_end", end, "None or a number in (0, 1)")
        require(1 <= self.hidden_layers <= 100, "hidden_layers", self.hidden_layers, "1 to 100")
        require(0 < self.target_tau <= 1, "target_tau", self.target_tau, "a number in (0, 1]")
        tau = self.target_encoder_tau
        require(tau is None or 0 < tau <= 1, "target_encoder_tau", tau, "None or a number in (0, 1]")
        require(0 < self.discount < 1, "discount", self.discount, "a number in (0, 1)")
        require(self.max_grad_norm >= 0, "max_grad_norm", self.max_grad_norm, "0 or more")

    @property
    def on_policy(self) -> bool:
        """Whether it learns from rollouts of its own policy, in the order of time, and not from samples."""
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
