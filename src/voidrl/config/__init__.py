"""Everything that determines a run, as frozen dataclasses; to and from JSON.

The swappable pieces (method, representation, learner) define their config class in their own file; the fields
that they have in common are here. This file does not import torch.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, TypeVar

from voidrl.config import registry
from voidrl.errors import ConfigError, UnknownNameError, by_caller, shown

T = TypeVar("T")

Count = int  # which the command line also reads as 1M, 100k, 1e6 and 1_000_000
LARGEST = 2**63  # numbers of a config are below it, as torch's are
MAX_DOTS = 8  # in the name of a field
MAX_ENVS = 8192
MAX_CPU_THREADS = 1024
MAX_FRAMES = 2**31 - 1  # of a game of Atari, which ALE counts in 32 bits
MAX_SKILLS = 2**16  # discrete ones
MAX_UPDATES_PER_STEP = 1024
MAX_EVAL_EPISODES = 10_000
LEAST_PROBE_STEPS, MAX_PROBE_STEPS = 100, 1_000_000
MAX_SNAPSHOTS = 1000
MAX_VIEWS = 16
PIECES = ("method", "representation", "learner")
SET_BY_COMMAND = frozenset({"phase", "env.id", *(f"{kind}.name" for kind in PIECES)})  # no options
STACKS = ("auto", "light", "nature", "impala", "drq", "paper", "small", "tiny", "mlp")
# Fields that belong to the machine and its user, not to the agent: shared agents have none of them.
LOCAL_FIELDS = (
    "device",
    "cpu_threads",
    "engine",
    "env.backend",
    "env.dmc.processes",
    "env.dmc.renderer",
    "env.timeout_s",
    "replay.data",
    "replay.device",
    "representation.weights",
    "log.keep_last",
    "log.keep_replay",
    "log.tensorboard",
    "log.wandb_project",
)
# Fields that whoever runs a downloaded agent decides: what is measured, logged and kept. `log.eval_epsilon`
# is not among them, since it belongs to the protocol of evaluations.
USER_FIELDS = (
    "env.count_states",
    "env.counted_envs",
    "log.log_every_steps",
    "log.eval_every_steps",
    "log.eval_episodes",
    "log.probe_every_steps",
    "log.probe_steps",
    "log.checkpoint_every_steps",
    "log.snapshot_steps",
)
# Fields that a run may change when it is resumed; "log." are all of that group. All others define the run.
RESUMABLE_FIELDS = (
    # How long, where and how it is computed.
    *("steps", "device", "cpu_threads", "engine", "precision", "replay.device"),
    # How environments are run.
    *("env.backend", "env.dmc.processes", "env.dmc.renderer", "env.timeout_s", "env.check_bounds"),
    "log.",  # what is written, and when; checkpoints at other steps also cut episodes elsewhere
    # The remedies for a run that diverges.
    *("learner.learning_rate", "method.learning_rate", "representation.learning_rate"),
    *("finetune.learning_rate", "learner.max_grad_norm"),
)
Trainer = Literal["representation", "method", "learner"]
# What other libraries call our fields.
OTHER_NAMES = {
    "lr": "learning_rate",
    "gamma": "discount",
    "tau": "target_tau",
    "n_envs": "num_envs",
    "n_steps": "n_step",
    "batch": "batch_size",
    "buffer_size": "capacity_steps",
    "total_timesteps": "steps",
    "timesteps": "steps",
    "learning_starts": "warmup_steps",
    "train_freq": "updates_per_step",
    "gradient_steps": "updates_per_step",
    "eval_freq": "eval_every_steps",
    "n_eval_episodes": "eval_episodes",
    "frame_skip": "action_repeat",
    "wandb": "wandb_project",
}


def require(ok: bool, name: str, value: object, expected: str) -> None:
    """Raise one clear sentence unless `ok`."""
    if not ok:
        raise ConfigError(f"{name} = {shown(value)} cannot be used: expected {expected}")


def require_positive(config: object, *names: str) -> None:
    """Refuse values that are not above zero."""
    for name in names:
        value = getattr(config, name)
        require(0 < value < math.inf, name, value, "a finite number above 0")


def require_skills(name: str, count: int) -> None:
    """Refuse a number of discrete skills among which none could be told from another."""
    reason = "since a skill is rewarded for differing from others; apt and rnd do without skills"
    require(2 <= count <= MAX_SKILLS, name, count, f"2 to {MAX_SKILLS}, {reason}")


def require_update_rate(updates_per_step: float) -> None:
    """Refuse a number of updates per step that no training finishes with."""
    few = 0 < updates_per_step <= MAX_UPDATES_PER_STEP
    require(few, "updates_per_step", updates_per_step, f"a number above 0, up to {MAX_UPDATES_PER_STEP}")


@dataclass(frozen=True)
class AtariConfig:
    """The rules of the environments `atari/…`; no other environment has these options.

    A query in the id says the same, and wins: `atari/pong?sticky=true`. Evaluations play whole games for the
    raw score, whatever `life_loss` and `clip_rewards` are.
    """

    sticky: float = 0.0
    """Probability that the emulator repeats its last action in a frame; `?sticky=true` is 0.25."""
    life_loss: Literal["always", "task", "never"] = "always"
    """When a lost life is terminal in training: `always` (the paper); `task`, only while a task's reward is
    learned, so that a policy pre-trained for novelty is not trained to survive; or `never`. In an id true is
    `always`, false `never`."""
    full_actions: bool = False
    """All 18 actions instead of the game's minimal set."""
    noop_max: int = 30
    """Most frames without an action at the start of a game; the number is drawn."""
    max_frames: Count = 108_000
    """Frames after which a game is truncated."""
    clip_rewards: bool = True
    """Clip rewards to [−1, 1] in training."""

    def __post_init__(self) -> None:
        require(0 <= self.sticky < 1, "sticky", self.sticky, "a probability below 1")
        require(0 <= self.noop_max < MAX_FRAMES, "noop_max", self.noop_max, "a number of frames, 0 or more")
        few = 0 < self.max_frames < MAX_FRAMES
        require(few, "max_frames", self.max_frames, "a number of frames above 0")


