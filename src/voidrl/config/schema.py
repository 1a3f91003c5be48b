"""The config of a run: `Config`, and the groups of fields that are not a piece's or the environment's."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

from voidrl.config.checks import (
    Checked,
    Count,
    Limit,
    Momentum,
    NotNegative,
    OptionalSize,
    Positive,
    PositiveCount,
    Share,
    UpdateRate,
    between,
    require,
)
from voidrl.config.effective import Effective, resolve
from voidrl.config.environment import EnvConfig
from voidrl.config.pieces import EncoderTrainer, LearnerConfig, MethodConfig, RepresentationConfig

MAX_SNAPSHOTS = 1000
Scale = Annotated[
    float | Literal["horizon"],
    Limit(lambda value: value == "horizon" or 0 < value < math.inf, "a finite number above 0"),
]


@dataclass(frozen=True)
class AugmentConfig(Checked):
    """Augmentation, drawn for every observation, the same for all its frames; pixels only.

    An image is cut to a random window of `inner_size`, padded by `shift_pixels` on each side by repeating its
    edges, and cropped at random, to `crop_size` or the size that it had.
    """

    shift_pixels: OptionalSize | None = None
    """Padding on each side: the largest random shift, unless images are cropped. Edges are repeated. None
    goes by the images: a ninth of the shorter side, at most 4, and 0 for a side below 16 pixels, where a
    pixel is often a symbol and a shift another state."""
    intensity_scale: NotNegative = 0.0
    """Intensity jitter: images are multiplied by 1 + scale · clip(N(0, 1), −2, 2)."""
    crop_size: OptionalSize = 0
    """Height and width of the images that networks read: random crops in losses, the center everywhere else
    (RAD: 84 of 100, with `shift_pixels` 0). The replay stores whole images. 0 does not crop."""
    inner_size: OptionalSize = 0
    """Height and width of a random window outside of which its edges are repeated (CURL on Atari: 80); 0 for
    the whole image."""
    shift_probability: Share = 1.0
    """Probability that an image is shifted or cropped at random, rather than in the middle (ATC: 0.1)."""
    learner: bool = True
    """Augment the learner's images too. False leaves augmentation to the representation (CURL on Atari)."""


@dataclass(frozen=True)
class ReplayConfig(Checked):
    """The replay buffer."""

    capacity_steps: PositiveCount = 100_000
    """Environment steps kept, over all environments together; the last frame of an episode takes up one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` keeps the replay on the networks' device if it fits there. Otherwise its frames are kept in main
    memory, which is pinned so that the GPU reads it directly, and the run says so. `cpu` keeps them there
    always."""
    priority_exponent: Share = 0.0
    """α of prioritized sampling (Schaul et al. 2016): transitions are drawn with a probability proportional
    to their last error to the power of α; 0 draws uniformly."""
    importance_exponent: Share | None = None
    """β of the importance weights (N P)^−β, which are divided by the largest of the batch; None: 0.4 at the
    start, rising linearly to 1 at the end of the run (Schaul et al. 2016, Rainbow)."""
    data: str | None = None
    """The id of a Minari dataset that fills the replay before the first step; None for an empty replay."""

    @property
    def importance_range(self) -> tuple[float, float]:
        """β at the start and at the end of the run."""
        fixed = self.importance_exponent
        return (0.4, 1.0) if fixed is None else (fixed, fixed)


@dataclass(frozen=True)
class ResetConfig(Checked):
    """Periodic resets, without which many updates per step overfit (SR-SPR, BBF)."""

    every_updates: Count = 0
    """Updates between two resets; 0 turns them off."""
    keep: Share = 0.8
    """Share of the encoder's weights that a reset keeps, the rest being those of a new one: shrink and
    perturb (SR-SPR: 0.8, BBF: 0.5). Heads are reinitialized, and their optimizers' moments set to 0."""
    last_steps: Count = 20_000
    """Steps at the end of the run without a reset."""


