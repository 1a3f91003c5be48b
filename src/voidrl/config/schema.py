"""The config of a run: `Config`, and the groups of fields that are not a piece's."""

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
from voidrl.config.pieces import EncoderTrainer, LearnerConfig, MethodConfig, RepresentationConfig

MAX_FRAMES = 2**31 - 2  # of a game of Atari, which ALE counts in 32 bits
WRAPPER = "'module:Wrapper', such as gymnasium.wrappers:TimeLimit"
Wrapper = Annotated[str, Limit(lambda path: ":" in path.partition("?")[0], WRAPPER)]
Scale = Annotated[
    float | Literal["horizon"],
    Limit(lambda value: value == "horizon" or 0 < value < math.inf, "a finite number above 0"),
]


@dataclass(frozen=True)
class AtariConfig(Checked):
    """The rules of the environments `atari/…`; no other environment has these options.

    A query in the id sets the same fields, and wins: `atari/pong?sticky=0.25`. Evaluations play whole games
    for the raw score, whatever `life_loss` and `clip_rewards` are.
    """

    sticky: Annotated[float, Limit(lambda value: 0 <= value < 1, "a probability below 1")] = 0.0
    """Probability that the emulator repeats its last action in a frame."""
    life_loss: Literal["always", "task", "never"] = "always"
    """Whether a lost life is terminal in training: `always` (the paper); `task`, only while a task's reward
    is learned, so that a policy pre-trained for novelty is not trained to survive; or `never`."""
    full_actions: bool = False
    """All 18 actions instead of the game's minimal set."""
    noop_max: Annotated[int, between(0, MAX_FRAMES, "frames")] = 30
    """Most frames without an action at the start of a game; the number is drawn."""
    max_frames: Annotated[int, between(1, MAX_FRAMES, "frames")] = 108_000
    """Frames after which a game is truncated."""
    clip_rewards: bool = True
    """Clip rewards to [−1, 1] in training."""


@dataclass(frozen=True)
class DMControlConfig(Checked):
    """Observations and simulation of `dmc/…`; no other environment has these options."""

    observation: Literal["states", "pixels"] = "states"
    """The task's own observations as one vector, or images."""
    action_repeat: Annotated[int, between(0, 1000)] = 0
    """Control steps per agent step, in which the action is held. 0 is the domain's default: 1 for states; for
    pixels the paper's, 4 for the cheetah and 2 for all others."""
    image_size: Annotated[int, between(1, 1024, "pixels")] = 84
    """Height and width of images in pixels. The camera is URLB's: 2 for the quadruped, `front_close` for
    jaco, 0 for all others."""
    render_quality: Literal["default", "medium", "fast"] = "default"
    """`default`, as dm_control renders; `medium`, with coarser shadows and curves: colors differ by about 0.3
    of 255, at a quarter of the cost; `fast`, without shadows and multisampling."""


@dataclass(frozen=True)
class EnvConfig(Checked):
    """The environment and the number of copies."""

    id: str = ""
    """`atari/<game>`, `dmc/<domain>_<task>`, a Gymnasium id or `module:factory`; options as a query:
    `atari/pong?sticky=0.25`."""
    num_envs: Annotated[int, between(1, 8192)] = 1
    """Environments stepped in parallel."""
    backend: Literal["auto", "native", "sync", "async"] = "auto"
    """How environments are stepped: `native`, vectorized by their package; `sync`, in this process; `async`,
    in worker processes. `auto`: `native` where there is a native version, else `sync`, on DMControl
    `async`."""
    frame_stack: Annotated[int, between(1, 1024, "frames")] = 1
    """Consecutive frames that make one observation; stacked by the replay, not by the environment."""
    count_states: bool = False
    """Measure coverage: on Atari the distinct states of the game's memory, by a second emulation of every
    step; on DMControl bins of (height, angle, velocity)."""
    timeout_s: Positive = 300.0
    """Seconds without an answer after which a worker process counts as hung, which ends the run."""
    check_bounds: bool = True
    """Refuse observations outside the bounds of their space."""
    keys: tuple[str, ...] = ()
    """Entries of a Dict observation that the agent sees, in this order, such as `image` or `agent/position`.
    (): all of them."""
    wrappers: tuple[Wrapper, ...] = ()
    """Wrappers around each environment, the innermost first: `module:Wrapper?option=value`. They exclude a
    native version."""
    action_masks: Literal["auto", "none", "info", "method", "key"] = "auto"
    """Source of the masks of allowed discrete actions: the environment's `info["action_mask"]`, its method
    `action_masks()`, or the key `action_mask` of its observations. `auto` looks for them when the environment
    is probed."""
    atari: AtariConfig = field(default_factory=AtariConfig)
    """Atari."""
    dmc: DMControlConfig = field(default_factory=DMControlConfig)
    """DMControl."""