@dataclass(frozen=True)
class DMControlConfig:
    """Observations and simulation of `dmc/…`; no other environment has these options."""

    observation: Literal["states", "pixels"] = "states"
    """The task's own observations as one vector, or images."""
    action_repeat: int = 0
    """Control steps per agent step, in which the action is held. 0 is the domain's default: 1 for states; for
    pixels the paper's, 4 for the cheetah and 2 for all others."""
    image_size: int = 84
    """Height and width of images in pixels."""
    camera: int | str = -1
    """Number or name of the camera; −1 is the one URLB uses: 2 for the quadruped, `front_close` for jaco,
    0 for all others."""
    render_quality: Literal["default", "medium", "fast"] = "default"
    """`default`, as dm_control renders; `medium`, with coarser shadows and curves: colors differ by about
    0.3 of 255, at a quarter of the cost on a CPU; `fast`, without shadows and multisampling."""
    renderer: Literal["auto", "gpu", "cpu"] = "auto"
    """Where images are rendered. `auto` takes CPU cores if networks learn on the GPU and there are enough
    cores for this quality, else the GPU if there is one, and says so."""
    processes: int = 0
    """Simulator processes, unless `env.backend` is `sync`; 0 is one per environment, up to the number of CPU
    cores."""

    def __post_init__(self) -> None:
        require(0 < self.image_size <= 1024, "image_size", self.image_size, "1 to 1024 pixels")
        for name in ("action_repeat", "processes"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 (chosen for you) or more")


@dataclass(frozen=True)
class EnvConfig:
    """The environment and the number of copies."""

    id: str = ""
    """`atari/<game>`, `dmc/<domain>_<task>`, a Gymnasium id or `module:factory`; options as a query:
    `atari/pong?sticky=true`."""
    num_envs: int = 1
    """Environments stepped in parallel."""
    backend: Literal["auto", "native", "sync", "async", "tensor"] = "auto"
    """How they are stepped: natively vectorized, in this process, in worker processes, or as tensors on the
    run's device, where observations stay. `auto` takes the native version where the environment has one; else
    `sync`, on DMControl `async`."""
    frame_stack: int = 1
    """Consecutive frames that make one observation; stacked by the replay, not by the environment."""
    count_states: bool = False
    """Measure coverage. On Atari the distinct states of the game's memory, for which worker processes emulate
    every step a second time; on DMControl bins of (height, angle, velocity) and the entropy of the physics
    states."""
    counted_envs: int = 0
    """Number of environments in which states are counted, fewer being cheaper; 0 for all of them."""
    timeout_s: float = 300.0
    """Seconds after which a worker process that does not answer counts as hung, which ends the run."""
    check_bounds: bool = True
    """Refuse observations outside the bounds of their space."""
    keys: tuple[str, ...] = ()
    """Entries of a Dict observation that the agent sees, in this order, such as `image` or `agent/position`.
    (): all of them."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around each environment, the innermost first: `module:Wrapper` or
    `module:Wrapper?option=value`. A native version is then not used."""
    action_masks: Literal["auto", "none", "info", "method", "key"] = "auto"
    """Where the environment says which discrete actions are allowed: in its `info["action_mask"]`, by its
    method `action_masks()`, or under the key `action_mask` of its observations. `auto` looks for them when
    the environment is probed."""
    atari: AtariConfig = field(default_factory=AtariConfig)
    """Atari."""
    dmc: DMControlConfig = field(default_factory=DMControlConfig)
    """DMControl."""

    def __post_init__(self) -> None:
        require(0 < self.num_envs <= MAX_ENVS, "num_envs", self.num_envs, f"1 to {MAX_ENVS}")
        require(0 < self.frame_stack <= 1024, "frame_stack", self.frame_stack, "1 to 1024 frames")
        require_positive(self, "timeout_s")
        require(self.counted_envs >= 0, "counted_envs", self.counted_envs, "0 (all) or a number of them")
        for wrapper in self.wrappers:
            named = ":" in wrapper.partition("?")[0]
            require(named, "wrappers", wrapper, "'module:Wrapper', such as gymnasium.wrappers:TimeLimit")


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

    learning_rate: float = 1e-4
    """Learning rate of the method's own networks, if it has any."""

    def __post_init__(self) -> None:
        require_positive(self, "learning_rate")


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


@dataclass(frozen=True)
class AugmentConfig:
    """Augmentation, drawn for every observation, the same for all its frames; pixels only.

    An image is cut to a random window of `inner_size`, padded by `shift_pixels` on each side by repeating its
    edges, and cropped at random, to `crop_size` or the size that it had.
    """

    shift_pixels: int | None = None
    """Padding on each side: the largest random shift, unless images are cropped. Edges are repeated. None
    goes by the images: a ninth of the shorter side, at most 4, and 0 for a side below 16 pixels, where a
    pixel is often a symbol and a shift another state."""
    intensity_scale: float = 0.0
    """Intensity jitter: images are multiplied by 1 + scale · clip(N(0, 1), −2, 2)."""
    crop_size: int = 0
    """Height and width of the images that networks read: random crops in losses, the center everywhere else
    (RAD: 84 of 100, with `shift_pixels` 0). The replay stores whole images. 0 does not crop."""
    inner_size: int = 0
    """Height and width of a random window outside of which its edges are repeated (CURL on Atari: 80); 0 for
    the whole image."""
    shift_probability: float = 1.0
    """Probability that an image is shifted or cropped at random, rather than in the middle (ATC: 0.1)."""
    learner: bool = True
    """Augment the learner's images too. False leaves augmentation to the representation (CURL on Atari)."""

    def __post_init__(self) -> None:
        shift = self.shift_pixels
        require(shift is None or shift >= 0, "shift_pixels", shift, "0 or more, or None")
        for name in ("intensity_scale", "crop_size", "inner_size"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        share = self.shift_probability
        require(0 <= share <= 1, "shift_probability", share, "a number in [0, 1]")


@dataclass(frozen=True)
class ReplayConfig:
    """The replay buffer."""

    capacity_steps: Count = 100_000
    """Environment steps kept, over all environments together; the last frame of an episode takes up one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` keeps the replay on the networks' device if it fits there. Otherwise its frames are kept in main
    memory, which is pinned so that the GPU reads it directly, and the run says so. `cpu` keeps them there
    always."""
    priority_exponent: float = 0.0
    """α of prioritized sampling (Schaul et al. 2016): transitions are drawn with a probability proportional
    to their last error to the power of α; 0 draws uniformly."""
    importance_start: float = 0.4
    """β of the importance weights (N P)^−β at the start; they are divided by the largest of the batch."""
    importance_end: float = 1.0
    """β at the end of the run, to which it rises linearly."""
    priority_losses: Literal["learner", "all"] = "learner"
    """Which errors make up a priority: the learner's, or `all`, the auxiliary loss of each transition
    included (CURL on Atari)."""
    data: str | None = None
    """A dataset that fills the replay before the first step: the id or the path of a Minari dataset, or an
    .npz file of `voidrl export`. None for an empty replay."""

    def __post_init__(self) -> None:
        require_positive(self, "capacity_steps")
        for name in ("priority_exponent", "importance_start", "importance_end"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "a number in [0, 1]")


@dataclass(frozen=True)
class ResetConfig:
    """Periodic resets, without which many updates per step overfit (SR-SPR, BBF)."""

    every_updates: Count = 0
    """Updates between two resets; 0 turns them off."""
    keep: float = 0.8
    """Share of the encoder's weights that a reset keeps, the rest being those of a new one: shrink and
    perturb (SR-SPR: 0.8, BBF: 0.5). Heads are reinitialized, and their optimizers' moments set to 0."""
    last_steps: Count = 20_000
    """Steps at the end of the run without a reset."""

    def __post_init__(self) -> None:
        for name in ("every_updates", "last_steps"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        require(0 <= self.keep <= 1, "keep", self.keep, "a number in [0, 1]")


@dataclass(frozen=True)
class FinetuneConfig:
    """What is kept of the pre-trained agent, and how it is adapted."""

    steps: Count | None = None
    """Environment steps, unless the command says otherwise; None takes as many as in pre-training."""
    updates_per_step: float | None = None
    """Gradient steps per environment step; None takes those of pre-training."""
    heads: Literal["auto", "pretrained", "actor", "first_layer", "random"] = "auto"
    """Which heads are kept. `auto` decides at the end of the warm-up, from the task's returns in it: where
    the pre-trained values correlate with them (the *alignment*), values are moved to the task's scale and
    everything is kept; otherwise the critic is reinitialized and the policy kept, as the actor, or as the
    explorer of a learner without one. `pretrained` keeps all heads, `random` none. `actor` (URLB) keeps the
    policy and the trunks of both, and reinitializes the critic behind its trunk, or all of it without a
    trunk. `first_layer` (SGI) keeps the layer of each head that reads the features."""
    frozen_column: Literal["none", "learner", "representation"] = "none"
    """A pre-trained encoder that stays as it is, next to a new one that learns; heads read the features of
    both (progressive networks). `learner`: the encoder of the pre-trained policy; `representation`: f. It
    takes new heads: a command that names it sets `heads` to `random` and, unless it says otherwise,
    `encoder_learning_rate`, which is then the new encoder's, to None."""
    learning_rate: float | None = None
    """The learner's learning rate during fine-tuning and, under a protocol, when training from scratch; None
    takes `learner.learning_rate`."""
    encoder_learning_rate: float | None = None
    """Learning rate of the learner's encoder while fine-tuning; None takes the learner's, 0 freezes it."""
    first_layer_learning_rate: float | None = None
    """Learning rate of the first layer of the heads while fine-tuning; None takes the learner's, 0 freezes
    it."""
    warmup_steps: Count = 1000
    """Steps before the first update."""
    warmup_actions: Literal["policy", "random"] = "policy"
    """Who acts during the warm-up: the pre-trained policy, whatever becomes of the heads, or uniform random
    actions (the paper on DMControl). Skill methods try their skills in this time, which takes the policy."""
    explorer: float = 0.0
    """Probability per step, after the warm-up, that the frozen pre-trained policy takes over in an
    environment for some steps (CPT: behavior transfers better than weights). It falls linearly to 0. The new
    policy alone is evaluated."""
    explorer_steps: float = 50.0
    """Mean number of steps for which the pre-trained policy then acts; the numbers are geometric."""
    explorer_decay_steps: Count | None = None
    """Steps of the run after which `explorer` is 0; None for the whole run."""
    noise: Literal["auto", "end", "restart"] = "auto"
    """Exploration noise (ε, or the standard deviation): stay at the `end` of its schedule, or `restart` it;
    `auto` restarts it for a policy that is new, which is that of a learner without an actor with new heads.
    The schedule of ε starts when the warm-up is over."""
    temperature: Literal["task", "pretrained"] = "task"
    """SAC's α: `task` restarts it at `learner.initial_temperature` times (1 − γ) times the range of the
    task's returns in the warm-up, so that the entropy bonus is small next to them; or keep it."""
    return_range: float = 1.0
    """Multiply rewards so that the returns of the warm-up differ by this much: learning rates, the entropy
    bonus and the initialization of a critic then suit the task whatever it pays. 0 leaves rewards as they
    are, and so do pre-trained heads."""
    critic_share: float = 0.1
    """Share of the updates in which a new critic learns to judge the kept actor, which waits; 0 trains both
    from the start."""
    wait_for_reward: bool = True
    """Adapt when rewards differ, not before: until then there is nothing to adapt to, and the agent keeps
    exploring. An actor, and skills, are not trained meanwhile."""
    detours: float = 0.05
    """Probability per step of a detour, on which one random action is held for about ten steps. It is
    constant until the agent is adapted and falls to 0 in the first half of the steps after that. 0 turns
    detours off."""

    def __post_init__(self) -> None:
        for name in ("encoder_learning_rate", "first_layer_learning_rate"):
            rate = getattr(self, name)
            require(rate is None or 0 <= rate < math.inf, name, rate, "None, 0 (frozen) or a learning rate")
        if self.frozen_column != "none":
            column = f"with frozen_column = {self.frozen_column!r}"
            new = f"'random' {column}, since no pre-trained head reads the features of two encoders"
            require(self.heads == "random", "heads", self.heads, new)
            rate = self.encoder_learning_rate
            trained = f"None or a number above 0 {column}, which leaves the new encoder to be trained"
            require(rate != 0, "encoder_learning_rate", rate, trained)
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 or more")
        require(0 <= self.critic_share <= 1, "critic_share", self.critic_share, "a share from 0 to 1")
        require(0 <= self.detours <= 1, "detours", self.detours, "a probability in [0, 1]")
        span = self.return_range
        require(0 <= span < math.inf, "return_range", span, "a range above 0, or 0 to leave rewards alone")
        require(0 <= self.explorer <= 1, "explorer", self.explorer, "a probability in [0, 1]")
        mean = self.explorer_steps
        require(1 <= mean < math.inf, "explorer_steps", mean, "a mean number of steps, 1 or more")
        decay = self.explorer_decay_steps
        if decay is not None:
            require_positive(self, "explorer_decay_steps")
            expected = f"more than warmup_steps = {self.warmup_steps}, before which explorer does nothing"
            require(not self.explorer or decay > self.warmup_steps, "explorer_decay_steps", decay, expected)
        require(self.steps is None or self.steps > 0, "steps", self.steps, "None or a number above 0")
        if self.learning_rate is not None:
            require_positive(self, "learning_rate")
        if self.updates_per_step is not None:
            require_update_rate(self.updates_per_step)


@dataclass(frozen=True)
class BonusConfig:
    """An intrinsic reward next to the task's, in fine-tuning and when training from scratch.

    The learner's reward is reward_scale · r + β_t · r_int, where r_int is the reward of `method`; both are
    summed over the same n steps. `train --bonus METHOD` turns it on.
    """

    coefficient: float = 0.0
    """β₀, the weight of the intrinsic reward at the start of the run, in place of `intrinsic_scale`; 0 for
    none. Pre-training ignores it."""
    decay: Literal["none", "linear", "geometric"] = "none"
    """How β falls with the environment steps t of the run: not at all; `linear`, to 0 after `decay_steps`; or
    `geometric`, β₀ (1 − ρ)^t."""
    decay_steps: Count | None = None
    """Steps of the run after which a `linear` β is 0; None for the whole run."""
    decay_rate: float = 1e-5
    """ρ of a `geometric` β (RE3: 1e-5)."""

    def __post_init__(self) -> None:
        finite = 0 <= self.coefficient < math.inf
        require(finite, "coefficient", self.coefficient, "a finite number from 0 (no bonus) on")
        if self.decay_steps is not None:
            require_positive(self, "decay_steps")
        require(0 <= self.decay_rate < 1, "decay_rate", self.decay_rate, "a number in [0, 1)")


@dataclass(frozen=True)
class LogConfig:
    """Metrics, evaluations and checkpoints."""

    log_every_steps: Count = 1000
    """Steps between two rows of metrics, the only time that they are read from the device."""
    eval_every_steps: Count = 0
    """Steps between two evaluations; 0 for none. Fine-tuning also evaluates its first and its last agent."""
    eval_episodes: int = 10
    """Episodes of one evaluation, in separate environments with separate seeds. The evaluations at the start
    and end of fine-tuning have at most 10; 0 turns them off."""
    eval_epsilon: float = 0.0
    """Probability of a random action in evaluations; with 0, every episode of a deterministic environment is
    the same."""
    probe_every_steps: Count = 0
    """Steps between two probes of what representation and reward see of the true state; 0 turns them off."""
    probe_steps: Count = 5000
    """Steps of random play on which all probes of a run are made; it is collected once, in separate
    environments."""
    checkpoint_every_steps: Count = 50_000
    """Steps between two checkpoints. Environments are reset with a new seed at each, which makes resuming
    from it exact. One more is written where a run stops."""
    keep_last: int = 2
    """Checkpoints kept."""
    keep_replay: bool = True
    """Keep the replay, most of a checkpoint, in the one at the end. Without it a complete run can be
    fine-tuned, evaluated and shared, but not extended; with `keep_last` 1 no other checkpoint has it."""
    snapshot_steps: tuple[Count, ...] = ()
    """Steps of the run at which the agent alone is kept permanently under `snapshots/`: `100k,500k` on the
    command line. Several environments may step past one; folders are named by the agent's true steps."""
    tensorboard: bool = True
    """Write TensorBoard files as well as `metrics.jsonl`."""
    wandb_project: str | None = None
    """Also log to this Weights & Biases project (extra `wandb`)."""

    def __post_init__(self) -> None:
        require_positive(self, "log_every_steps", "checkpoint_every_steps", "keep_last")
        least = 1 if self.eval_every_steps else 0
        few = least <= self.eval_episodes <= MAX_EVAL_EPISODES
        require(few, "eval_episodes", self.eval_episodes, f"{least} to {MAX_EVAL_EPISODES}")
        for name in ("eval_every_steps", "probe_every_steps"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        enough = LEAST_PROBE_STEPS <= self.probe_steps <= MAX_PROBE_STEPS
        expected = f"{LEAST_PROBE_STEPS} to {MAX_PROBE_STEPS}"
        require(enough, "probe_steps", self.probe_steps, expected)
        require(0 <= self.eval_epsilon <= 1, "eval_epsilon", self.eval_epsilon, "a probability in [0, 1]")
        count = len(self.snapshot_steps)
        require(
            count <= MAX_SNAPSHOTS, "snapshot_steps", self.snapshot_steps, f"at most {MAX_SNAPSHOTS} of them"
        )
        for step in self.snapshot_steps:
            require(step > 0, "snapshot_steps", step, "numbers of steps above 0")


@dataclass(frozen=True)
class Config:
    """One run: `pretrain` (the method's reward), `finetune` or `train` (the environment's, and a bonus)."""

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    phase: Literal["pretrain", "finetune", "train"] = "pretrain"
    """Set by the command."""
    steps: Count = 100_000
    """Environment steps of this run."""
    seed: int = 0
    """Seed of everything random in the run."""
    device: str = "auto"
    """`auto` (CUDA where there is one), `cpu`, `cuda` or `cuda:1`."""
    cpu_threads: int = 0
    """Threads of the networks on a CPU; 0 chooses by their size: one for small ones, several for large
    batches of convolutions, as far as cores are free. `OMP_NUM_THREADS` is obeyed."""
    engine: Literal["auto", "eager", "graph", "compile"] = "auto"
    """How updates run: `eager`, one kernel after the other; `graph`, captured as CUDA graphs, many updates
    per launch; `compile`, fused by torch.compile and then, on CUDA, captured: the fastest, after about a
    minute of compiling, some seconds once the same config has been compiled. `auto`: on CUDA `compile` from
    200k updates on, which pay for compiling, and `graph` below; else `eager`."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of convolutions and matrix products; distances, losses, targets, normalizers and optimizers
    are always fp32. `auto`: `bf16` on CUDA devices that have it, else `fp32`."""
    warmup_steps: Count = 1000
    """Steps with uniform random actions before the first update."""
    updates_per_step: float = 2.0
    """Gradient steps per environment step (the paper: 2); below 1 for one update every few steps."""
    method: MethodConfig = field(default_factory=lambda: MethodConfig("apt"))
    """Intrinsic reward."""
    representation: RepresentationConfig = field(default_factory=lambda: RepresentationConfig("auto"))
    """Representation f."""
    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig("auto"))
    """RL algorithm."""
    reward_scale: float = 1.0
    """Multiplies the environment's reward in the learner. Pre-trained values are on the scale of intrinsic
    rewards, with most methods about 1 per step unless `intrinsic_normalization` or `intrinsic_scale` change
    it. Fine-tuning finds the task's scale by itself (`finetune.return_range`)."""
    intrinsic_scale: float | Literal["horizon"] | None = None
    """Multiplies the intrinsic reward in pre-training; `horizon` is 1 − γ, since a reward of 1 per step adds
    up to 1 / (1 − γ). None: 1, but `horizon` for learners whose values have bounds (`rainbow`)."""
    intrinsic_normalization: Literal["none", "scale", "standardize"] = "none"
    """What happens to the method's reward of each transition before it is multiplied by `intrinsic_scale` and
    summed over n steps: nothing; `scale`, divided by its running standard deviation; or `standardize`, which
    subtracts the running mean first. Values are then near 0, and staying alive is not rewarded."""
    intrinsic_momentum: float | None = 0.999
    """Factor by which the weight of past rewards in these running moments shrinks at each update, since the
    rewards of a method drift while it learns: 0.999 looks back about 1000 updates. None weighs all alike."""
    share_encoder: Literal["nothing", "stack", "all"] = "nothing"
    """What f and the learner's encoder have in common: `nothing` (the paper on Atari), the `stack` of
    convolutions with a trunk each, or `all`: the learner acts on f(s) (the paper on DMControl)."""
    encoder_trainers: tuple[Trainer, ...] = ()
    """Whose losses train the encoder f: any of `representation`, `method` and, where it is shared, `learner`;
    several are added up. (): the representation if it has a loss, together with the learner if it is
    auxiliary; without one, the learner that shares it."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    """Augmentation of pixels."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Replay buffer."""
    reset: ResetConfig = field(default_factory=ResetConfig)
    """Periodic resets."""
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    """Fine-tuning."""
    bonus: BonusConfig = field(default_factory=BonusConfig)
    """Intrinsic reward next to the task's."""
    log: LogConfig = field(default_factory=LogConfig)
    """Logging."""

    def __post_init__(self) -> None:
        expected = "a positive number of environment steps, such as 100k; only pre-training may have 0"
        untrained = self.steps == 0 and self.phase == "pretrain"
        require(self.steps > 0 or untrained, "steps", self.steps, expected)
        require_positive(self, "reward_scale")
        if self.intrinsic_scale not in (None, "horizon"):
            require_positive(self, "intrinsic_scale")
        momentum = self.intrinsic_momentum
        forgets = momentum is None or 0 <= momentum < 1
        require(forgets, "intrinsic_momentum", momentum, "None or a number in [0, 1)")
        require_update_rate(self.updates_per_step)
        few = 0 <= self.cpu_threads <= MAX_CPU_THREADS
        require(few, "cpu_threads", self.cpu_threads, f"0 (chosen for you) to {MAX_CPU_THREADS}")
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 or more")
        require(0 <= self.seed < 2**31, "seed", self.seed, "a whole number in [0, 2³¹)")

    @property
    def planned_updates(self) -> int:
        """Updates on samples of the replay in the whole run; on-policy, those of f."""
        tuning = self.finetune if self.phase == "finetune" else None
        warmup_steps = self.warmup_steps if tuning is None else tuning.warmup_steps
        ratio = (tuning and tuning.updates_per_step) or self.updates_per_step
        return max(0, int((self.steps - warmup_steps) * Fraction(str(ratio))))

    @property
    def intrinsic_factor(self) -> float | None:
        """`intrinsic_scale` as a number; None leaves it to the learner."""
        if self.intrinsic_scale == "horizon":
            return 1 - self.learner.largest_discount
        return self.intrinsic_scale

    @property
    def has_bonus(self) -> bool:
        """Whether the method's reward is added to the task's."""
        return self.phase != "pretrain" and self.bonus.coefficient > 0

    @property
    def uses_method(self) -> bool:
        """Whether the method rewards and learns: in pre-training, and as a bonus."""
        return self.phase == "pretrain" or self.has_bonus

    @property
    def learning_rate_field(self) -> str:
        """The field that sets the learner's learning rate in this phase."""
        return f"{'finetune' if self.phase == 'finetune' else 'learner'}.learning_rate"

    @property
    def effective_learning_rate(self) -> float:
        """The learner's learning rate in this phase."""
        tuned = self.finetune.learning_rate if self.phase == "finetune" else None
        return tuned or self.learner.learning_rate


def to_json(config: object) -> Any:
    """Nested plain values; the inverse of `update` on a config of the same pieces."""
    if dataclasses.is_dataclass(config):
        return {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return list(config) if isinstance(config, tuple) else config


def bonus_method(config: Mapping[str, Any]) -> str:
    """The method whose reward a run adds to the task's, given its config as JSON; "" for none."""
    coefficient = config.get("bonus", {}).get("coefficient", 0)
    return str(config["method"]["name"]) if coefficient and config["phase"] != "pretrain" else ""


def bonus_suffix(config: Mapping[str, Any]) -> str:
    """What the bonus adds to the label of a run, given its config as JSON; "" without one."""
    method = bonus_method(config).rpartition(":")[2]
    return f" + {method if config['phase'] == 'train' else 'bonus'}" if method else ""


def without_local_fields(config: Config) -> Config:
    """The config with defaults for all that belongs to the machine and its user."""
    return _with_defaults(config, LOCAL_FIELDS)


def without_user_fields(config: Config) -> Config:
    """The config with defaults for what the user of a downloaded agent decides, not its author."""
    return _with_defaults(config, (*LOCAL_FIELDS, *USER_FIELDS))


def _with_defaults(config: Config, fields: tuple[str, ...]) -> Config:
    pieces = {kind: type(getattr(config, kind))(getattr(config, kind).name) for kind in PIECES}
    defaults = flat(to_json(dataclasses.replace(Config(), **pieces)))
    return update(config, {name: defaults[name] for name in fields if name in defaults})


def may_change(field: str, phase: str) -> bool:
    """Whether a run of this phase may be resumed with another value of a field."""
    if phase == "pretrain" and field.startswith(("finetune.", "bonus.", "reward_scale")):
        return True  # of later runs, which are not pre-training
    groups = tuple(name for name in RESUMABLE_FIELDS if name.endswith("."))
    return field in RESUMABLE_FIELDS or field.startswith(groups)


def differences(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """The fields in which two configs differ, with both values; None for one that a config does not have."""
    mine, theirs = flat(to_json(one)), flat(to_json(other))
    names = {**mine, **theirs}
    pairs = {name: (mine.get(name), theirs.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def update(config: T, changes: Mapping[str, Any], path: str = "") -> T:
    """A copy of `config` with nested `changes`: `{"learner": {"n_step": 3}}` or `{"learner.n_step": 3}`."""
    hints = field_types(type(config))
    values = {}
    for key, value in merge(changes).items():
        if key not in hints:
            known = [f.name for f in dataclasses.fields(config)]  # type: ignore[arg-type]
            near = [path + name for name in similar_fields(key, flat(to_json(config)))]
            raise UnknownNameError("config field", path + key, [path + n for n in known], near=near)
        current = getattr(config, key)
        if isinstance(config, EncoderConfig) and key == "stack" and isinstance(value, type):
            value = registry.register_encoder(value)
        if isinstance(current, PieceConfig):
            current, value = _switch_piece(key, current, value)
        if dataclasses.is_dataclass(current) and isinstance(value, Mapping):
            values[key] = update(current, value, f"{path}{key}.")
        else:
            values[key] = _require_type(value, hints[key], path + key)
    try:
        return dataclasses.replace(config, **values)  # type: ignore[type-var]
    except ConfigError as error:  # a nested config does not know its own path
        raise ConfigError(f"{path}{error}") from None


def _switch_piece(kind: str, current: PieceConfig, value: Any) -> tuple[PieceConfig, Mapping[str, Any]]:
    """The config to change and the changes: a piece given by a new name or class starts from its defaults."""
    if not isinstance(value, Mapping):
        value = {"name": value}
    if "name" in value:
        name = value["name"]
        require(isinstance(name, str | type), kind, name, "a name, a class or a mapping of values")
        fresh = default_piece(kind, name)
        current = current if current.name == fresh.name and type(current) is type(fresh) else fresh
    return current, {k: v for k, v in value.items() if k != "name"}


def default_piece(kind: str, name: str | type) -> PieceConfig:
    """The default config of a method, representation or learner."""
    if name == "auto" and kind in AUTOMATIC:
        return AUTOMATIC[kind]("auto")
    cls = registry.find(kind, name)  # imports torch
    piece: PieceConfig = cls.Config(name=registry.name_of(kind, cls))
    return piece


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested or dotted changes as one nested dictionary; later layers win.

    A later layer that names another piece (`{"method": "random"}`) drops what was set for the one before.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            named = isinstance(key, str) and key.count(".") <= MAX_DOTS
            require(named, "config field", key, "the name of a field, such as 'learner.n_step'")
            head, _, rest = key.partition(".")
            value = _as_mapping(head, {rest: value} if rest else value)
            old = _as_mapping(head, merged.get(head))
            if isinstance(value, Mapping):
                keeps = isinstance(old, Mapping) and not (head in PIECES and _names_another(head, old, value))
                value = merge(old if keeps else {}, value)
            merged[head] = value
    return merged


def _as_mapping(head: str, value: Any) -> Any:
    """A config object as its values, a piece's name or class as its `name`; anything else unchanged."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {k: v for k, v in to_json(value).items() if (k, v) != ("name", "")}
    return {"name": value} if head in PIECES and isinstance(value, str | type) else value


def _names_another(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether both are named, and differently."""
    names = [
        registry.name_of(kind, n) if isinstance(n, type) else n for n in (old.get("name"), new.get("name"))
    ]
    return "auto" != names[0] != names[1] and None not in names


def _require_type(value: Any, hint: Any, name: str) -> Any:
    """The value as its declared type, or an error that says what was expected."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    expected: list[str] = []
    for option in options:
        if typing.get_origin(option) is Literal:
            if value in typing.get_args(option):
                return value
            expected += map(repr, typing.get_args(option))
            continue
        kind: type = typing.get_origin(option) or option
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and kind in (int, float) and abs(value) >= LARGEST and value != math.inf:
            raise ConfigError(f"{name} = {shown(value)} cannot be used: expected a number below 2⁶³")
        if kind is float and number:
            return float(value)
        if kind is int and number and value == value // 1:
            return int(value)
        if kind is tuple and isinstance(value, str) and typing.get_args(option)[0] is str:
            return (value,)
        if kind is tuple and isinstance(value, list | tuple):
            return tuple(_require_type(v, typing.get_args(option)[0], name) for v in value)
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        expected.append(_kind_text(kind, value))
    raise ConfigError(f"{name} = {shown(value)} cannot be used: expected {' or '.join(expected)}")


def _kind_text(kind: type, value: Any) -> str:
    """What a field takes, in words; the command line reads counts such as 100k."""
    if kind is int and isinstance(value, str):
        return by_caller("a whole number", "a whole number such as 5000, 100k or 2M")
    words = {types.NoneType: "None", tuple: "a list", int: "a whole number", float: "a number"}
    return words.get(kind, kind.__name__)


def similar_fields(name: str, fields: Iterable[str]) -> list[str]:
    """Which of the dotted names end like this one, or like what other libraries mean by it: up to three.

    The learner's come before those of other pieces.
    """
    leaf = name.rpartition(".")[2]
    ends = {leaf, OTHER_NAMES.get(leaf, leaf)}
    found = [field for field in fields if field.rpartition(".")[2] in ends]
    return sorted(found, key=lambda field: (field.count("."), not field.startswith("learner.")))[:3]


def flat(nested: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` → `{"a.b": 1}`."""
    found: dict[str, Any] = {}
    for name, value in nested.items():
        inside = isinstance(value, Mapping)
        found |= flat(value, f"{path}{name}.") if inside else {f"{path}{name}": value}
    return found


_read_types = functools.cache(typing.get_type_hints)


def field_types(cls: Any) -> dict[str, Any]:
    """The type of each field of a dataclass."""
    return _read_types(cls)


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, and of those it derives from.

    It takes long, as whole files are parsed: only what prints the docs should ask.
    """
    found: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        with suppress(OSError):  # a class typed into an interpreter has no source
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(tree, ast.ClassDef)
            for above, below in zip(tree.body, tree.body[1:], strict=False):
                match above, below:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        found[name] = " ".join(text.split())
    return found