@dataclass(frozen=True)
class FinetuneConfig(Checked):
    """Fine-tuning: the parts of the pre-trained agent that are kept, and the adaptation to the task."""

    steps: PositiveCount | None = None
    """Environment steps, unless the command says otherwise; None takes as many as in pre-training."""
    updates_per_step: UpdateRate | None = None
    """Gradient steps per environment step; None takes those of pre-training."""
    heads: Literal["auto", "pretrained", "actor", "first_layer", "random"] = "auto"
    """Heads that are kept. `auto` decides at the end of the warm-up, from the task's returns in it: where
    the pre-trained values correlate with them (the *alignment*), values are moved to the task's scale and
    everything is kept; otherwise the critic is reinitialized and the policy kept, as the actor, or as the
    explorer of a learner without one. `pretrained` keeps all heads, `random` none. `actor` (URLB) keeps the
    policy and the trunks of both, and reinitializes the critic behind its trunk, or all of it without a
    trunk. `first_layer` (SGI) keeps the layer of each head that reads the features."""
    learning_rate: Positive | None = None
    """The learner's learning rate during fine-tuning and, under a protocol, when training from scratch; None
    takes `learner.learning_rate`."""
    encoder_learning_rate: NotNegative | None = None
    """Learning rate of the learner's encoder while fine-tuning; None takes the learner's, 0 freezes it."""
    first_layer_learning_rate: NotNegative | None = None
    """Learning rate of the first layer of the heads while fine-tuning; None takes the learner's, 0 freezes
    it."""
    warmup_steps: Count = 1000
    """Steps before the first update."""
    warmup_actions: Literal["policy", "random"] = "policy"
    """Actions of the warm-up: the pre-trained policy's, whatever becomes of the heads, or uniform random ones
    (the paper on DMControl). Skill methods try their skills in this time, which takes the policy."""
    noise: Literal["auto", "end", "restart"] = "auto"
    """Exploration noise (ε, or the standard deviation): stay at the `end` of its schedule, or `restart` it;
    `auto` restarts it for a new policy: that of a learner without an actor whose heads are new.
    The schedule of ε starts when the warm-up is over."""
    adapt: bool = True
    """Adapt to the task: scale rewards and SAC's temperature by the task's returns in the warm-up, let a new
    critic learn before the kept actor, wait with learning until rewards differ, and explore by detours
    (docs/adapting.md). False fine-tunes without any of it (the paper)."""


@dataclass(frozen=True)
class BonusConfig(Checked):
    """An intrinsic reward added to the task's, in fine-tuning and when training from scratch.

    The learner's reward is reward_scale · r + β_t · r_int, where r_int is the reward of `method`; both are
    summed over the same n steps. `train --bonus METHOD` turns it on.
    """

    coefficient: NotNegative = 0.0
    """β₀, the weight of the intrinsic reward at the start of the run, in place of `intrinsic_scale`; 0 for
    none. Pre-training ignores it."""
    decay: Literal["none", "linear", "geometric"] = "none"
    """Decay of β with the environment steps t of the run: none; `linear`, to 0 at the end;
    or `geometric`, β₀ (1 − 1e-5)^t (RE3)."""