@dataclass(frozen=True)
class AugmentConfig(Checked):
    """Augmentation, drawn for every observation, the same for all its frames; pixels only.

    An image is cut to a random window of `inner_size`, padded by `shift_pixels` on each side by repeating its
    edges, and cropped at random, to `crop_size` or the size that it had.
    """

    shift_pixels: OptionalSize | None = None
    """Padding on each side: the largest random shift, unless images are cropped. None: a ninth of the shorter
    side, at most 4, and 0 for a side below 16 pixels, where a shift is often another state."""
    intensity_scale: NotNegative = 0.0
    """Intensity jitter: images are multiplied by 1 + scale · clip(N(0, 1), −2, 2)."""
    crop_size: OptionalSize = 0
    """Height and width of the images that networks read: random crops in losses, the center elsewhere (RAD:
    84 of 100, with `shift_pixels` 0). 0 does not crop."""
    inner_size: OptionalSize = 0
    """Height and width of a random window outside of which its edges are repeated (CURL on Atari: 80); 0 for
    the whole image."""
    shift_probability: Share = 1.0
    """Probability of a random shift or crop, rather than the center (ATC: 0.1)."""
    learner: bool = True
    """Augment the learner's images too. False leaves augmentation to the representation (CURL on Atari)."""


@dataclass(frozen=True)
class ReplayConfig(Checked):
    """The replay buffer."""

    capacity_steps: PositiveCount = 100_000
    """Environment steps kept, over all environments; the last frame of an episode takes up one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: the networks' device if the replay fits there, else its frames are kept in pinned main memory,
    and the run says so. `cpu`: always in main memory."""
    priority_exponent: Share = 0.0
    """α of prioritized sampling (Schaul et al. 2016): the probability of a transition is proportional to its
    last error to the power of α; 0 draws uniformly."""
    importance_exponent: Share | None = None
    """β of the importance weights (N P)^−β, divided by the batch's largest; None: rises linearly from 0.4 to
    1 over the run (Rainbow)."""
    data: str | None = None
    """Id of a Minari dataset that fills the replay before the first step."""

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
    """Weight of the old encoder in the mean of old and new that a reset takes: shrink and perturb (SR-SPR:
    0.8, BBF: 0.5). Heads and their optimizers are reinitialized."""
    last_steps: Count = 20_000
    """Steps at the end of the run without a reset."""


@dataclass(frozen=True)
class FinetuneConfig(Checked):
    """Fine-tuning: the parts of the pre-trained agent that are kept, and the adaptation to the task."""

    steps: PositiveCount | None = None
    """Environment steps; None: as many as in pre-training."""
    updates_per_step: UpdateRate | None = None
    """Gradient steps per environment step; None: as in pre-training."""
    heads: Literal["auto", "pretrained", "actor", "first_layer", "random"] = "auto"
    """Heads that are kept. `auto` decides at the end of the warm-up: where the pre-trained values correlate
    with the returns in it (the *alignment*), they are moved to the task's scale and everything is kept;
    otherwise the critic is reinitialized and the policy kept, as the actor, or as the explorer of a learner
    without one. `pretrained` keeps all heads, `random` none. `actor` (URLB) reinitializes the critic, except
    its trunk. `first_layer` (SGI) keeps the layer of each head that reads the features."""
    learning_rate: Positive | None = None
    """The learner's learning rate in fine-tuning and, under a preset, when training from scratch; None:
    `learner.learning_rate`."""
    encoder_learning_rate: NotNegative | None = None
    """Learning rate of the learner's encoder in fine-tuning; None: the learner's, 0 freezes it."""
    first_layer_learning_rate: NotNegative | None = None
    """Learning rate of the heads' first layer in fine-tuning; None: the learner's, 0 freezes it."""
    warmup_steps: Count = 1000
    """Steps before the first update."""
    warmup_actions: Literal["policy", "random"] = "policy"
    """Actions of the warm-up: the pre-trained `policy`, which skill methods need to try their skills, or
    uniform `random` ones (the paper on DMControl)."""
    noise: Literal["auto", "end", "restart"] = "auto"
    """Exploration noise (ε, or the standard deviation): stay at the `end` of its schedule, or `restart` it,
    for ε after the warm-up; `auto` restarts it for a learner without an actor whose heads are new."""
    adapt: bool = True
    """Adapt to the task (docs/adapting.md): scale rewards and SAC's temperature by the returns of the
    warm-up, train a new critic before the kept actor, learn once rewards differ, and explore by detours.
    False: none of it (the paper)."""