@dataclass(frozen=True)
class LogConfig(Checked):
    """Metrics, evaluations and checkpoints."""

    log_every_steps: PositiveCount = 1000
    """Steps between two rows of metrics, the only time that they are read from the device."""
    eval_every_steps: Count = 0
    """Steps between two evaluations; 0 for none. Fine-tuning also evaluates its first and its last agent."""
    eval_episodes: Annotated[int, between(0, 10_000)] = 10
    """Episodes of one evaluation, in separate environments with separate seeds. The evaluations at the start
    and end of fine-tuning have at most 10; 0 turns them off."""
    eval_epsilon: Share = 0.0
    """Probability of a random action in evaluations; with 0, every episode of a deterministic environment is
    the same."""
    probe_every_steps: Count = 0
    """Steps between two probes of what the representation sees of the true state, all on the same 5000 steps
    of random play; 0 turns them off."""
    checkpoint_every_steps: PositiveCount = 50_000
    """Steps between two checkpoints. Environments are reset with a new seed at each, which makes resuming
    from it exact. One more is written where a run stops."""
    keep_last: PositiveCount = 2
    """Checkpoints kept."""
    keep_replay: bool = True
    """Keep the replay, most of a checkpoint, in the one at the end. Without it a complete run can be
    fine-tuned, evaluated and shared, but not extended; with `keep_last` 1 no other checkpoint has it."""
    snapshot_steps: tuple[PositiveCount, ...] = ()
    """Steps of the run at which only the agent is kept, permanently under `snapshots/`: `100k,500k` on the
    command line. Several environments may step past one; folders are named by the agent's true steps."""
    tensorboard: bool = True
    """Write TensorBoard files as well as `metrics.jsonl`."""
    wandb_project: str | None = None
    """Also log to this Weights & Biases project (extra `wandb`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        enough = self.eval_episodes > 0 or not self.eval_every_steps
        require(enough, "eval_episodes", self.eval_episodes, "1 or more, as eval_every_steps is above 0")
        few = len(self.snapshot_steps) <= MAX_SNAPSHOTS
        require(few, "snapshot_steps", self.snapshot_steps, f"at most {MAX_SNAPSHOTS} of them")


@dataclass(frozen=True)
class Config(Checked):
    """One run: `pretrain` (the method's reward), `finetune` or `train` (the environment's, and a bonus)."""

    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    phase: Literal["pretrain", "finetune", "train"] = "pretrain"
    """Set by the command."""
    steps: int = 100_000
    """Environment steps of this run."""
    seed: Annotated[int, Limit(lambda value: 0 <= value < 2**31, "a whole number in [0, 2³¹)")] = 0
    """Seed of everything random in the run."""
    device: str = "auto"
    """`auto` (CUDA where there is one), `cpu`, `cuda` or `cuda:1`."""
    cpu_threads: Annotated[int, between(0, 1024)] = 0
    """Threads of the networks on a CPU; 0 chooses by their size: one for small ones, several for large
    batches of convolutions, within its share of the cores. `OMP_NUM_THREADS` is obeyed."""
    engine: Literal["auto", "eager", "graph", "compile"] = "auto"
    """Mode of the updates: `eager`, one kernel after the other; `graph`, captured as CUDA graphs, many
    updates per launch; `compile`, fused by torch.compile and then, on CUDA, captured: the fastest, after
    about a minute of compiling, some seconds once the same config has been compiled. `auto`: on CUDA
    `compile` from 200k updates on, which pay for compiling, and `graph` below; else `eager`."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of convolutions and matrix products; distances, losses, targets, normalizers and optimizers
    are always fp32. `auto`: `bf16` on CUDA devices that have it, else `fp32`."""
    warmup_steps: Count = 1000
    """Steps with uniform random actions before the first update."""
    updates_per_step: UpdateRate = 2.0
    """Gradient steps per environment step (the paper: 2); below 1 for one update every few steps."""
    method: MethodConfig = field(default_factory=lambda: MethodConfig("apt"))
    """Intrinsic reward."""
    representation: RepresentationConfig = field(default_factory=lambda: RepresentationConfig("auto"))
    """Representation f."""
    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig("auto"))
    """RL algorithm."""
    reward_scale: Positive = 1.0
    """Multiplies the environment's reward in the learner. Pre-trained values are on the scale of intrinsic
    rewards, with most methods about 1 per step unless `intrinsic_normalization` or `intrinsic_scale` change
    it. Fine-tuning finds the task's scale by itself (`finetune.adapt`)."""
    intrinsic_scale: Scale | None = None
    """Multiplies the intrinsic reward in pre-training; `horizon` is 1 − γ, since a reward of 1 per step adds
    up to 1 / (1 − γ). None: 1, but `horizon` for learners whose values have bounds (`rainbow`)."""
    intrinsic_normalization: Literal["none", "scale", "standardize"] = "none"
    """Normalization of the method's reward of each transition, before it is multiplied by `intrinsic_scale`
    and summed over n steps: none; `scale`, division by its running standard deviation; or `standardize`,
    which subtracts the running mean first. Values are then near 0, and staying alive is not rewarded."""
    intrinsic_momentum: Momentum | None = 0.999
    """Factor by which the weight of past rewards in these running moments shrinks at each update, since the
    rewards of a method drift while it learns: 0.999 looks back about 1000 updates. None weighs all alike."""
    share_encoder: Literal["nothing", "stack", "all"] = "nothing"
    """Layers that f and the learner's encoder share: `nothing` (the paper on Atari), the `stack` of
    convolutions with a trunk each, or `all`: the learner acts on f(s) (the paper on DMControl)."""
    encoder_trainers: tuple[EncoderTrainer, ...] = ()
    """Losses that train the encoder f: any of `representation`, `method` and, where it is shared, `learner`;
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
    """Intrinsic reward added to the task's."""
    log: LogConfig = field(default_factory=LogConfig)
    """Logging."""

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = "a positive number of environment steps, such as 100k; only pre-training may have 0"
        least = 0 if self.phase == "pretrain" else 1
        require(self.steps >= least, "steps", self.steps, expected)

    @cached_property
    def effective(self) -> Effective:
        """The values that hold in this phase."""
        return resolve(self)