@dataclass(frozen=True)
class BonusConfig(Checked):
    """An intrinsic reward added to the task's, in fine-tuning and when training from scratch.

    The learner's reward is reward_scale · r + β_t · r_int, where r_int is the reward of `method`; both are
    summed over the same n steps. `train --bonus METHOD` turns it on.
    """

    coefficient: NotNegative = 0.0
    """β₀, the weight of the intrinsic reward at the start, in place of `intrinsic_scale`; 0 for none."""
    decay: Literal["none", "linear", "geometric"] = "none"
    """Decay of β with the environment steps t of the run: none; `linear`, to 0 at the end;
    or `geometric`, β₀ (1 − 1e-5)^t (RE3)."""


@dataclass(frozen=True)
class LogConfig(Checked):
    """Metrics, evaluations and checkpoints."""

    log_every_steps: PositiveCount = 1000
    """Steps between two rows of metrics."""
    eval_every_steps: Count = 0
    """Steps between two evaluations; 0 for none. Fine-tuning also evaluates its first and its last agent."""
    eval_episodes: Annotated[int, between(0, 10_000)] = 10
    """Episodes of one evaluation, in separate environments. The evaluations at the start and end of
    fine-tuning have at most 10; 0 turns them off."""
    eval_epsilon: Share = 0.0
    """Probability of a random action in evaluations; with 0, all episodes of a deterministic environment are
    equal."""
    probe_every_steps: Count = 0
    """Steps between two probes of what the representation sees of the true state, on 5000 fixed steps of
    random play; 0 turns them off."""
    checkpoint_every_steps: PositiveCount = 50_000
    """Steps between two checkpoints. Environments are reset with a new seed at each, which makes resuming
    exact. One more is written where a run stops."""
    keep_last: PositiveCount = 2
    """Checkpoints kept."""
    keep_replay: bool = True
    """Keep the replay in the last checkpoint. Without it a complete run cannot be extended; with `keep_last`
    1 no other checkpoint has it."""
    snapshot_steps: tuple[PositiveCount, ...] = ()
    """Steps at which the agent is kept for good under `snapshots/`: `100k,500k` on the command line. Folders
    are named by the agent's true steps, as several environments may step past one."""
    tensorboard: bool = True
    """Write TensorBoard files as well as `metrics.jsonl`."""
    wandb_project: str | None = None
    """Also log to this Weights & Biases project (extra `wandb`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        enough = self.eval_episodes > 0 or not self.eval_every_steps
        require(enough, "eval_episodes", self.eval_episodes, "1 or more, as eval_every_steps is above 0")


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
    """Threads of the networks on a CPU; 0 chooses by their size, within the run's share of the cores.
    `OMP_NUM_THREADS` is obeyed."""
    engine: Literal["auto", "eager", "graph", "compile"] = "auto"
    """Mode of the updates: `eager`; `graph`, captured as CUDA graphs, many updates per launch; `compile`,
    fused by torch.compile, then captured: the fastest, after about a minute of compiling, the first time.
    `auto`: on CUDA `compile` from 200k updates on and `graph` below; else `eager`."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of convolutions and matrix products; distances, losses, targets, normalizers and optimizers
    are always fp32. `auto`: `bf16` on CUDA devices that have it, else `fp32`."""
    warmup_steps: Count = 1000
    """Steps with uniform random actions before the first update."""
    updates_per_step: UpdateRate = 2.0
    """Gradient steps per environment step (the paper: 2); 0.25 is one every four steps."""
    method: MethodConfig = field(default_factory=lambda: MethodConfig("apt"))
    """Intrinsic reward."""
    representation: RepresentationConfig = field(default_factory=lambda: RepresentationConfig("auto"))
    """Representation f."""
    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig("auto"))
    """RL algorithm."""
    reward_scale: Positive = 1.0
    """Multiplies the environment's reward in the learner. Pre-trained values are on the scale of intrinsic
    rewards, about 1 per step with most methods; `finetune.adapt` finds the task's scale by itself."""
    intrinsic_scale: Scale | None = None
    """Multiplies the intrinsic reward in pre-training; `horizon` is 1 − γ, since a reward of 1 per step adds
    up to 1 / (1 − γ). None: 1, but `horizon` for learners whose values have bounds (`rainbow`)."""
    intrinsic_normalization: Literal["none", "scale", "standardize"] = "none"
    """Normalization of the intrinsic reward, before `intrinsic_scale`: `none`; `scale`, division by its
    running standard deviation; or `standardize`, which subtracts the running mean first, so that staying
    alive is not rewarded."""
    intrinsic_momentum: Momentum | None = 0.999
    """Factor by which the weight of past rewards in these moments shrinks at each update, as rewards drift:
    0.999 looks back about 1000 updates. None weighs all alike."""
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
